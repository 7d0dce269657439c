"""The prior under which novelty is measured, and what is unexplained under it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine.memory import remembered
from whence.errors import NotDefined, fraction
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.structures import InBasis
from whence.posteriors.base import require_posterior
from whence.predictive.linearised_draws import check_probes
from whence.priors import RELATIVE, RelativePrecision
from whence.where.one_pass import shares
from whence.where.question import ProbesOption, Question
from whence.where.shares import fraction_left
from whence.where.with_entropy import plain_entropy

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

LEFT = 0.001  # of the training data's own curvature, unexplained under the prior of novelty
STEPS = 200  # of the bisection, at most
VANISHING = 1e-30  # squared gradients that are unreliable in single precision


def unexplained_by_layer(
    posterior: Laplace, x: Any, precision: tuple[float, ...], probes: ProbesOption = "auto"
) -> tuple[Tensor, int]:
    """What is unexplained under the prior of novelty, [N, B], and the number of random columns (0 if exact).

    The columns are the same for all inputs, so the result is a fixed function of the input and p-values stay valid.

    Where an input's gradients in a layer vanish (it saturates, or all its units are off) the ratio is 0 / 0. It counts
    as 1: the training data give no information about it.
    """
    return measured(posterior, x, precision, probes)[:2]


def measured(
    posterior: Laplace, x: Any, precision: tuple[float, ...], probes: ProbesOption
) -> tuple[Tensor, int, Tensor | None]:
    """The same, and the entropy of the plain network's labels [N], where it predicts any."""
    weak, x = with_novelty_prior(posterior, precision), posterior.network.only_inputs(x)
    found = shares(weak, x, Question(probes=check_probes(probes), same_columns=True))
    entropy = plain_entropy(posterior.likelihood, found.outputs)
    return unexplained_under(weak, found.variance, found.prior), found.question.random_columns or 0, entropy


def unexplained_under(weak: Laplace, variance: Tensor, prior: Tensor) -> Tensor:
    """The unexplained part [N, B] from the variance under the prior of novelty; 1 where gradients vanish."""
    deltas = [delta for gaussian, blocks in weak.gaussians() for delta in [gaussian.delta] * len(blocks)]
    steepness = prior * torch.tensor(deltas, dtype=torch.float64)  # Σ_k J_b D⁻¹ J_bᵀ
    return torch.where(steepness > VANISHING, fraction_left(variance, prior), 1.0)


def with_novelty_prior(posterior: Laplace, precision: tuple[float, ...]) -> Laplace:
    """The posterior under the prior of novelty: δ / s of every layer as given."""
    posterior, factors = _with_novelty_shape(posterior), {}
    for block, wanted in zip(posterior.blocks, precision, strict=True):
        group = posterior.blocks if posterior.curvature.joint else [block]
        factor = wanted * posterior.scale / posterior.block_prior(group).delta
        factors.update({p.name: factor for p in block.params})
    return replace(posterior.under(posterior.prior.scaled_by(factors)), tuning=None)


@remembered
def _with_novelty_shape(posterior: Laplace) -> Laplace:
    """The posterior with the prior shape of novelty."""
    fixed = any(isinstance(s, InBasis) for s in posterior.curvature.structures)
    prior = posterior.prior
    if isinstance(prior, RelativePrecision):
        prior = prior.levelled()
    elif not fixed and all(b.name in posterior.curvature.signals for b in posterior.blocks):
        prior = posterior.resolved(RELATIVE)
    return replace(posterior.under(prior), tuning=None)


def novelty_precision(posterior: Laplace, left: float = LEFT) -> tuple[float, ...]:
    """δ / s of every layer with tr[H' δ (s H' + δ)⁻¹] / tr H' = ``left``."""
    posterior = require_posterior(posterior, "the posterior of novelty").as_laplace("novelty")
    if posterior.curvature.keep is not None:
        raise NotDefined("novelty of a subnetwork mask is not defined; select whole layers instead.")
    fraction(left, "left", f"{LEFT} is the default")
    found: list[float] = []
    for gaussian, blocks in _with_novelty_shape(posterior).gaussians():
        found += [_delta(gaussian, left) / posterior.scale] * len(blocks)
    return tuple(found)


def _delta(gaussian: BlockGaussian, left: float) -> float:
    """Find δ by Newton's method in log δ, with bisection if a step leaves the bracket."""
    values = gaussian.spectral.values.double()
    weights = values.clamp(min=0)
    total, top = weights.sum(), float(values.max()) * gaussian.scale
    if not top > 0:
        return gaussian.delta  # no curvature: nothing is explained under any prior
    least = max(-gaussian.spectral.lowest * gaussian.scale * (1 + 1e-6), top * 1e-14)
    low, high = math.log(least), math.log(max(top, least) * 1e6)
    wide = replace(gaussian, spectral=_in_double(gaussian, values))
    at = after = (low + high) / 2
    for step in range(STEPS):
        delta = math.exp(at)
        rest = delta / replace(wide, delta=delta).precision
        part, slope = (torch.stack([(weights * rest).sum(), (weights * rest * (1 - rest)).sum()]) / total).tolist()
        low, high = (at, high) if part < left else (low, at)
        newton = at - math.log(part / left) * part / slope if part > 0 and slope > 0 else low
        after = newton if low < newton < high and step % 4 != 3 else (low + high) / 2
        if high - low < 1e-12 or abs(after - at) < 1e-13:
            break
        at = after
    return math.exp(after)


def _in_double(gaussian: BlockGaussian, values: Tensor) -> Any:
    """The decomposition with eigenvalues in double precision; its vectors are not needed."""
    changes: dict[str, Any] = {"values": values}
    for name in ("left_values", "right_values"):
        found = getattr(gaussian.spectral, name, None)
        if isinstance(found, Tensor):
            changes[name] = found.double()
    return replace(gaussian.spectral, **changes)  # type: ignore[type-var]
