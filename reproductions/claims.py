"""Verdicts on claims, from numbers alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "does not hold", "cannot be told"]
# 97.5 % points of Student's t for 1, 2, … degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Interval:
    """A figure and what it may be."""

    mean: float
    low: float
    high: float

    def text(self, digits: int = 3, unit: str = "") -> str:
        return f"{self.mean:.{digits}f}{unit} ({self.low:.{digits}f} to {self.high:.{digits}f})"

    def times(self, factor: float) -> Interval:
        low, high = sorted((self.low * factor, self.high * factor))
        return Interval(self.mean * factor, low, high)


@dataclass(frozen=True)
class Claim:
    """What the paper says, what was found, and whether they agree."""

    claim: str
    where: str  # in the paper
    ours: str
    verdict: Verdict


def interval(values: Sequence[float]) -> Interval:
    """Mean over seeds with its 95 % Student interval."""
    if len(values) < 2:
        raise ValueError("an interval over seeds needs two of them")
    mean = statistics.fmean(values)
    degrees = len(values) - 1
    point = STUDENT[degrees - 1] if degrees <= len(STUDENT) else 2.0
    half = point * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def above(found: Interval, bound: float = 0.0) -> Verdict:
    """Is it larger than ``bound``?"""
    if found.low > bound:
        return "holds"
    return "does not hold" if found.high < bound else "cannot be told"


def below(found: Interval, bound: float = 0.0) -> Verdict:
    """Is it smaller than ``bound``?"""
    return above(found.times(-1.0), -bound)


def within(found: Interval, bound: float) -> Verdict:
    """Is it nearer to 0 than ``bound``?"""
    if -bound < found.low and found.high < bound:
        return "holds"
    return "does not hold" if found.low > bound or found.high < -bound else "cannot be told"


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Seed by seed, ``first`` − ``second``."""
    return interval([a - b for a, b in zip(first, second, strict=True)])


def every(*verdicts: Verdict) -> Verdict:
    """All of them."""
    if "does not hold" in verdicts:
        return "does not hold"
    return "cannot be told" if "cannot be told" in verdicts else "holds"
