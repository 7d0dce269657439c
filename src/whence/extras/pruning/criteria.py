"""Criteria of pruning: a score for every weight; the lowest are pruned first.

Index legend: O layer outputs (units), I layer inputs, K kernel offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from whence.errors import NotDefined
from whence.posteriors.base import Posterior
from whence.where.sampled import prior_variances
from whence.where.weights import curvature_diagonal, identified_of, relative_curvature_of

By = Literal["snr", "identified", "saliency", "relative_curvature", "magnitude", "random"]
Tensors = dict[str, Tensor]  # by parameter name


def _mean(rows: Tensor) -> Tensor:
    return rows.mean(1)


@dataclass(frozen=True)
class Criterion:
    """A score for every weight; the lowest are pruned first."""

    name: str
    scores: Callable[[Posterior, Tensors, int], Tensors]  # posterior, its weights in float64 on the CPU, seed
    of_unit: Callable[[Tensor], Tensor] = _mean  # scores of its weights [O, I · K] → [O]
    lacks: Callable[[Posterior], str] = lambda _: ""  # what the posterior lacks for it

    def check(self, posterior: Posterior) -> None:
        """Refuse a posterior for which it is not defined."""
        if lacks := self.lacks(posterior):
            kind = type(posterior).__name__
            raise NotDefined(f"by={self.name!r} is not defined for a {kind}, which has no {lacks}.")


def _signal_to_noise(posterior: Posterior, weights: Tensors, seed: int) -> Tensors:
    variance = posterior.variance()
    return {n: w.abs() / variance[n].double().cpu().sqrt() for n, w in weights.items()}


def _identified(posterior: Posterior, weights: Tensors, seed: int) -> Tensors:
    if posterior.has_curvature:
        fitted = posterior.as_laplace("by='identified'")
        known = {n: v for block in fitted.blocks for n, v in block.scatter(identified_of(fitted, block)).items()}
        return {n: known[n] for n in weights}
    variance, prior = posterior.variance(), posterior.prior_variance()
    return {n: 1 - variance[n].double().cpu() / prior[n].double().cpu() for n in weights}


def _saliency(posterior: Posterior, weights: Tensors, seed: int) -> Tensors:
    """½ h_ii w_i² (LeCun et al. 1989)."""
    fitted = posterior.as_laplace("by='saliency'")
    curvature = {n: v for b in fitted.blocks for n, v in b.scatter(curvature_diagonal(fitted, b)).items()}
    return {n: 0.5 * fitted.scale * w.square() * curvature[n].double().cpu() for n, w in weights.items()}


def _relative_curvature(posterior: Posterior, weights: Tensors, seed: int) -> Tensors:
    """w_i² h_ii / N."""
    fitted = posterior.as_laplace("by='relative_curvature'")
    known = {n: v for b in fitted.blocks for n, v in b.scatter(relative_curvature_of(fitted, b)).items()}
    return {n: known[n] for n in weights}


def _magnitude(posterior: Posterior, weights: Tensors, seed: int) -> Tensors:
    return {n: w.abs() for n, w in weights.items()}


def _random(posterior: Posterior, weights: Tensors, seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.rand(w.shape, generator=generator, dtype=torch.float64) for n, w in weights.items()}


def _no_prior(posterior: Posterior) -> str:
    return "" if posterior.has_curvature or prior_variances(posterior) is not None else "prior precision"


def _no_curvature(posterior: Posterior) -> str:
    return "" if posterior.has_curvature else "curvature"


CRITERIA: dict[str, Criterion] = {
    "snr": Criterion("snr", _signal_to_noise),
    "identified": Criterion("identified", _identified, lacks=_no_prior),
    "saliency": Criterion("saliency", _saliency, lambda rows: rows.sum(1), _no_curvature),
    "relative_curvature": Criterion("relative_curvature", _relative_curvature, lacks=_no_curvature),
    "magnitude": Criterion("magnitude", _magnitude),
    "random": Criterion("random", _random, lambda rows: rows[:, 0]),
}
