"""Learning-rate schedules: a factor of the base rate at a point of the training, 0 ≤ progress ≤ 1."""

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
        """At ``epoch`` (whole epochs done plus the part of this one) of ``epochs``."""

    def spec(self) -> dict[str, Any]:
        return {"name": type(self).__name__.lower(), **asdict(self)}


@dataclass(frozen=True)
class Constant(Schedule):
    """Always 1."""

    def factor(self, epoch: float, epochs: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Step(Schedule):
    """Times ``gamma`` after every ``every`` epochs."""

    every: int = 50
    gamma: float = 0.2

    def factor(self, epoch: float, epochs: int) -> float:
        return self.gamma ** (int(epoch) // self.every)


@dataclass(frozen=True)
class Milestones(Schedule):
    """Times ``gamma`` at each of the epochs ``at``."""

    at: tuple[int, ...] = (60, 120, 160)
    gamma: float = 0.2

    def factor(self, epoch: float, epochs: int) -> float:
        return self.gamma ** sum(epoch >= milestone for milestone in self.at)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Up from 0 in ``warmup`` epochs, then half a cosine down to ``final``."""

    warmup: float = 0.0
    final: float = 0.0

    def factor(self, epoch: float, epochs: int) -> float:
        if epoch < self.warmup:
            return epoch / self.warmup
        part = min(1.0, (epoch - self.warmup) / max(epochs - self.warmup, 1e-9))
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * part))


@dataclass(frozen=True)
class Linear(Schedule):
    """Up from 0 in ``warmup`` epochs, then in a straight line down to ``final``."""

    warmup: float = 0.0
    final: float = 0.0

    def factor(self, epoch: float, epochs: int) -> float:
        if epoch < self.warmup:
            return epoch / self.warmup
        part = min(1.0, (epoch - self.warmup) / max(epochs - self.warmup, 1e-9))
        return 1 - (1 - self.final) * part


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
