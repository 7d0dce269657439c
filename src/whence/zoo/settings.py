"""What decides how a network is trained: one frozen record, with a readable form that can be hashed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from torch import Tensor

from whence.errors import BadOption, one_of
from whence.zoo.data.augment import Augment
from whence.zoo.schedules import Constant, Schedule, resolve

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES = ("cross-entropy", "squared", "binary")


CONSTANT = Constant()


@dataclass(frozen=True)
class Settings:
    """How to train. ``weight_decay`` is the factor λ of ½ λ ‖θ‖² beside the *mean* loss, with sgd and adam.

    A prior precision δ over the weights is λ = δ / N for N training examples. With adamw it is decoupled from the loss
    (Loshchilov & Hutter 2019), and no prior.
    """

    epochs: int = 20
    batch_size: int = 128
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.9  # SGD only
    nesterov: bool = False  # SGD only
    weight_decay: float = 0.0
    decay: Literal["all", "weights"] = "all"  # "weights": neither biases nor normalisation parameters
    schedule: Schedule = CONSTANT
    augment: Augment | Literal[False] | None = None  # None: that of the data, if any; False: none
    loss: str | Loss | None = None  # None: cross-entropy for class labels, squared error for numbers
    label_smoothing: float = 0.0  # cross-entropy only
    clip: float | None = None  # largest norm of the gradient
    patience: int | None = None  # epochs without a better validation value before it stops
    monitor: Literal["loss", "accuracy"] = "loss"  # what is better: on validation data
    amp: bool = False  # bfloat16 where it is safe, channels last; on a GPU
    capture: bool = False  # steps as a CUDA graph, for networks that do the same at every step; speed only, on a GPU

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", resolve(self.schedule))
        one_of(self.optimiser, ("sgd", "adam", "adamw"), "optimiser")
        one_of(self.decay, ("all", "weights"), "decay")
        one_of(self.monitor, ("loss", "accuracy"), "monitor")
        if isinstance(self.loss, str):
            one_of(self.loss, LOSSES, "loss")
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            _require(value is None or (_is_whole(value) and value >= 1), name, value, "a whole number, 1 or more")
        for name in ("lr", "momentum", "weight_decay", "label_smoothing", "clip"):
            value = getattr(self, name)
            _require(value is None or isinstance(value, (int, float)), name, value, "a number")
        _require(self.epochs is not None and self.batch_size is not None, "epochs, batch_size", None, "a number")
        _require(0 < self.lr < math.inf, "lr", self.lr, "positive")
        _require(0 <= self.momentum < 1, "momentum", self.momentum, "in [0, 1)")
        _require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        _require(0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "in [0, 1)")
        _require(self.clip is None or self.clip > 0, "clip", self.clip, "positive")
        if self.nesterov and (self.optimiser != "sgd" or not self.momentum):
            raise BadOption(f"nesterov=True needs sgd with a momentum; here {self.optimiser} with {self.momentum}.")
        if self.augment is not None and self.augment is not False and not isinstance(self.augment, Augment):
            raise BadOption(f"augment={self.augment!r} is not one of whence.zoo.augment (Crop, Flip, Binarise …).")

    def with_(self, **changes: Any) -> Settings:
        """The same with other values; an unknown name is refused."""
        known = [field.name for field in fields(self)]
        for name in changes:
            one_of(name, known, "training option")
        return replace(self, **changes)

    def spec(self) -> dict[str, Any]:
        """Plain values that say the same, for a hash or a file."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["schedule"] = self.schedule.spec()
        values["augment"] = self.augment.spec() if self.augment else self.augment
        if callable(self.loss):
            values["loss"] = getattr(self.loss, "__qualname__", type(self.loss).__name__)
        return values


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(holds: bool, name: str, value: object, bound: str) -> None:
    if not holds:
        raise BadOption(f"{name}={value} is not {bound}.")
