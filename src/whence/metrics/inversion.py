"""Intervals of calibration errors by inverting a bootstrap test.

The plug-in is biased upward, and at 0 it is not regular, so percentiles of resamples mislead. Instead: scale the
gaps by t, add the noise of the resamples, and keep those t under which the observed error is no surprise.

Index legend: B resamples, K cells (bins, of all classes), N elements.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Norm = Callable[[Tensor, Tensor], Tensor]  # weights of the cells [B, K], gaps [B, K] → errors [B]

STEPS = 40  # bisections: twelve digits


def pooled(weights: Tensor, gaps: Tensor, noise: Tensor) -> Tensor:
    """Gaps [K] drawn towards their mean until they spread as much as without noise [B, K].

    Observed gaps spread more than true ones; taken as they are, they make the correction of the bias too large.
    """
    mean = (weights * gaps).sum()
    spread = (weights * (gaps - mean).square()).sum()
    of_noise = (weights * (1 - weights) * noise.square().mean(0)).sum()
    kept = (1 - of_noise / spread).clamp(min=0).sqrt() if float(spread) > 0 else spread
    return mean + kept * (gaps - mean)


def directions(weights: Tensor, gaps: Tensor, noise: Tensor, pool: bool) -> list[Tensor]:
    """What the true gaps may look like up to a factor, [K] each: as observed, all alike, only the clear ones."""
    clear = gaps * (gaps.abs() > 1.5 * noise.std(0))
    shapes = [pooled(weights, gaps, noise) if pool else gaps, gaps.sign(), clear]
    return [shape for shape in shapes if bool((shape != 0).any())] or [torch.ones_like(gaps)]


def invert(
    norm: Norm, observed: Tensor, shapes: list[Tensor], weights: Tensor, noise: Tensor, level: float
) -> tuple[float, float]:
    """(low, high) of the error that holds the intervals of every shape; see :func:`invert_along`."""
    ends = [invert_along(norm, observed, shape, weights, noise, level) for shape in shapes]
    return min(low for low, _ in ends), max(high for _, high in ends)


def invert_along(
    norm: Norm, observed: Tensor, shape: Tensor, weights: Tensor, noise: Tensor, level: float
) -> tuple[float, float]:
    """(low, high) of the error, from weights and gaps as observed [2, K]; weights and noise of resamples [B, K].

    With T the observed error, ``shape`` the supposed gaps g [K] and T*(t) = norm(w*, t g + noise): low is t norm(g)
    where P(T* ≥ T) = α/2, high where P(T* ≤ T) = α/2. An error below the median of T*(0) is luck; high is then that
    of the median, as in power-constrained limits (Cowan et al. 2011, arXiv:1105.3166), where luck gives [0, 0] else.
    """
    value = float(norm(observed[:1], observed[1:]))
    size_of = float(norm(observed[:1], shape.unsqueeze(0)))
    direction = shape / size_of if size_of > 0 else torch.ones_like(shape)
    tail = (1 - level) / 2
    seen = max(value, float(norm(weights, noise).median()))

    def above(size: float) -> float:
        return float((norm(weights, noise + size * direction) >= value * (1 - 1e-12)).double().mean())

    def below(size: float) -> float:
        return float((norm(weights, noise + size * direction) <= seen * (1 + 1e-12)).double().mean())

    low = _crossing(lambda size: above(size) < tail)
    high = _crossing(lambda size: below(size) > tail)
    return min(low, high), high


def _crossing(holds: Callable[[float], bool]) -> float:
    """The size in 0..1 up to which ``holds`` is true; 0 where it never is."""
    if not holds(0.0):
        return 0.0
    if holds(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def weighted_l1(weights: Tensor, gaps: Tensor) -> Tensor:
    """Σ_b w_b |g_b|."""
    return (weights * gaps.abs()).sum(1)


def weighted_l2(weights: Tensor, gaps: Tensor) -> Tensor:
    """√(Σ_b w_b g_b²)."""
    return (weights * gaps.square()).sum(1).sqrt()


def largest(weights: Tensor, gaps: Tensor) -> Tensor:
    """max |g_b| over the cells that hold something."""
    return torch.where(weights > 0, gaps.abs(), torch.zeros_like(gaps)).amax(1)
