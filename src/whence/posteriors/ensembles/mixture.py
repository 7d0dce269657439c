"""Weighted mixtures of predictions, and of members for draws.

Index legend: M members, S samples, N examples, C outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.randomness import seed_from
from whence.errors import BadOption
from whence.predictive.predictions import (
    BinaryPrediction,
    ClassificationPrediction,
    CountPrediction,
    OutputPrediction,
    Prediction,
    RegressionPrediction,
    VarianceSplit,
    _Lazy,
)

MOST_SAMPLES = 256  # samples of a prediction with unequal weights, in proportion to the weights


def check_weights(weights: Any, members: int) -> Tensor | None:
    """Weights as float64 that sum to 1; None for equal ones."""
    if weights is None:
        return None
    try:
        w = torch.as_tensor(weights, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadOption(f"weights must be {members} numbers, not a {type(weights).__name__}.") from error
    if w.shape != (members,):
        raise BadOption(f"weights of shape {list(w.shape)} for {members} members; pass one number per member.")
    if not bool(torch.isfinite(w).all()) or bool((w < 0).any()) or not float(w.sum()) > 0:
        raise BadOption(f"weights must be 0 or more, finite, and not all 0: {w.tolist()}.")
    return w / w.sum()


def allotted(weights: Tensor, count: int, generator: torch.Generator | None) -> list[int]:
    """Member of each of ``count`` draws, in order: systematic resampling, the members in random order.

    A member of weight w appears ⌊count · w⌋ or ⌈count · w⌉ times, count · w in expectation; with equal weights and as
    many draws as members, each appears once.
    """
    own = torch.Generator().manual_seed(seed_from(generator))
    order = torch.randperm(len(weights), generator=own)
    ends = weights[order].cumsum(0) * count
    ends[-1] = count
    shift = torch.rand((), generator=own, dtype=torch.float64) * (1 - 2e-9) + 1e-9
    ticks = torch.arange(count, dtype=torch.float64) + shift
    return sorted(order[torch.searchsorted(ends, ticks).clamp(max=len(weights) - 1)].tolist())


def shares(weights: Tensor, most: int = MOST_SAMPLES) -> list[int]:
    """Whole numbers in proportion to the weights: the smallest exact ones, or ``most`` in total, rounded."""
    for total in range(1, most + 1):
        scaled = weights * total
        if bool((scaled - scaled.round()).abs().max() < 1e-6):
            return [int(v) for v in scaled.round()]
    scaled = weights * most
    counts = scaled.floor()
    left = most - int(counts.sum())
    counts[(scaled - counts).argsort(descending=True)[:left]] += 1
    return [int(v) for v in counts]


def mixture(predictions: Sequence[Prediction], weights: Tensor) -> Prediction:
    """The prediction of a mixture: Σ_m w_m p_m. Moments by the law of total variance, entropies by definition.

    The total entropy is that of the mixed probabilities; aleatoric is the mean Σ_m w_m of the members' aleatoric parts.
    """
    first = predictions[0]
    parts: list[Any] = list(predictions)
    if isinstance(first, (ClassificationPrediction, BinaryPrediction)):
        return _labels(parts, weights)
    if isinstance(first, RegressionPrediction):
        return _regression(parts, weights)
    if isinstance(first, CountPrediction):
        mean, spread = _moments([p.mean for p in parts], [p.epistemic for p in parts], weights)
        logs = _moments([p.log_rate_mean for p in parts], [p.log_rate_variance for p in parts], weights)
        return CountPrediction(mean, spread, _samples_by_weight([p.samples for p in parts], weights), *logs)
    mean, spread = _moments([p.mean for p in parts], [p.variance for p in parts], weights)
    samples = None if any(p.samples is None for p in parts) else _samples_by_weight([p.samples for p in parts], weights)
    lazy = _Lazy(_covariance([p.mean for p in parts], _lazy_values(parts, "covariance"), weights))
    return OutputPrediction(mean, spread, samples, lazy)


def _lazy_values(parts: list[Any], name: str) -> list[Callable[[], Tensor]]:
    """Lazy values of the members."""
    return [functools.partial(getattr, part, name) for part in parts]


def _sum(values: Sequence[Tensor], weights: Tensor) -> Tensor:
    total = values[0] * float(weights[0])
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = total + value * float(weight)
    return total


def _moments(means: list[Tensor], variances: list[Tensor], weights: Tensor) -> tuple[Tensor, Tensor]:
    """E[f] = Σ w m, Var[f] = Σ w (v + (m − E[f])²)."""
    centre = _sum(means, weights)
    return centre, _sum([v + (m - centre).square() for m, v in zip(means, variances, strict=True)], weights)


def _covariance(means: list[Tensor], covs: list[Callable[[], Tensor]], weights: Tensor) -> Callable[[], Tensor] | None:
    if means[0].dim() != 2:
        return None

    def total() -> Tensor:
        centre = _sum(means, weights)
        off = [m - centre for m in means]
        return _sum([c() + o.unsqueeze(-1) * o.unsqueeze(-2) for c, o in zip(covs, off, strict=True)], weights)

    return total


def _samples_by_weight(samples: list[Tensor], weights: Tensor) -> Tensor:
    """Samples of the members [S_m, N, …] in proportion to the weights."""
    counts = shares(weights, max(MOST_SAMPLES, max(len(s) for s in samples)))
    if all(len(s) == len(samples[0]) for s in samples) and len(set(counts)) == 1:
        return torch.cat(samples)
    most = max(len(s) for s in samples)
    counts = [c * -(-most // max(sum(counts), 1)) for c in counts]
    return torch.cat(
        [s[torch.arange(c, device=s.device) * len(s) // c] for s, c in zip(samples, counts, strict=True) if c]
    )


def _labels(parts: list[Any], weights: Tensor) -> Prediction:
    aleatoric = None
    if all(p._aleatoric is not None for p in parts):
        aleatoric = _sum([p._aleatoric for p in parts], weights)
    means = [p.logit_mean for p in parts]
    lazy = _Lazy(
        _covariance(means, _lazy_values(parts, "logit_cov"), weights),
        None
        if any(p._lazy.samples is None for p in parts)
        else lambda: _samples_by_weight([p.samples for p in parts], weights),
        parts[0]._lazy.why_not,
        functools.partial(_split, parts, weights),
    )
    probs, logits = _sum([p.probs for p in parts], weights), _sum(means, weights)
    if isinstance(parts[0], BinaryPrediction):
        return BinaryPrediction(probs, logits, aleatoric, lazy)
    return ClassificationPrediction(probs, logits, aleatoric, lazy, parts[0].class_dim)


def _split(parts: list[Any], weights: Tensor, full: bool) -> VarianceSplit:
    """With the exact weights: E[Var] = Σ w a, Var[E] = Σ w (e + (p − p̄)²), which sum to p̄ (1 − p̄)."""
    splits = [p.variance_split(full) for p in parts]
    centre = _sum([p.probs for p in parts], weights)
    off = [p.probs - centre for p in parts]
    squares = [o.unsqueeze(-1) * o.unsqueeze(-2) if full else o.square() for o in off]
    epistemic = _sum([s.epistemic + q for s, q in zip(splits, squares, strict=True)], weights)
    total = centre * (1 - centre)
    if full:
        total = torch.diag_embed(centre) - centre.unsqueeze(-1) * centre.unsqueeze(-2)
    return VarianceSplit(total, _sum([s.aleatoric for s in splits], weights), epistemic)


def _regression(parts: list[Any], weights: Tensor) -> RegressionPrediction:
    """Each member is a Gaussian, or an equal mixture of them; ``noise_samples`` hold the variance of each component."""
    mean, epistemic = _moments([p.mean for p in parts], [p.epistemic for p in parts], weights)
    aleatoric = _sum([p.aleatoric for p in parts], weights)
    centres = [p.mean.unsqueeze(0) if p.samples is None else p.samples for p in parts]
    widths = [_widths(p) for p in parts]
    lazy = _Lazy(_covariance([p.mean for p in parts], _lazy_values(parts, "covariance"), weights))
    return RegressionPrediction(
        mean, aleatoric, epistemic, _samples_by_weight(centres, weights), _samples_by_weight(widths, weights), lazy
    )


def _widths(part: RegressionPrediction) -> Tensor:
    """Variance of the target around each sample: the noise, or the whole variance of a Gaussian without samples."""
    if part.samples is None:
        return part.variance.unsqueeze(0)
    return part.aleatoric.expand_as(part.samples) if part.noise_samples is None else part.noise_samples
