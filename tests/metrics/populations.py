"""Populations whose scores are known, to draw data sets from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from tests.metrics.cases import rng
from tests.reference import metrics as slow
from whence import metrics

MANY = 1_000_000
CLASSES = 3
BINS = 8


@dataclass(frozen=True)
class Study:
    """A metric, data to draw for it, and what it is in the population."""

    draw: Callable[[torch.Generator], tuple[Any, ...]]
    score: Callable[..., metrics.Estimate]
    truth: Callable[[], float]


def misses(study: Study, sets: int, level: float, resamples: int, **options: Any) -> tuple[int, int]:
    """In how many data sets the truth lies below and above the interval."""
    truth = study.truth()
    below, above = 0, 0
    for k in range(sets):
        got = study.score(*study.draw(rng(1000 + k)), level=level, resamples=resamples, seed=k, **options)
        below += truth < got.low - 1e-12
        above += truth > got.high + 1e-12
    return below, above


def binomial_limits(sets: int, rate: float, tail: float = 1e-3) -> tuple[int, int]:
    """Counts below and above which at most `tail` of the binomial distribution lies."""
    cumulative, low = 0.0, None
    for k in range(sets + 1):
        cumulative += math.comb(sets, k) * rate**k * (1 - rate) ** (sets - k)
        if low is None and cumulative > tail:
            low = k
        if cumulative >= 1 - tail:
            return low or 0, k
    return low or 0, sets


# ---------------------------------------------------------------- labels


def logits(count: int, g: torch.Generator) -> Tensor:
    return 1.5 * torch.randn(count, CLASSES, generator=g, dtype=torch.float64)


def labels(count: int, slope: float) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Probabilities softmax(z), labels from softmax(slope z): calibrated for slope 1, over-confident below."""

    def draw(g: torch.Generator) -> tuple[Tensor, Tensor]:
        z = logits(count, g)
        y = torch.multinomial((slope * z).softmax(1), 1, generator=g)[:, 0]
        return z.softmax(1), y

    return draw


