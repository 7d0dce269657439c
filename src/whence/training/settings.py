"""Settings of a training: a frozen dataclass with a plain form for hashing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from whence.engine.options import Option
from whence.errors import BadOption, one_of
from whence.training.augment import Augment
from whence.training.losses import BY_NAME, LossFunction
from whence.training.schedules import Constant, Schedule, resolve

CONSTANT = Constant()


class Optimiser(Option):
    """Which optimiser of torch trains."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


@dataclass(frozen=True)
class Settings:
    """How to train. ``weight_decay`` is the factor λ of ½ λ ‖θ‖² added to the *mean* loss, with sgd and adam.

    A prior precision δ corresponds to λ = δ / N for N training examples. With adamw it is decoupled from the loss
    (Loshchilov & Hutter 2019), and is not a prior. ``l1`` is the factor of Σ|w| added to the mean loss, over matrices
    and filters, with every optimiser; it makes weights small enough for ``whence.prune(…, threshold=…)``.
    """

    epochs: int = 20
    batch_size: int = 128
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.9  # SGD only
    nesterov: bool = False  # SGD only
    weight_decay: float = 0.0
    l1: float = 0.0
    decay: Literal["all", "weights"] = "all"  # "weights": neither biases nor normalisation parameters
    schedule: Schedule = CONSTANT
    augment: Augment | Literal[False] | None = None  # None: the data's augmentation, if any; False: none
    loss: str | LossFunction | None = None  # None: cross-entropy for class labels, squared error for numbers
    label_smoothing: float = 0.0  # cross-entropy only
    clip: float | None = None  # largest norm of the gradient
    patience: int | None = None  # epochs without a better validation value before it stops
    monitor: Literal["loss", "accuracy"] = "loss"  # validation value that decides
    amp: bool = False  # bfloat16 autocast and channels last, on a GPU
    capture: bool = False  # steps as a CUDA graph, for networks that do the same at every step; speed only, on a GPU

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", resolve(self.schedule))
        optimiser = Optimiser.parse(self.optimiser, "optimiser")
        one_of(self.decay, ("all", "weights"), "decay")
        one_of(self.monitor, ("loss", "accuracy"), "monitor")
        if isinstance(self.loss, str):
            one_of(self.loss, BY_NAME, "loss")
        for name, (optional, holds, bound) in BOUNDS.items():
            value = getattr(self, name)
            if not (optional if value is None else holds(value)):
                raise BadOption(f"{name}={value!r} is not {bound}.")
        if self.nesterov and (optimiser is not Optimiser.SGD or not self.momentum):
            raise BadOption(f"nesterov=True needs sgd with a momentum; here {self.optimiser} with {self.momentum}.")
        if self.augment is not None and self.augment is not False and not isinstance(self.augment, Augment):
            raise BadOption(f"augment={self.augment!r} is not one of whence.zoo.augment (Crop, Flip, Binarise …).")

    def with_(self, **changes: Any) -> Settings:
        """A copy with other values; unknown names are refused."""
        known = [field.name for field in fields(self)]
        for name in changes:
            one_of(name, known, "training option")
        return replace(self, **changes)

    def spec(self) -> dict[str, Any]:
        """The settings as plain values, for a hash or a file."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["schedule"] = self.schedule.spec()
        values["augment"] = self.augment.spec() if self.augment else self.augment
        if callable(self.loss):
            values["loss"] = getattr(self.loss, "__qualname__", type(self.loss).__name__)
        return values


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _number(holds: Callable[[float], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, (int, float)) and holds(value)


# Field: whether it may be None, the condition, and its description in messages.
BOUNDS: dict[str, tuple[bool, Callable[[Any], bool], str]] = {
    "epochs": (False, _whole, "a whole number, 1 or more"),
    "batch_size": (False, _whole, "a whole number, 1 or more"),
    "patience": (True, _whole, "a whole number, 1 or more"),
    "lr": (False, _number(lambda v: 0 < v < math.inf), "a positive number"),
    "momentum": (False, _number(lambda v: 0 <= v < 1), "a number in [0, 1)"),
    "weight_decay": (False, _number(lambda v: v >= 0), "a number, 0 or more"),
    "l1": (False, _number(lambda v: 0 <= v < math.inf), "a number, 0 or more"),
    "label_smoothing": (False, _number(lambda v: 0 <= v < 1), "a number in [0, 1)"),
    "clip": (True, _number(lambda v: v > 0), "a positive number"),
}
