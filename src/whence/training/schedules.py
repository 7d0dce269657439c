"""Learning-rate schedules: factors of the base rate during training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

from whence.errors import BadOption, one_of


@dataclass(frozen=True)
class Schedule(ABC):
    """A factor of the base learning rate."""

    @abstractmethod
    def factor(self, epoch: float, epochs: int) -> float:
        """The factor at ``epoch`` (completed epochs plus the fraction of the current one) of ``epochs``."""

    @property
    def depends_on_length(self) -> bool:
        """Whether the factors depend on the number of epochs."""
        return True

    def spec(self) -> dict[str, Any]:
        return {"name": type(self).__name__.lower(), **asdict(self)}


@dataclass(frozen=True)
class Constant(Schedule):
    """Always 1."""

    depends_on_length = False

    def factor(self, epoch: float, epochs: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Step(Schedule):
    """Multiply by ``gamma`` after every ``every`` epochs; by default after every quarter of the training."""

    every: int | None = None
    gamma: float = 0.2

    def __post_init__(self) -> None:
        if self.every is not None and (not isinstance(self.every, int) or self.every < 1):
            raise BadOption(f"Step(every={self.every}): must be a whole number of epochs, 1 or more.")

    @property
    def depends_on_length(self) -> bool:
        return self.every is None

    def factor(self, epoch: float, epochs: int) -> float:
        return self.gamma ** int(epoch / (self.every or max(1, epochs / 4)))


@dataclass(frozen=True)
class Milestones(Schedule):
    """Multiply by ``gamma`` at each of the epochs ``at``; by default at 30%, 60% and 80% of the training."""

    at: tuple[float, ...] | None = None
    gamma: float = 0.2

    def __post_init__(self) -> None:
        if self.at is not None and not isinstance(self.at, tuple):
            raise BadOption(f"Milestones(at={self.at!r}): must be a tuple of epochs, such as (60, 120, 160).")

    @property
    def depends_on_length(self) -> bool:
        return self.at is None

    def factor(self, epoch: float, epochs: int) -> float:
        at = (0.3 * epochs, 0.6 * epochs, 0.8 * epochs) if self.at is None else self.at
        return self.gamma ** sum(epoch >= milestone for milestone in at)


@dataclass(frozen=True)
class _Decay(Schedule):
    """Up from 0 in ``warmup`` epochs, then down to ``final`` by the end."""

    warmup: float = 0.0
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup < 0 or not 0 <= self.final <= 1:
            raise BadOption(
                f"warmup={self.warmup} epochs and final={self.final} of the rate: must be 0 or more, and 0 to 1."
            )

    def factor(self, epoch: float, epochs: int) -> float:
        if epoch < self.warmup:
            return epoch / self.warmup
        done = min(1.0, (epoch - self.warmup) / max(epochs - self.warmup, 1e-9))
        return self.final + (1 - self.final) * self._left(done)

    @abstractmethod
    def _left(self, done: float) -> float:
        """The factor, from 1 to 0 as ``done`` goes from 0 to 1."""


@dataclass(frozen=True)
class Cosine(_Decay):
    """Up from 0 in ``warmup`` epochs, then half a cosine down to ``final``."""

    def _left(self, done: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class Linear(_Decay):
    """Up from 0 in ``warmup`` epochs, then linearly down to ``final``."""

    def _left(self, done: float) -> float:
        return 1 - done


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant, "step": Step, "milestones": Milestones, "cosine": Cosine, "linear": Linear,
}  # fmt: skip


def resolve(schedule: str | Schedule) -> Schedule:
    """A schedule, or the name of one with its defaults."""
    if isinstance(schedule, Schedule):
        return schedule
    if not isinstance(schedule, str):
        raise BadOption(f"schedule={schedule!r} is neither a name nor a Schedule. Known: {', '.join(SCHEDULES)}.")
    return SCHEDULES[one_of(schedule, SCHEDULES, "schedule")]()
