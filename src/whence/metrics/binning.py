"""Bins of confidence, and the sums over them in every resample.

Index legend: N elements, G groups, B resamples, Q binned columns (1, or one for each class), K = Q · bins cells.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import BadOption, one_of
from whence.metrics.elements import Elements, is_whole

TOGETHER = 32  # columns whose totals are summed in one product


def check_binning(bins: int, binning: str) -> None:
    if not is_whole(bins) or bins < 1:
        raise BadOption(f"bins={bins!r} is no count of bins; take 15.")
    one_of(binning, ("width", "mass"), "binning")


def edges(bins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Borders of equal width as the probabilities' own dtype has them, so that 0.8 lies on the border 0.8."""
    return torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=device).to(dtype).double()


def assign(p: Tensor, weights: Tensor, bins: int, binning: str, dtype: torch.dtype) -> Tensor:
    """Bin of each probability [N]: (low, high] of equal width with 0 in the first, or of equal weight.

    Of equal weight: ties stay together, in the bin where the middle of their weight falls.
    """
    if binning == "width":
        return torch.bucketize(p, edges(bins, dtype, p.device)[1:-1])
    _, block = torch.unique(p, return_inverse=True)
    weight = torch.bincount(block, weights)
    middle = weight.cumsum(0) - weight / 2
    return (middle / weight.sum() * bins).long().clamp(max=bins - 1)[block]


@dataclass(frozen=True)
class Cells:
    """Elements in bins, once for each column."""

    index: Tensor  # [N, Q] bin of each element
    p: Callable[[int], Tensor]  # probability of one column, [N]
    gap: Callable[[int], Tensor]  # truth − probability, [N]
    bins: int
    elements: Elements

    @property
    def columns(self) -> int:
        return self.index.shape[1]

    @functools.cached_property
    def fullest(self) -> list[int]:
        """The bin of each column that holds most; its sums are had by subtraction."""
        return [int(torch.bincount(self.index[:, q]).argmax()) for q in range(self.columns)]

    @functools.cached_property
    def elsewhere(self) -> list[Tensor]:
        """Elements of each column that are in another bin."""
        return [(self.index[:, q] != full).nonzero().flatten() for q, full in enumerate(self.fullest)]

    def small_cells(self) -> tuple[Tensor, Tensor]:
        """What resamples of few elements do not know: √(n / (n − 1)) and the least variance of the gap, [K] each.

        n is Kish's number of groups in the cell; the variance is that of a share of n, with two more as predicted.
        """
        members, factors, variances = self.elements, [], []
        for q in range(self.columns):
            place, size, weights = self.index[:, q], self.bins, members.weights
            if members.group is None:
                squares = torch.bincount(place, weights.square(), size)
            else:
                sums = torch.bincount(members.group * size + place, weights, members.groups * size)
                squares = sums.reshape(-1, size).square().sum(0)
            total = torch.bincount(place, weights, size)
            count = total.square() / squares
            predicted, gap = (torch.bincount(place, weights * v, size) / total for v in (self.p(q), self.gap(q)))
            share = (count * (predicted + gap) + 2 * predicted) / (count + 2)
            factors.append((1 - 1 / count.clamp(min=2)).rsqrt())
            variances.append(share * (1 - share) / count)
        return torch.cat(factors), torch.cat(variances)

    def sums(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Shares of the weight and mean gaps of all cells, [B, K] each, from counts [B, G]; gap 0 where empty."""
        shares, gaps = [], []
        total = counts @ self.elements.sums(torch.ones_like(self.elements.weights))  # [B, 1]
        for start in range(0, self.columns, TOGETHER):
            block = range(start, min(start + TOGETHER, self.columns))
            totals = counts @ self.elements.sums(*(self.gap(q) for q in block))
            for q, of_column in zip(block, totals.unbind(1), strict=True):
                weight, gap = self._column(q, counts, total[:, 0], of_column)
                filled = weight > 1e-12 * total
                shares.append(torch.where(filled, weight / total, 0.0))
                gaps.append(torch.where(filled, gap / weight, 0.0))
        return torch.cat(shares, 1), torch.cat(gaps, 1)

    def _column(self, q: int, counts: Tensor, total: Tensor, total_gap: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and weighted gaps of the bins of one column, [B, bins] each."""
        which, members = self.elsewhere[q], self.elements
        bin_of = self.index[which, q]
        weight = members.weights[which]
        row = torch.arange(len(which), device=which.device) if members.group is None else members.group[which]
        sums = weight.new_zeros(len(which) if members.group is None else members.groups, 2 * self.bins)
        sums.index_put_((row, bin_of), weight, accumulate=True)
        sums.index_put_((row, self.bins + bin_of), weight * self.gap(q)[which], accumulate=True)
        drawn = counts.index_select(1, which) if members.group is None else counts
        found = drawn @ sums
        weights, gaps = found[:, : self.bins], found[:, self.bins :]
        weights[:, self.fullest[q]] = total - weights.sum(1)
        gaps[:, self.fullest[q]] = total_gap - gaps.sum(1)
        return weights, gaps
