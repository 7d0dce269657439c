"""The section of an audit about conformal prediction sets and intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whence.report.record.common import Count, Estimate, Number, Numbers, Sentence, Sentences


@dataclass(frozen=True)
class PartCoverage:
    """Coverage and mean size of the sets of one class or label, on test data."""

    name: str
    coverage: Estimate  # with an interval that holds for all rows together
    size: Number


@dataclass(frozen=True)
class OfSets:
    """Sizes of the sets of the test inputs."""

    size: Estimate
    singletons: Number  # share of sets with one answer
    empty: Number
    size_right: Number  # where the most probable answer is right
    size_wrong: Number
    parts: tuple[PartCoverage, ...] | None = None
    several: float | None = None  # share of sets with two or more answers


@dataclass(frozen=True)
class OfIntervals:
    """Widths of the intervals of the test inputs, beside those of the posterior."""

    width: Estimate | None  # None if infinite
    bayesian_coverage: Estimate
    bayesian_width: Estimate


@dataclass(frozen=True)
class ConformalRow:
    """Thresholds for one level, from validation data, and what they reach on test data."""

    level: float
    validation: Count
    thresholds: Numbers  # None for infinite ones
    coverage: Estimate
    chance_low: Number  # the range of the test coverage by chance if validation and test inputs are exchangeable
    chance_high: Number
    sets: OfSets | None = None
    intervals: OfIntervals | None = None


@dataclass(frozen=True)
class ConformalSection:
    """Sets or intervals that hold the truth with a chosen probability, if inputs are exchangeable."""

    kind: Literal["sets", "intervals"]
    score: str
    about: Sentence  # the score in words
    guarantee: Sentence
    limits: Sentence  # of the guarantee
    rows: tuple[ConformalRow, ...]
    words: Sentences

    @property
    def threshold_name(self) -> str:
        """What a threshold of the score is."""
        return {
            "probability": "smallest probability of an answer",
            "cumulative": "sum of the probabilities",
            "normalised": "standard deviations",
        }.get(self.score, "distance")

    def thresholds(self, row: ConformalRow) -> Numbers:
        """As they are shown: of the probability of an answer, where the score is 1 minus that."""
        if self.score != "probability":
            return row.thresholds
        return tuple(None if one is None else 1 - one for one in row.thresholds)
