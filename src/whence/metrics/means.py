"""Means and shares of elements, each with one kind of interval, for any number of inputs.

Shares have the interval of Clopper and Pearson, means a studentised bootstrap: the BCa interval of a mean is too narrow
below some hundred inputs of a skewed loss, while resampled means that are divided by their own standard errors follow
the skewness. Index legend: N elements, G groups that are resampled as one, B resamples.
"""

from __future__ import annotations

import math
from typing import Unpack

import torch
from torch import Tensor

from whence.metrics.elements import ArrayLike, Common, Elements, MetricOptions, elements, tensor
from whence.metrics.intervals import UNBOUNDED, Bounds, Estimate, binomial_bound, estimate, resamples
from whence.metrics.proportions import clustered_interval, exact_interval

ROUNDING = 1e-7  # standard error, relative to the mean, that counts as none: sums of squares lose half of the digits
LEAST = 0.2  # smallest standard error of a resample, relative to that of the data


def mean(name: str, values: Tensor, elements: Elements, bounds: Bounds = UNBOUNDED, root: bool = False) -> Estimate:
    """The weighted mean of ``values`` [N], or its root; bootstrap-t interval (Efron & Tibshirani 1993, ch. 12.5).

    If one value dominates, resamples without it have hardly any standard error; a lower limit of a fifth keeps the
    upper end near six times the mean, where the exact limit of one event is (5.6). With unequal numbers of elements in
    the groups the mean is a ratio of sums, and its standard error is linearised. Without variation the ends are the
    value, or the binomial bound if that is at an end of ``bounds``, or is 0 and could be as much below as above.
    """
    sums = elements.sums(values.double(), torch.ones_like(elements.weights))  # [G, 2]
    value, error = (float(one[0]) for one in _ratio(elements.once, sums))

    def interval() -> tuple[float, float]:
        level = elements.options.level
        if not error > ROUNDING * abs(value):
            drawn = torch.full((1,), value, dtype=torch.float64)
            ends = binomial_bound(value, drawn, level, bounds, elements.groups) or (value, value)
        else:
            ends = _studentised(value, error, sums, elements)
        low, high = (min(max(end, bounds[0]), bounds[1]) for end in ends)
        return (_root(low), _root(high)) if root else (low, high)

    return estimate(name, _root(value) if root else value, elements, interval)


def mean_of(name: str, values: ArrayLike, bounds: Bounds = UNBOUNDED, **common: Unpack[Common]) -> Estimate:
    """The mean of any values, with its interval."""
    given = tensor(values, "values")
    members = elements(given.shape, MetricOptions.read(name, common), given.device)
    return mean(name, given.reshape(-1)[members.keep], members, bounds)


def share(name: str, hits: Tensor, elements: Elements) -> Estimate:
    """The weighted share of true values [N]: exact if every element is a group of its own, otherwise clustered."""
    sums = elements.sums(hits.double(), torch.ones_like(elements.weights))
    right, total = (float(one) for one in sums.sum(0))
    return estimate(name, right / total, elements, lambda: interval_of_share(sums, elements))


def interval_of_share(sums: Tensor, elements: Elements) -> tuple[float, float]:
    """Of Σ hits / Σ weights, from both by group, [G, 2]."""
    level = elements.options.level
    if elements.group is None and bool((elements.weights == 1).all()):
        right, total = (float(one) for one in sums.sum(0))
        return exact_interval(right, total, level)
    return clustered_interval(sums[:, 0], sums[:, 1], elements.count, level)


def _root(value: float) -> float:
    return math.sqrt(max(value, 0.0))


def _studentised(value: float, error: float, sums: Tensor, elements: Elements) -> tuple[float, float]:
    sums = sums[sums[:, 1].argsort(stable=True)]  # the interval does not depend on the order of the inputs
    sums = sums[sums[:, 0].argsort(stable=True)]
    drawn = [_ratio(counts, sums) for counts in resamples(elements)]
    means, errors = (torch.cat(part) for part in zip(*drawn, strict=True))
    level = elements.options.level
    tails = torch.tensor([(1 + level) / 2, (1 - level) / 2], dtype=torch.float64)
    away = torch.quantile(((means - value) / errors.clamp(min=LEAST * error)).cpu(), tails)
    low, high = (value - float(t) * error for t in away)
    return low, high


def _ratio(counts: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Σ v / Σ w and its standard error in every row of counts [B, G], [B] each."""
    v, w = sums.unbind(1)
    total_v, total_w, vv, vw, ww = (counts @ torch.stack([v, w, v * v, v * w, w * w], 1)).unbind(1)
    found, number = total_v / total_w, counts.sum(1)
    squares = (vv - 2 * found * vw + found.square() * ww).clamp(min=0)  # Σ (v − mean w)²
    return found, (squares * number / (number - 1).clamp(min=1)).sqrt() / total_w
