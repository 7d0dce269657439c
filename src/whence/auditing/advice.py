"""A step of what to do next, and the order of the steps."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from whence.report.record.common import Tone


class Rank(IntEnum):
    """The order of the steps."""

    INVALID = 0  # the audit itself cannot be trusted
    POOR = 1
    MIXED = 2
    GAIN = 3


RANKS: dict[Tone, Rank] = {"poor": Rank.POOR, "mixed": Rank.MIXED}
TONES: dict[Rank, Tone] = {Rank.INVALID: "poor", Rank.POOR: "poor", Rank.MIXED: "mixed", Rank.GAIN: "note"}


class Step(NamedTuple):
    """What to do, and the number that supports it."""

    rank: Rank
    effect: float  # relative change that the step is about; larger first
    words: str
    because: str

    @property
    def tone(self) -> Tone:
        return TONES[self.rank]
