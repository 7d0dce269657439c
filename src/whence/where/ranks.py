"""Rank statistics: average ranks, Spearman's ρ, Cliff's δ, Kruskal–Wallis with its effect size ε²."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def average_ranks(values: Tensor) -> Tensor:
    """1 to n from the smallest on; ties get the mean of their ranks, [n]."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts.double() - 1) / 2)[inverse]


def spearman(x: Tensor, y: Tensor) -> float:
    """Correlation of the ranks; 0 where one of the two is constant."""
    a, b = average_ranks(x), average_ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale else 0.0


def cliffs_delta(x: Tensor, y: Tensor) -> float:
    """P(X > Y) − P(X < Y) (Cliff 1993), from −1 to 1."""
    ordered = y.sort().values
    x = x.contiguous()
    above = torch.searchsorted(ordered, x)
    below = len(y) - torch.searchsorted(ordered, x, right=True)
    return float((above - below).double().mean()) / len(y)


def kruskal(groups: Sequence[Tensor]) -> tuple[float, float]:
    """H of Kruskal & Wallis (1952), corrected for ties, and ε² = (H − k + 1) / (n − k), at least 0."""
    values = torch.cat(list(groups))
    n, k = len(values), len(groups)
    ranks = average_ranks(values)
    sizes = [len(g) for g in groups]
    means = torch.stack([part.mean() for part in ranks.split(sizes)])
    spread = (ranks - ranks.mean()).square().sum()
    if float(spread) == 0 or k < 2 or n <= k:
        return 0.0, 0.0
    between = (torch.tensor(sizes, dtype=torch.float64) * (means - ranks.mean()).square()).sum()
    h = float((n - 1) * between / spread)
    return h, max(0.0, (h - k + 1) / (n - k))