@functools.cache
def large(slope: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of a large sample: stated and true probabilities; confidence, falling, and the chance of being right."""
    z = logits(MANY, rng(0))
    p, q = z.softmax(1), (slope * z).softmax(1)
    confidence, best = p.max(1)
    order = confidence.argsort(descending=True)
    return p, q, confidence[order], q.gather(1, best[:, None])[:, 0][order]


def bin_gaps(values: Tensor, outcome: Tensor, binning: str) -> tuple[Tensor, Tensor]:
    """Share and signed gap of each bin that is not empty."""
    if binning == "width":
        index = (values * BINS).ceil().long().clamp(1, BINS) - 1
    else:
        index = values.argsort().argsort() * BINS // len(values)
    count = torch.bincount(index, minlength=BINS)
    gap = torch.bincount(index, outcome - values, minlength=BINS)[count > 0] / count[count > 0]
    return count[count > 0] / len(values), gap


def true_accuracy(slope: float) -> float:
    return float(large(slope)[3].mean())


def true_nll(slope: float) -> float:
    p, q, _, _ = large(slope)
    return float(-(q * p.log()).sum(1).mean())


def true_brier(slope: float) -> float:
    p, q, _, _ = large(slope)
    return float((p**2 - 2 * p * q + q).sum(1).mean())


def true_ece(slope: float, binning: str, norm: str = "l1") -> float:
    share, gap = bin_gaps(*large(slope)[2:], binning)
    if norm == "max":
        return float(gap.abs().max())
    return float((share * gap.abs()).sum() if norm == "l1" else (share * gap**2).sum().sqrt())


def true_classwise(slope: float) -> float:
    p, q, _, _ = large(slope)
    parts = [bin_gaps(p[:, c], q[:, c], "width") for c in range(CLASSES)]
    return sum(float((share * gap.abs()).sum()) for share, gap in parts) / CLASSES


def true_aurc(slope: float) -> float:
    wrong = 1 - large(slope)[3]
    return float((wrong.cumsum(0) / torch.arange(1, MANY + 1)).mean())


def true_selective(slope: float, coverage: float) -> float:
    return float(large(slope)[3][: int(MANY * coverage)].mean())


def best_aurc(slope: float) -> float:
    """Of the order with all errors last: r + (1 - r) log(1 - r)."""
    r = 1 - true_accuracy(slope)
    return r + (1 - r) * math.log(1 - r)


# ---------------------------------------------------------------- detection


def two_normals(positives: int, negatives: int, d: float) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Scores N(d, 1) for positives, N(0, 1) for negatives."""

    def draw(g: torch.Generator) -> tuple[Tensor, Tensor]:
        positive = torch.arange(positives + negatives) < positives
        return torch.randn(positives + negatives, generator=g, dtype=torch.float64) + d * positive, positive

    return draw


def two_scores(
    positives: int, negatives: int, first: float, second: float
) -> Callable[[torch.Generator], tuple[Tensor, Tensor, Tensor]]:
    """Two scores of the same elements with a correlation of 0.8, shifted by ``first`` and ``second`` for positives."""

    def draw(g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        positive = torch.arange(positives + negatives) < positives
        common, one, other = torch.randn(3, positives + negatives, generator=g, dtype=torch.float64)
        scores = (math.sqrt(0.8) * common + math.sqrt(0.2) * own for own in (one, other))
        a, b = (score + d * positive for score, d in zip(scores, (first, second), strict=True))
        return a, b, positive

    return draw


def true_auroc(d: float) -> float:
    return slow.normal_cdf(d / math.sqrt(2), 0.0, 1.0)


def true_aupr(d: float, share: float) -> float:
    """∫ precision(t) · density of positives at t dt."""

    def integrand(t: float) -> float:
        found, flagged = share * slow.normal_cdf(d - t, 0.0, 1.0), (1 - share) * slow.normal_cdf(-t, 0.0, 1.0)
        return found / (found + flagged) * slow.normal_pdf(t, d, 1.0)

    return slow.integral(integrand, d - 9, d + 9)


def true_fpr(d: float) -> float:
    return slow.normal_cdf(1.6448536269514722 - d, 0.0, 1.0)


# ---------------------------------------------------------------- regression


def forecasts(count: int, stated: float = 1.0) -> Callable[[torch.Generator], tuple[Normal, Tensor]]:
    """Targets N(m, s²) with s between 0.5 and 1.5; the forecast is N(m, (stated s)²)."""

    def draw(g: torch.Generator) -> tuple[Normal, Tensor]:
        mean, noise = torch.randn(2, count, generator=g, dtype=torch.float64)
        std = 0.5 + torch.rand(count, generator=g, dtype=torch.float64)
        return Normal(mean, stated * std), mean + std * noise

    return draw


MEAN_STD, MEAN_VARIANCE = 1.0, 1.0 + 1 / 12


def true_crps(stated: float) -> float:
    """E s · E CRPS(N(0, stated²), Z): E|X - Z| - E|X - X'| / 2 for normals."""
    return MEAN_STD * (math.sqrt(2 * (1 + stated**2) / math.pi) - stated / math.sqrt(math.pi))


def true_gaussian_nll(stated: float) -> float:
    mean_log = slow.integral(math.log, 0.5, 1.5)
    return 0.5 * math.log(2 * math.pi) + mean_log + math.log(stated) + 0.5 / stated**2


def true_coverage(stated: float, z: float) -> float:
    return 1 - 2 * slow.normal_cdf(-stated * z, 0.0, 1.0)


def true_interval_score(stated: float, z: float, of: float) -> float:
    """E s (2 c + 4 / (1 - of) · E(Z - c)⁺) with c = stated z."""
    c = stated * z
    beyond = slow.normal_pdf(c, 0.0, 1.0) - c * slow.normal_cdf(-c, 0.0, 1.0)
    return MEAN_STD * (2 * c + 4 / (1 - of) * beyond)
