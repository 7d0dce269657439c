"""Scores of single test inputs in the record of an audit."""

from __future__ import annotations

from dataclasses import dataclass

from whence.report.record.common import Count, Numbers


@dataclass(frozen=True)
class ScoresOf:
    """Scores of one network, means over the elements of each input; ``rmse`` holds squared errors, ``accuracy`` and
    ``coverage`` shares of right answers and of true values inside 95% intervals."""

    accuracy: Numbers | None = None
    nll: Numbers | None = None
    brier: Numbers | None = None
    rmse: Numbers | None = None
    crps: Numbers | None = None
    coverage: Numbers | None = None
    width: Numbers | None = None


@dataclass(frozen=True)
class InputScores:
    """Scores of every test input, in the order in which they were read."""

    ids: tuple[str, ...]  # the beginning of the SHA-256 of each input with its target
    counts: tuple[Count, ...] | None  # scored elements of each input, if not one
    plain: ScoresOf
    bayesian: ScoresOf
    recalibrated: ScoresOf | None = None
