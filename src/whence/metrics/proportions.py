"""Exact intervals of shares with the quantiles behind them, and the coverage of a conformal threshold by chance."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from whence.metrics.intervals import Estimate, normal_quantile

STEPS = 1000  # of the continued fraction, at most
TINY = 1e-300
BISECTIONS = 80
NEWTON_ENDS = 1e-8  # a relative step after which the next one would be of the order of rounding


def share_of(name: str, hits: int, trials: int, level: float = 0.95) -> Estimate | None:
    """``hits`` of ``trials`` with the interval of Clopper and Pearson; None without trials."""
    if not trials:
        return None
    low, high = exact_interval(hits, trials, level)
    return Estimate(hits / trials, low, high, level, trials, name=name)


def clustered_share(name: str, hits: Tensor, trials: Tensor, level: float = 0.95) -> Estimate | None:
    """Σ hits / Σ trials of groups [G] whose members are not independent; None without trials."""
    total = float(trials.double().sum())
    if not total:
        return None
    low, high = clustered_interval(hits, trials, int(total), level)
    return Estimate(float(hits.double().sum()) / total, low, high, level, int(total), name=name)


def clustered_interval(hits: Tensor, trials: Tensor, most: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of Σ hits / Σ trials over groups [G], which may be weighted sums.

    The exact interval of as many independent trials as would have the variance of the groups, fewer where that is known
    from few groups (Korn & Graubard 1998, Survey Methodology 24), ``most`` at most; of the number of groups if all or
    none are hits.
    """
    hits, trials = hits.double(), trials.double()
    total, groups = float(trials.sum()), int((trials > 0).sum())
    value = float(hits.sum()) / total
    spread = float((hits - value * trials).square().sum()) * groups / max(groups - 1, 1)
    independent = float(groups)
    if spread > 0:
        tail = (1 + level) / 2
        few = (normal_quantile(tail) / t_quantile(tail, groups - 1)) ** 2 if most > groups > 1 else 1.0
        independent = min(few * value * (1 - value) * total**2 / spread, most)
    return exact_interval(value * independent, independent, level)


@functools.lru_cache(maxsize=4096)
def exact_interval(hits: float, trials: float, level: float = 0.95) -> tuple[float, float]:
    """Interval of a share (Clopper & Pearson 1934): it contains the true one with at least this probability."""
    tail = (1 - level) / 2
    low = beta_quantile(tail, hits, trials - hits + 1) if hits > 0 else 0.0
    high = beta_quantile(1 - tail, hits + 1, trials - hits) if hits < trials else 1.0
    return low, high


def beta_below(x: float, a: float, b: float) -> float:
    """P(X ≤ x) of a beta distribution: the regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_below(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _continued_fraction(x, a, b) / a


def _continued_fraction(x: float, a: float, b: float) -> float:
    """DLMF 8.17.22, by Lentz's method; it converges fast below the mean."""
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or TINY)
    found = d
    for m in range(1, STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for part in (even, odd):
            d = 1 / ((1 + part * d) or TINY)
            c = (1 + part / c) or TINY
            found *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return found


def beta_quantile(share: float, a: float, b: float) -> float:
    """The x with P(X ≤ x) = share: Newton's method inside a bracket that bisection shrinks."""
    low, high, x = 0.0, 1.0, _near_quantile(share, a, b)
    log_norm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    for _ in range(BISECTIONS):
        off = beta_below(x, a, b) - share
        low, high = (x, high) if off < 0 else (low, x)
        density = math.exp(log_norm + (a - 1) * math.log(x) + (b - 1) * math.log1p(-x))
        step = x - off / density if density > 0 else -1.0
        new = step if low < step < high else (low + high) / 2
        if not 0 < new < 1:
            break
        x, moved = new, abs(new - x)
        if moved <= (NEWTON_ENDS if new == step else 1e-13) * min(new, 1 - new):
            break
    return x


def _near_quantile(share: float, a: float, b: float) -> float:
    """A beta quantile to about two digits (Abramowitz & Stegun 26.5.22), or the mean where that may fail."""
    if a <= 1 or b <= 1:
        return a / (a + b)
    y = -normal_quantile(share)
    inverse_a, inverse_b, lam = 1 / (2 * a - 1), 1 / (2 * b - 1), (y * y - 3) / 6
    h = 2 / (inverse_a + inverse_b)
    w = y * math.sqrt(max(h + lam, 0.0)) / h - (inverse_b - inverse_a) * (lam + 5 / 6 - 2 / (3 * h))
    x = a / (a + b * math.exp(2 * w)) if abs(w) < 300 else 0.0
    return x if 0 < x < 1 else a / (a + b)


@functools.lru_cache(maxsize=1024)
def t_quantile(share: float, freedom: float) -> float:
    """Quantile of Student's t distribution, for shares above one half."""
    x = beta_quantile(2 * (1 - share), freedom / 2, 0.5)
    return math.sqrt(freedom * (1 / x - 1))


def coverage_by_chance(rank: int, calibration: int, test: int, level: float = 0.95) -> tuple[float, float]:
    """The range of the test coverage of a conformal threshold if validation and test inputs are exchangeable.

    The threshold is the ``rank``-th smallest of ``calibration`` scores without ties, so that the number covered of
    ``test`` is beta-binomial with parameters rank and calibration + 1 − rank (Vovk 2012, Prop. 2a).
    """
    if rank > calibration:
        return 1.0, 1.0
    a, b = (torch.tensor(float(value), dtype=torch.float64) for value in (rank, calibration + 1 - rank))
    m, k = torch.tensor(float(test), dtype=torch.float64), torch.arange(test + 1, dtype=torch.float64)
    log_p = _log_beta(k + a, m - k + b) - _log_beta(a, b) - _log_beta(k + 1, m - k + 1) - torch.log(m + 1)
    below = log_p.exp().cumsum(0)
    tail = (1 - level) / 2
    low = int((below <= tail).sum())  # P(X < low) ≤ tail
    high = int((1 - below > tail).sum())  # P(X > high) ≤ tail
    return low / test, min(high, test) / test


def _log_beta(a: Tensor, b: Tensor) -> Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
