"""Intervals for few inputs: the studentised bootstrap of a mean, and exact intervals of shares.

The BCa interval of a mean is too narrow below some hundred inputs of a skewed loss. Resampled means, each divided by
its own standard error, follow the skewness. Index legend: N elements, G groups that are resampled as one, B resamples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.metrics.elements import Elements
from whence.metrics.intervals import UNBOUNDED, Bounds, Estimate, resamples
from whence.metrics.proportions import clustered_share, share_of

LEAST = 0.2  # smallest standard error of a resample, relative to that of the data


def mean_of_few(
    name: str, values: Tensor, elements: Elements, bounds: Bounds = UNBOUNDED, root: bool = False
) -> Estimate:
    """The mean of ``values`` [N], or its root, with a bootstrap-t interval (Efron & Tibshirani 1993, ch. 12.5).

    If one value dominates, resamples without it have hardly any standard error; a lower limit of a fifth keeps the
    upper end near six times the mean, where the exact limit of one event is (5.6). With unequal numbers of elements in
    the groups the mean is a ratio of sums, and its standard error is linearised. Without variation, or with one group,
    low and high are NaN.
    """
    level, count = elements.options.level, elements.groups
    sums = elements.sums(values.double(), torch.ones_like(elements.weights))  # [G, 2]
    sums = sums[sums[:, 1].argsort(stable=True)]  # the interval does not depend on the order of the inputs
    sums = sums[sums[:, 0].argsort(stable=True)]
    value, error = (float(one[0]) for one in _ratio(elements.once, sums))
    low = high = math.nan
    if count > 1 and error > 0:
        drawn = [_ratio(counts, sums) for counts in resamples(elements)]
        means, errors = (torch.cat(part) for part in zip(*drawn, strict=True))
        tails = torch.tensor([(1 + level) / 2, (1 - level) / 2], dtype=torch.float64)
        away = torch.quantile(((means - value) / errors.clamp(min=LEAST * error)).cpu(), tails)
        low, high = (min(max(value - float(t) * error, bounds[0]), bounds[1]) for t in away)
    if root:
        value, low, high = (math.sqrt(max(one, 0.0)) if not math.isnan(one) else one for one in (value, low, high))
    return Estimate(value, low, high, level, elements.count, elements.options.resamples, name)


def _ratio(counts: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Σ v / Σ w and its standard error in every row of counts [B, G], [B] each."""
    v, w = sums.unbind(1)
    total_v, total_w, vv, vw, ww = (counts @ torch.stack([v, w, v * v, v * w, w * w], 1)).unbind(1)
    mean, number = total_v / total_w, counts.sum(1)
    squares = (vv - 2 * mean * vw + mean.square() * ww).clamp(min=0)  # Σ (v − mean w)²
    return mean, (squares * number / (number - 1).clamp(min=1)).sqrt() / total_w


def share_of_few(name: str, hits: Tensor, elements: Elements) -> Estimate:
    """The weighted share of true values [N]: exact if every element is a group of its own, else clustered."""
    sums = elements.sums(hits.double(), torch.ones_like(elements.weights))
    if elements.group is None and bool((elements.weights == 1).all()):
        found = share_of(name, int(hits.sum()), elements.count, elements.options.level)
    else:
        found = clustered_share(name, sums[:, 0], sums[:, 1], elements.options.level)
    assert found is not None  # there is an element
    return found
