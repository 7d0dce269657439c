"""Checks of predicted numbers, in the section on quality."""

from __future__ import annotations

from dataclasses import dataclass

from whence.report.record.common import Count, Estimate, Number, Numbers, PlainAndBayesian, Sentences


@dataclass(frozen=True)
class LevelCoverage:
    """Share of true values inside the central intervals of one level."""

    level: float
    plain: Estimate
    bayesian: Estimate
    recalibrated: Estimate | None = None
    joint: Estimate | None = None  # the Bayesian one with an interval that holds for all levels together

    @property
    def judged(self) -> Estimate:
        return self.joint or self.bayesian


@dataclass(frozen=True)
class PitCounts:
    """Histogram of the probability integral transform in equal bins, and the range of a share by chance."""

    edges: Numbers
    counts: PlainAndBayesian[tuple[Count, ...]]
    low: Number
    high: Number
    distance: Estimate | None = None  # largest difference of the distribution of F from the uniform one (Bayesian)
    mean: float | None = None  # of F (Bayesian); below 0.5 where predictions are too high


@dataclass(frozen=True)
class SpreadBin:
    """Inputs of similar predicted standard deviation, and the root mean squared error of their predictions."""

    std: Number
    error: Estimate


@dataclass(frozen=True)
class OutputChecks:
    """One output: some predictions beside the truth, and its scores."""

    name: str
    unit: str | None
    predicted: Numbers
    true: Numbers
    rmse: Estimate
    coverage: Estimate  # of 95% intervals
    width: Estimate
    spread: tuple[SpreadBin, ...]
    bias: Estimate | None = None  # mean of predicted minus true values


@dataclass(frozen=True)
class Noise:
    """The standard deviation of the noise of one output, where it is the same for all inputs."""

    plain: Number
    bayesian: Number
    recalibrated: Number = None
    estimated: bool = False  # that of the plain network from the training residuals


@dataclass(frozen=True)
class NumberChecks:
    """Checks of the predictive distribution of numbers."""

    coverage: tuple[LevelCoverage, ...]
    pit: PitCounts
    outputs: tuple[OutputChecks, ...]
    unlisted: Count  # outputs that are not shown
    words: Sentences
    noise: Noise | None = None
