"""Calibration errors and reliability tables.

Index legend: N elements, G groups, C classes, B resamples, Q binned columns (1, or one for each class), K = Q · bins
cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, Unpack

import numpy as np
import torch
from torch import Tensor

from whence.errors import BadOption, one_of, whole_number
from whence.metrics.classification import Labels, read_labels
from whence.metrics.elements import ArrayLike, Elements, ForLabels
from whence.metrics.intervals import (
    SHARE,
    Estimate,
    Norm,
    binomial_bound,
    estimate,
    invert_test,
    normal_quantile,
    resamples,
)
from whence.metrics.means import interval_of_share
from whence.tables import Table

Binning = Literal["width", "mass"]
COLUMNS_AT_ONCE = 32  # columns summed in one product


def ece(
    prediction: Any,
    targets: ArrayLike,
    *,
    bins: int = 15,
    binning: Binning = "width",
    norm: Literal["l1", "l2"] = "l1",
    **common: Unpack[ForLabels],
) -> Estimate:
    """Expected calibration error of the largest probability (Guo et al. 2017, eq. 3).

    ``norm="l1"``: Σ_b w_b |accuracy_b − confidence_b|; ``"l2"``: the root of the weighted squares. The value is biased
    upward for few inputs; the interval is computed by inverting a test, and extended to contain the value. Its lower
    end is not below what the difference of mean confidence and accuracy shows.
    """
    chosen = weighted_l1 if one_of(norm, ("l1", "l2"), "norm") == "l1" else weighted_l2
    cells = _confidence_cells(Bins.of(bins, binning), read_labels("ece", prediction, targets, common))
    return _calibration_error("ece", chosen, cells, pool=True)


def mce(
    prediction: Any, targets: ArrayLike, *, bins: int = 15, binning: Binning = "width", **common: Unpack[ForLabels]
) -> Estimate:
    """Maximum calibration error: the largest gap of any non-empty bin (Naeini et al. 2015)."""
    cells = _confidence_cells(Bins.of(bins, binning), read_labels("mce", prediction, targets, common))
    return _calibration_error("mce", largest, cells)


def classwise_ece(
    prediction: Any, targets: ArrayLike, *, bins: int = 15, binning: Binning = "width", **common: Unpack[ForLabels]
) -> Estimate:
    """Mean over classes of the calibration error of p_c against 1[y = c] (Kull et al. 2019, eq. 2)."""
    chosen = Bins.of(bins, binning)
    found = read_labels("classwise_ece", prediction, targets, common)
    count = found.probs.shape[1]
    index = [chosen.assign(found.column(c), found.elements.weights, found.dtype) for c in range(count)]

    def gap(c: int) -> Tensor:
        return (found.truth == c).double() - found.column(c)

    def over_classes(shares: Tensor, gaps: Tensor) -> Tensor:
        return weighted_l1(shares, gaps) / count

    cells = Cells(torch.stack(index, 1), found.column, gap, bins, found.elements)
    return _calibration_error("classwise_ece", over_classes, cells)


def weighted_l1(weights: Tensor, gaps: Tensor) -> Tensor:
    """Σ_b w_b |g_b|."""
    return (weights * gaps.abs()).sum(1)


def weighted_l2(weights: Tensor, gaps: Tensor) -> Tensor:
    """√(Σ_b w_b g_b²)."""
    return (weights * gaps.square()).sum(1).sqrt()


def largest(weights: Tensor, gaps: Tensor) -> Tensor:
    """max |g_b| over non-empty cells."""
    return torch.where(weights > 0, gaps.abs(), torch.zeros_like(gaps)).amax(1)


# Bins, and the sums over them in every resample


@dataclass(frozen=True)
class Bins:
    """Bins of probability, of equal width or of equal weight."""

    count: int
    equal_width: bool

    @classmethod
    def of(cls, bins: int, binning: str) -> Bins:
        return cls(whole_number(bins, "bins"), one_of(binning, ("width", "mass"), "binning") == "width")

    def edges(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Edges of equal width in the dtype of the probabilities, so that 0.8 is exactly on the edge 0.8."""
        return torch.linspace(0, 1, self.count + 1, dtype=torch.float64, device=device).to(dtype).double()

    def assign(self, p: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
        """Bin of each probability [N]: (low, high] of equal width with 0 in the first, or of equal weight.

        With equal weight, ties stay together, in the bin that contains the middle of their weight.
        """
        if self.equal_width:
            return torch.bucketize(p, self.edges(dtype, p.device)[1:-1])
        _, block = torch.unique(p, return_inverse=True)
        weight = torch.bincount(block, weights)
        middle = weight.cumsum(0) - weight / 2
        return (middle / weight.sum() * self.count).long().clamp(max=self.count - 1)[block]

    def ends(self, p: Tensor, index: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Edges of equal width, or the smallest and largest probability in each bin; [bins] each."""
        if self.equal_width:
            edges = self.edges(dtype, p.device)
            return edges[:-1], edges[1:]
        nan = torch.full((self.count,), math.nan, dtype=torch.float64, device=p.device)
        low = nan.scatter_reduce(0, index, p, "amin", include_self=False)
        return low, nan.scatter_reduce(0, index, p, "amax", include_self=False)


@dataclass(frozen=True)
class Cells:
    """Elements in bins, once for each column."""

    index: Tensor  # [N, Q] bin of each element
    p: Callable[[int], Tensor]  # probability of one column, [N]
    gap: Callable[[int], Tensor]  # truth − probability, [N]
    bins: int
    elements: Elements

    def resampling_correction(self) -> tuple[Tensor, Tensor]:
        """Corrections for cells with few elements: √(n / (n − 1)), and the smallest variance of the gap; [K] each.

        n is Kish's number of groups in the cell; the variance is that of a share of n, plus two as predicted.
        """
        factors, variances, weights = [], [], self.elements.weights
        for q, place in enumerate(self.index.unbind(1)):
            total = torch.bincount(place, weights, self.bins)
            count = total.square() / self.elements.squared_weights(place, self.bins)
            predicted, gap = (torch.bincount(place, weights * v, self.bins) / total for v in (self.p(q), self.gap(q)))
            share = (count * (predicted + gap) + 2 * predicted) / (count + 2)
            factors.append((1 - 1 / count.clamp(min=2)).rsqrt())
            variances.append(share * (1 - share) / count)
        return torch.cat(factors), torch.cat(variances)

    def sums(self) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Counts [B, G] → shares of the weight and mean gaps of all cells, [B, K] each; gap 0 if empty.

        The fullest bin of each column is computed by subtraction from the total, so that only the others are summed.
        """
        members, columns = self.elements, self.index.shape[1]
        fullest = [int(torch.bincount(self.index[:, q]).argmax()) for q in range(columns)]
        others = [(self.index[:, q] != full).nonzero().flatten() for q, full in enumerate(fullest)]
        weight_of_groups = members.sums(torch.ones_like(members.weights))

        def sums(counts: Tensor) -> tuple[Tensor, Tensor]:
            shares, gaps = [], []
            total = counts @ weight_of_groups  # [B, 1]
            for start in range(0, columns, COLUMNS_AT_ONCE):
                block = range(start, min(start + COLUMNS_AT_ONCE, columns))
                totals = counts @ members.sums(*(self.gap(q) for q in block))
                for q, total_gap in zip(block, totals.unbind(1), strict=True):
                    weight, gap = self._column(q, counts, others[q])
                    weight[:, fullest[q]] = total[:, 0] - weight.sum(1)
                    gap[:, fullest[q]] = total_gap - gap.sum(1)
                    filled = weight > 1e-12 * total
                    shares.append(torch.where(filled, weight / total, 0.0))
                    gaps.append(torch.where(filled, gap / weight, 0.0))
            return torch.cat(shares, 1), torch.cat(gaps, 1)

        return sums

    def _column(self, q: int, counts: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and weighted gaps of the bins of one column over some elements, [B, bins] each."""
        members, bin_of = self.elements, self.index[which, q]
        weight, gap = members.weights[which], self.gap(q)[which]
        if members.group is None:
            row, size, drawn = torch.arange(len(which), device=which.device), len(which), counts.index_select(1, which)
        else:
            row, size, drawn = members.group[which], members.groups, counts
        sums = weight.new_zeros(size, 2 * self.bins)
        sums.index_put_((row, bin_of), weight, accumulate=True)
        sums.index_put_((row, self.bins + bin_of), weight * gap, accumulate=True)
        found = drawn @ sums
        return found[:, : self.bins], found[:, self.bins :]


def _confidence_cells(bins: Bins, found: Labels) -> Cells:
    """Cells of the largest probability."""
    p = found.confidence
    gap = found.correct - p
    index = bins.assign(p, found.elements.weights, found.dtype)
    return Cells(index.unsqueeze(1), lambda _: p, lambda _: gap, bins.count, found.elements)


# The error and its interval


def _calibration_error(name: str, norm: Norm, cells: Cells, pool: bool = False) -> Estimate:
    """The error of the cells and its interval by inverting a test, with the bins of the whole sample."""
    members, sums = cells.elements, cells.sums()
    share, gap = sums(members.once)
    filled = (share[0] > 0).nonzero().flatten()
    observed = torch.cat([share[:, filled], gap[:, filled]])
    value, level = float(norm(observed[:1], observed[1:])), members.options.level

    def interval() -> tuple[float, float]:
        drawn = [[s[:, filled], g[:, filled]] for s, g in map(sums, resamples(members))]
        shares, gaps = (torch.cat(part) for part in zip(*drawn, strict=True))
        ends = binomial_bound(value, norm(shares, gaps), level, SHARE, members.groups)
        if ends is None:
            factor, least = (part[filled] for part in cells.resampling_correction())
            noise = _noise((gaps - observed[1]) * factor, shares > 0, least, int(members.options.seed))
            weights = shares if norm is largest else observed[:1].expand_as(shares)
            every = [
                invert_test(norm, observed, direction, weights, noise, level)
                for direction in _directions(observed[0], observed[1], noise, pool)
            ]
            ends = min(low for low, _ in every), max(high for _, high in every)
            if pool:
                ends = _beyond_the_mean(ends, observed, shares, gaps, level)
        return min(ends[0], value), min(max(ends[1], value), 1.0)

    return estimate(name, value, members, interval)


def _beyond_the_mean(
    ends: tuple[float, float], observed: Tensor, shares: Tensor, gaps: Tensor, level: float
) -> tuple[float, float]:
    """A lower end that does not contradict the mean gap, since |Σ w g| ≤ Σ w |g|.

    Being a second lower end that may be wrong, it is wrong in a fifth as many cases.
    """
    mean, error = float((observed[0] * observed[1]).sum()), float((shares * gaps).sum(1).std())
    low = max(ends[0], abs(mean) - normal_quantile(1 - (1 - level) / 10) * error)
    return low, max(ends[1], low)


def _noise(resampled: Tensor, filled: Tensor, least: Tensor, seed: int) -> Tensor:
    """Noise of resampled gaps [B, K], with normal noise added in cells whose variance is below the ``least`` [K]."""
    variance = (resampled.square() * filled).sum(0) / filled.sum(0).clamp(min=1)
    missing = (least - variance).clamp(min=0).sqrt()
    normal = torch.randn(resampled.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return resampled * filled + missing * normal.to(resampled.device)


def _directions(weights: Tensor, gaps: Tensor, noise: Tensor, pool: bool) -> list[Tensor]:
    """Candidate directions of the true gaps, [K] each: as observed, all equal, only the significant ones."""
    clear = gaps * (gaps.abs() > 1.5 * noise.std(0))
    found = [_pooled(weights, gaps, noise) if pool else gaps, gaps.sign(), clear]
    return [direction for direction in found if bool((direction != 0).any())] or [torch.ones_like(gaps)]


def _pooled(weights: Tensor, gaps: Tensor, noise: Tensor) -> Tensor:
    """Gaps [K] shrunk towards their mean until their variance matches that without noise [B, K].

    Observed gaps vary more than true ones, which would make the bias correction too large.
    """
    mean = (weights * gaps).sum()
    observed = (weights * (gaps - mean).square()).sum()
    of_noise = (weights * (1 - weights) * noise.square().mean(0)).sum()
    factor = (1 - of_noise / observed).clamp(min=0).sqrt() if float(observed) > 0 else observed
    return mean + factor * (gaps - mean)


# Reliability tables


@dataclass(frozen=True)
class Reliability:
    """One row for each bin; NaN for empty bins."""

    low: Tensor  # ends of the bins; of equal weight: the smallest and largest probability in each
    high: Tensor
    confidence: Tensor  # mean probability
    accuracy: Tensor  # share of correct predictions
    count: Tensor  # elements
    weight: Tensor  # share of the weight
    gap: Tensor  # accuracy − confidence
    accuracy_low: Tensor  # exact interval of the accuracy, clustered where elements belong together
    accuracy_high: Tensor

    def to_pandas(self) -> Any:
        """The table as a ``pandas.DataFrame``."""
        return Table({f.name: getattr(self, f.name) for f in fields(self)}).to_pandas()


def reliability(
    prediction: Any,
    targets: ArrayLike,
    *,
    bins: int = 15,
    binning: Binning = "width",
    of: Literal["confidence"] | int = "confidence",
    **common: Unpack[ForLabels],
) -> Reliability:
    """Accuracy in each bin of the largest probability, or of the probability of one class."""
    chosen = Bins.of(bins, binning)
    found = read_labels("reliability", prediction, targets, common)
    p, hit = _probability_of(found, of)
    weights = found.elements.weights
    index = chosen.assign(p, weights, found.dtype)
    low, high = chosen.ends(p, index, found.dtype)
    weight = torch.bincount(index, weights, bins)
    accuracy = torch.bincount(index, weights * hit, bins) / weight
    confidence = torch.bincount(index, weights * p, bins) / weight
    accuracy_low, accuracy_high = _intervals(hit, index, found.elements, bins)
    return Reliability(
        low=low,
        high=high,
        confidence=confidence,
        accuracy=accuracy,
        count=torch.bincount(index, minlength=bins),
        weight=weight / weight.sum(),
        gap=accuracy - confidence,
        accuracy_low=accuracy_low,
        accuracy_high=accuracy_high,
    )


def _probability_of(found: Labels, of: str | int) -> tuple[Tensor, Tensor]:
    """Probabilities [N], and whether the predicted event occurred [N]."""
    if of == "confidence":
        return found.confidence, found.correct
    count = found.probs.shape[1]
    if not isinstance(of, (int, np.integer)) or not 0 <= of < count:
        raise BadOption(f"of={of!r} is neither 'confidence' nor a class, 0..{count - 1}.")
    return found.column(of), (found.truth == of).double()


def _intervals(hit: Tensor, index: Tensor, members: Elements, bins: int) -> tuple[Tensor, Tensor]:
    """Intervals of the shares of hits [N] in each bin, [bins] each; NaN for empty bins."""
    ends = torch.full((2, bins), math.nan, dtype=torch.float64)
    for place in index.unique().tolist():
        inside = (index == place).nonzero().flatten()
        mine = members.subset(inside)
        sums = mine.sums(hit[inside].double(), torch.ones_like(mine.weights))
        if bool((sums[:, 1] > 0).any()):
            ends[:, place] = torch.tensor(interval_of_share(sums, mine), dtype=torch.float64)
    low, high = ends.to(index.device)
    return low, high
