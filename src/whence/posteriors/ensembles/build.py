"""Fresh networks from a factory, each from a seed of its own; and one of them trained."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from whence.errors import BadData, BadOption
from whence.posteriors.ensembles.fresh import Fresh
from whence.randomness import derived_seed

Factory = Callable[..., nn.Module]


@dataclass(frozen=True)
class Job:
    """What all members have in common. It can be sent to another process if factory and data can."""

    factory: Factory
    data: Any
    validation: Any
    settings: Any  # whence.zoo.Settings
    explicit: tuple[str, ...]  # settings that the caller named
    seed: int
    device: str | None
    fresh: Fresh = field(default_factory=Fresh, repr=False)

    def build(self, index: int) -> nn.Module:
        """Member ``index``, untrained."""
        waiting = self.fresh.waiting.pop(index, None)
        model = self._made_anew(index) if waiting is None else waiting
        return model if self.device is None else model.to(self.device)

    def check(self, members: int) -> None:
        """Two networks of the factory, held against each other before anything is trained; they wait for ``build``."""
        for index in (0, 1):
            self.fresh.waiting[index] = self._made_anew(index)
        self.fresh.compare(members)

    def _made_anew(self, index: int) -> nn.Module:
        seed = derived_seed(self.seed, "weights", index)
        before = torch.cuda.is_initialized()
        model, state = self._made(seed)
        if torch.cuda.is_initialized() and not before:
            model, state = self._made(seed)  # weights that were drawn on a GPU before it could be seeded
        if not isinstance(model, nn.Module):
            raise BadData(f"the factory returned a {type(model).__name__}, not a torch.nn.Module.")
        self.fresh.note(index, model, state, self.data)
        return model

    def _made(self, seed: int) -> tuple[Any, bytes]:
        """What the factory makes, and the state that it leaves torch's generator in."""
        with seeded(seed):
            model = self.factory(seed=seed) if _takes_seed(self.factory) else self.factory()
            return model, torch.default_generator.get_state().numpy().tobytes()

    def member_seed(self, index: int) -> int:
        """Of the shuffles, augmentations and dropout masks of one member."""
        return derived_seed(self.seed, "member", index)

    def train(self, index: int, checkpoint: Any, progress: bool) -> tuple[nn.Module, list[dict[str, float]]]:
        """Member ``index``, trained by itself, with its history."""
        from whence.zoo import train

        model = self.build(index)
        chosen = {name: getattr(self.settings, name) for name in self.explicit}
        done = train(
            model,
            self.data,
            self.settings,
            validation=self.validation,
            seed=self.member_seed(index),
            checkpoint=checkpoint,
            progress=progress,
            **chosen,
        )
        return done.network, [row.to_dict() for row in done.history]


def _takes_seed(factory: Factory) -> bool:
    try:
        return "seed" in inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return False


@contextmanager
def guarded() -> Iterator[list[int]]:
    """torch's generators are afterwards as before: of the processor, and of GPUs if they are in use (their numbers)."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield devices


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's generators start at ``seed`` inside, and are as before outside."""
    with guarded() as devices:
        torch.default_generator.manual_seed(seed)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)
        yield


def check_factory(factory: Any, processes: int) -> None:
    """Something that makes networks; and, for processes, that can be sent to them."""
    if isinstance(factory, nn.Module):
        raise BadOption(
            "fit_ensemble takes a function that makes a fresh network, not a network: pass lambda: Net(), or the class."
        )
    if not callable(factory):
        raise BadOption(f"the factory must be a function that makes a network, not a {type(factory).__name__}.")
    _check_arguments(factory)
    if not processes:
        return
    try:
        pickle.dumps(factory)
    except Exception as error:
        raise BadOption(
            f"processes={processes} needs a factory that can be pickled, and this one cannot ({error}); define it with "
            "def at the top of a module, or pass processes=0."
        ) from error


def _check_arguments(factory: Factory) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # made in C
        return
    try:
        signature.bind(**({"seed": 0} if _takes_seed(factory) else {}))
    except TypeError as error:
        raise BadOption(
            f"the factory is called without arguments, or with seed= if it takes one, and this one cannot be "
            f"({error}); pass lambda: Net(…)."
        ) from error
