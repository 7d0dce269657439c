"""Which part of the outputs' variance each block causes, by draws: one block random, the rest at its mean.

For posteriors without a closed form. V_b(x) = Σ_c Var[f_c(x)] over draws of block b alone, V(x) over draws of all
blocks together. ``variance_share`` = Σₓ V_b / Σₓ V; what the shares leave of 1 is the interaction between blocks,
covariance between them included. For class labels the logits are centred first.

Index legend: S draws, N inputs, C outputs, B blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.copies import copy_module
from whence.errors import NotDefined
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.posteriors.base import WeightPosterior
from whence.predictive.sampled import WeightDraws

DRAWS = 64


@dataclass(frozen=True)
class DrawnShares:
    """Shares with their Monte Carlo standard errors."""

    names: tuple[str, ...]
    variance: Tensor  # Σₓ V_b, [B] in float64
    total: float  # Σₓ V
    share: Tensor  # [B]
    error: Tensor  # [B], by the jackknife over draws
    inputs: int

    @property
    def interaction(self) -> float:
        """1 − Σ shares."""
        return 1 - float(self.share.sum())


def drawn_shares(outputs: Mapping[str, Callable[[], Tensor]], together: Tensor, likelihood: Likelihood) -> DrawnShares:
    """From outputs [S, N, …] of each block's draws, and of all blocks together; the same draws in both."""
    whole = deviations(together, likelihood)
    parts = {name: deviations(make(), likelihood) for name, make in outputs.items()}
    count = len(whole)
    sums = torch.stack([p.sum() for p in parts.values()]) if parts else whole.new_zeros(0)
    total = whole.sum()
    tiny = torch.finfo(torch.float64).tiny
    share = sums / total.clamp(min=tiny)
    errors = []
    for part in parts.values():
        left = (part.sum() - part) / (total - whole).clamp(min=tiny)  # without each draw in turn
        errors.append(((count - 1) / count * (left - left.mean()).square().sum()).sqrt())
    error = torch.stack(errors) if errors else share
    scale = 1 / (count - 1)
    return DrawnShares(tuple(parts), sums * scale, float(total) * scale, share, error, together.shape[1])


def deviations(outputs: Tensor, likelihood: Likelihood) -> Tensor:
    """Each draw's squared distance from the mean over draws, summed over inputs and outputs, [S]."""
    values = outputs.double()
    if likelihood.task == "classification":
        dim = getattr(likelihood, "class_dim", 1)
        values = values - values.mean(dim if dim < 0 else dim + 1, keepdim=True)
    return (values - values.mean(0)).square().flatten(1).sum(1).cpu()


@torch.no_grad()
def weight_shares(
    posterior: Any, x: Any, num_samples: int = DRAWS, generator: torch.Generator | None = None, prior: bool = False
) -> DrawnShares:
    """Of a posterior over weights, by layer; with ``prior``, draws have the prior's variances around the same mean."""
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    centre = posterior.mean()
    network = at_mean(posterior.network, centre)
    draws = (
        _from_prior(posterior, centre, num_samples, generator)
        if prior
        else posterior.sample(num_samples, generator=generator)
    )

    def outputs(names: list[str]) -> Tensor:
        return WeightDraws(network, {n: draws[n] for n in names}, posterior.likelihood).outputs(x)

    blocks = {name: (lambda names=names: outputs(names)) for name, names in posterior.layers().items()}
    return drawn_shares(blocks, outputs(posterior.names()), posterior.likelihood)


def at_mean(network: Network, mean: Mapping[str, Tensor]) -> Network:
    """A copy of the network with these weights."""
    module = copy_module(network.module)
    params = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in mean.items():
            params[name].copy_(value)
    return Network(module.eval())


def prior_variances(posterior: WeightPosterior) -> dict[str, Tensor] | None:
    """Of every Bayesian weight, in the parameters' shapes; None where the prior is not a Gaussian."""
    try:
        return posterior.prior_variance()
    except NotDefined:
        return None


def _from_prior(
    posterior: Any, centre: Mapping[str, Tensor], num_samples: int, generator: torch.Generator
) -> dict[str, Tensor]:
    variances = prior_variances(posterior)
    assert variances is not None
    found = {}
    for name, value in centre.items():
        noise = torch.randn(
            (num_samples, *value.shape), generator=generator, dtype=value.dtype, device=generator.device
        )
        found[name] = value + noise.to(value.device) * variances[name].sqrt()
    return found
