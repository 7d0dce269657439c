"""Exact distributions of counts: the interval of a share, and the coverage that a conformal threshold has by chance."""

from __future__ import annotations

import torch

from whence.metrics.intervals import BISECTIONS, Estimate
from whence.metrics.selective import binomial_below


def share_of(name: str, successes: int, trials: int, level: float = 0.95) -> Estimate:
    """A share with the interval of Clopper & Pearson (1934, Biometrika 26), for independent trials."""
    low, high = clopper_pearson(successes, trials, level)
    return Estimate(successes / trials, low, high, level, trials, name=name)


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The shares under which neither as many successes nor as few have a probability below (1 − level) / 2."""
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else 1 - _highest(trials - successes, trials, tail)
    high = 1.0 if successes == trials else _highest(successes, trials, tail)
    return low, high


def _highest(successes: int, trials: int, tail: float) -> float:
    """The share for which at most ``successes`` have probability ``tail``."""
    low, high = successes / trials, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_below(successes, trials, middle) > tail else (low, middle)
    return (low + high) / 2


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


def _log_beta(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
