"""Where the uncertainty is for posteriors without closed forms: shares by draws, and disagreement of members.

One block is random, others at their mean. V_b(x) = Σ_c Var[f_c(x)] over draws of block b alone, V(x) over draws of all
blocks together. ``variance_share`` = Σₓ V_b / Σₓ V; 1 − Σ shares is the interaction between blocks,
including their covariance. For class labels the logits are centred first.

Index legend: S draws, N inputs, C outputs, B blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.copies import copy_module
from whence.errors import NotDefined
from whence.functional import Network
from whence.likelihoods import Likelihood
from whence.posteriors.base import Posterior
from whence.predictive.sampled import WeightDraws
from whence.where.activations import disagreement
from whence.where.layer_rows import LayerRow
from whence.where.shares import TINY
from whence.where.where import Where

if TYPE_CHECKING:
    from whence.posteriors.dropout import Dropout

DRAWS = 64
SITE = "dropout"  # the kind of row that is no layer but a place where something is dropped


@torch.inference_mode(False)
def where_weights(posterior: Posterior, x: Any) -> Where:
    """Shares by layer, for a posterior over weights."""
    mean, variance, prior = posterior.mean(), posterior.variance(), prior_variances(posterior)
    own = None if x is None else weight_shares(posterior, x)
    prior_only = None if x is None or prior is None else weight_shares(posterior, x, prior=True)
    module = posterior.snapshots[0].module
    kinds = dict(module.named_modules())
    rows = []
    for place, (layer, names) in enumerate(posterior.layers().items()):
        squares, centre = (torch.cat([v[n].double().flatten() for n in names]) for v in (variance, mean))
        before = None if prior is None else torch.cat([prior[n].double().flatten() for n in names])
        moving = squares > 0
        signal = (centre[moving].square() / squares[moving]).mean().sqrt() if bool(moving.any()) else None
        rows.append(
            LayerRow(
                name=layer,
                kind=type(kinds.get(layer, module)).__name__,  # the network's for its own parameters
                parameters=len(squares),
                std=float(squares.mean().sqrt()),
                identified=None if before is None else float((1 - squares / before).mean()),
                signal_to_noise=None if signal is None else float(signal),
                **_columns(own, prior_only, place),
            )
        )
    return Where(rows, posterior, x, interaction=None if own is None else own.interaction)


@torch.inference_mode(False)
def where_dropout(posterior: Dropout, x: Any) -> Where:
    """Shares by dropout site, with masks at one site only."""
    sites = posterior.sites(x)
    if x is None:
        return Where([LayerRow(name, SITE) for name in sites], posterior)

    @torch.no_grad()
    def outputs(chosen: Iterable[str]) -> Tensor:
        return posterior.draw_sites(DRAWS, set(chosen), generator=torch.Generator().manual_seed(0)).outputs(x)

    own = sampled_shares({name: [name] for name in sites}, sites, outputs, posterior.likelihood)
    rows = [LayerRow(name, SITE, **_columns(own, None, place)) for place, name in enumerate(sites)]
    return Where(rows, posterior, x, interaction=own.interaction)


@torch.inference_mode(False)
def where_members(posterior: Posterior, x: Any) -> Where:
    """Disagreement of the members' layers; there are no shares without common weight coordinates."""
    if x is None:
        return Where([], posterior)
    found = disagreement(posterior.comparable(), x)
    rows = [
        LayerRow(name, "output" if name == "output" else "layer", disagreement=value)
        for name, value in zip(found["name"], found["disagreement"], strict=True)
    ]
    return Where(rows, posterior, x)


# Shares by draws


@dataclass(frozen=True)
class SampledShares:
    """Shares with their Monte Carlo standard errors."""

    names: tuple[str, ...]
    variance: Tensor  # Σₓ V_b, [B] in float64
    total: float  # Σₓ V
    share: Tensor  # [B]
    error: Tensor  # [B], by the jackknife over draws

    @property
    def interaction(self) -> float:
        """1 − Σ shares."""
        return 1 - float(self.share.sum())


def _columns(own: SampledShares | None, prior_only: SampledShares | None, place: int) -> dict[str, Any]:
    """The columns of a layer row about shares."""
    if own is None:
        return {}
    found = {"variance_share": float(own.share[place]), "variance_share_error": float(own.error[place])}
    if prior_only is not None:
        found["prior_share"] = float(prior_only.share[place])
        found["explained"] = 1 - float(own.variance[place] / prior_only.variance[place].clamp(min=1e-300))
    return found


@torch.no_grad()
def weight_shares(
    posterior: Posterior,
    x: Any,
    num_samples: int = DRAWS,
    generator: torch.Generator | None = None,
    prior: bool = False,
) -> SampledShares:
    """Shares by layer for a posterior over weights; with ``prior``, draws have the prior variances around the mean."""
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    network = at_mean(posterior.snapshots[0], posterior.mean())
    draws = _prior_draws(posterior, num_samples, generator) if prior else posterior.sample(num_samples, generator)

    def outputs(names: Iterable[str]) -> Tensor:
        return WeightDraws(network, {n: draws[n] for n in names}, posterior.likelihood).outputs(x)

    return sampled_shares(posterior.layers(), posterior.names(), outputs, posterior.likelihood)


def sampled_shares(
    blocks: Mapping[str, Iterable[str]],
    every: Iterable[str],
    outputs: Callable[[Iterable[str]], Tensor],
    likelihood: Likelihood,
) -> SampledShares:
    """Shares from ``outputs`` [S, N, …] with only the named parts random, for each block and for ``every`` part."""
    whole = deviations(outputs(every), likelihood)
    parts = [deviations(outputs(names), likelihood) for names in blocks.values()]
    count, total = len(whole), whole.sum()
    sums = torch.stack([part.sum() for part in parts]) if parts else whole.new_zeros(0)
    share = sums / total.clamp(min=TINY)
    errors = []
    for part in parts:
        left = (part.sum() - part) / (total - whole).clamp(min=TINY)  # without each draw in turn
        errors.append(((count - 1) / count * (left - left.mean()).square().sum()).sqrt())
    scale = 1 / (count - 1)
    error = torch.stack(errors) if errors else share
    return SampledShares(tuple(blocks), sums * scale, float(total) * scale, share, error)


def deviations(outputs: Tensor, likelihood: Likelihood) -> Tensor:
    """Squared distance of each draw from the mean, summed over inputs and outputs, [S]."""
    values = outputs.double()
    if likelihood.shift_invariant:
        dim = getattr(likelihood, "class_dim", 1)
        values = values - values.mean(dim if dim < 0 else dim + 1, keepdim=True)
    return (values - values.mean(0)).square().flatten(1).sum(1).cpu()


def at_mean(network: Network, mean: Mapping[str, Tensor]) -> Network:
    """A copy of the network with these weights."""
    module = copy_module(network.module)
    params = dict(module.named_parameters())
    with torch.no_grad():
        for name, value in mean.items():
            params[name].copy_(value)
    return Network(module.eval())


def prior_variances(posterior: Posterior) -> dict[str, Tensor] | None:
    """Prior variances by parameter; None if the prior is not Gaussian."""
    try:
        return posterior.prior_variance()
    except NotDefined:
        return None


def _prior_draws(posterior: Posterior, num_samples: int, generator: torch.Generator) -> dict[str, Tensor]:
    variances, found = posterior.prior_variance(), {}
    for name, value in posterior.mean().items():
        shape = (num_samples, *value.shape)
        noise = torch.randn(shape, generator=generator, dtype=value.dtype, device=generator.device)
        found[name] = value + noise.to(value.device) * variances[name].sqrt()
    return found
