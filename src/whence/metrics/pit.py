"""Probability integral transform: the predicted probability of a smaller value than the true one.

Uniform between 0 and 1 where the predictive distribution is right (Dawid 1984, J. R. Stat. Soc. A 147). Too many values
at both ends mean that it is too narrow, too many in the middle that it is too wide, more at one end that it is shifted.

Index legend: N scored elements, S draws, B bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import NotDefined, whole_number
from whence.metrics.elements import ArrayLike
from whence.metrics.intervals import Estimate
from whence.metrics.regression import (
    DistributionForecast,
    EmpiricalForecast,
    Forecast,
    NormalForecast,
    PoissonForecast,
    read_numbers,
)
from whence.metrics.selective import binomial_below


def pit(prediction: Any, targets: ArrayLike, *, mask: ArrayLike | None = None, seed: int = 0) -> Tensor:
    """F(y) of every scored element, [N] in float64.

    For counts and draws, where F jumps at y, a value drawn uniformly from the jump (Czado et al. 2009, Biometrics 65),
    so that it is uniform there too.
    """
    whole_number(seed, "seed", None)
    found, y, _ = read_numbers("pit", prediction, targets, {"mask": mask})
    low, high = _below(found, y), _up_to(found, y)
    part = torch.rand(len(y), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(y.device)
    return (low + part * (high - low)).clamp(0, 1)


def _up_to(found: Forecast, y: Tensor) -> Tensor:
    """P(Y ≤ y)."""
    if isinstance(found, NormalForecast):
        return torch.special.ndtr((y - found.means) / found.variances.sqrt()).mean(0)
    if isinstance(found, PoissonForecast):
        return torch.special.gammaincc(y + 1, found.rates).mean(0)
    if isinstance(found, EmpiricalForecast):  # y is one more draw, with an equal chance for every rank
        return ((found.draws <= y).sum(0) + 1).double() / (len(found.draws) + 1)
    if isinstance(found, DistributionForecast):
        return found.cdf(y)
    raise NotDefined(f"{found.kind} have no distribution, so no probability integral transform.")


def _below(found: Forecast, y: Tensor) -> Tensor:
    """P(Y < y)."""
    if isinstance(found, PoissonForecast):
        below = torch.special.gammaincc(y.clamp(min=1), found.rates).mean(0)
        return torch.where(y > 0, below, 0.0)
    if isinstance(found, EmpiricalForecast):
        return (found.draws < y).sum(0).double() / (len(found.draws) + 1)
    return _up_to(found, y)


@dataclass(frozen=True)
class PitHistogram:
    """Shares of the values in equal bins, and the range of a share by chance."""

    edges: tuple[float, ...]  # B + 1
    counts: tuple[int, ...]  # B
    low: float  # of a share in one bin: all bins are inside with probability 95% if the prediction is right
    high: float

    @property
    def outside(self) -> int:
        """Number of bins outside the range."""
        total = sum(self.counts)
        return sum(not self.low <= count / total <= self.high for count in self.counts)


def pit_histogram(values: Tensor, inputs: int, bins: int = 10, level: float = 0.95) -> PitHistogram:
    """``inputs`` is the number of independent inputs behind the values; with several values of an input the range is at
    least as wide as it needs to be."""
    counts = torch.bincount((values * bins).long().clamp(max=bins - 1), minlength=bins)
    low, high = _range(inputs, 1 / bins, (1 - level) / bins / 2)
    return PitHistogram(tuple(i / bins for i in range(bins + 1)), tuple(counts.tolist()), low / inputs, high / inputs)


def pit_distance(values: Tensor, inputs: int, level: float = 0.95) -> Estimate:
    """The largest difference of the distribution of the values from the uniform one, with the interval of
    Dvoretzky, Kiefer, Wolfowitz and Massart (1990, Ann. Probab. 18); ``inputs`` as for :func:`pit_histogram`."""
    ordered, count = values.double().sort().values, len(values)
    steps = torch.arange(count + 1, dtype=torch.float64, device=ordered.device) / count
    found = float(torch.maximum((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
    reach = math.sqrt(math.log(2 / (1 - level)) / (2 * inputs))
    return Estimate(found, max(0.0, found - reach), min(1.0, found + reach), level, count, name="pit_distance")


def _range(trials: int, share: float, tail: float) -> tuple[int, int]:
    """Counts outside of which at most ``tail`` of the binomial distribution lies on either side."""
    first = _first(trials, share, lambda below: below > tail)
    return first, _first(trials, share, lambda below: below >= 1 - tail)


def _first(trials: int, share: float, holds: Any) -> int:
    """The smallest count whose probability P(X ≤ count) holds, by bisection."""
    low, high = -1, trials
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(binomial_below(middle, trials, share)) else (middle, high)
    return high
