"""Which weights can be pruned, and what a posterior says of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.curvature.blocks import owner_of
from whence.curvature.selection import Last, Mask, selection
from whence.errors import BadData, BadOption, NotDefined, NothingSelected, notice, one_of
from whence.posteriors.base import WeightPosterior
from whence.posteriors.laplace import Laplace
from whence.where.by_draws import prior_variances
from whence.where.weights import curvature_diagonal, identified_of
from whence.where.wiring import by_unit, named_layers

CRITERIA = ("snr", "identified", "saliency", "magnitude", "random")


def criteria_of(posterior: WeightPosterior) -> tuple[str, ...]:
    """Those that have a meaning for a posterior: saliency needs a curvature, identified a Gaussian prior."""
    if isinstance(posterior, Laplace):
        return CRITERIA
    known = prior_variances(posterior) is not None
    return tuple(name for name in CRITERIA if name != "saliency" and (known or name != "identified"))


def check_criterion(posterior: WeightPosterior, by: str) -> str:
    """Known, and defined for this posterior."""
    one_of(by, CRITERIA, "by")
    if by not in criteria_of(posterior):
        lacks = "curvature" if by == "saliency" else "prior precision"
        raise NotDefined(f"by={by!r} is not defined for a {type(posterior).__name__}, which has no {lacks}.")
    return by


def prunable(posterior: WeightPosterior, layers: Any = None) -> list[str]:
    """Names of the Bayesian weights of Linear and convolution layers; a Notice names matrices that are left out."""
    if not isinstance(posterior, WeightPosterior):
        kind = type(posterior).__name__
        raise BadData(f"pruning needs a posterior over weights (whence.laplace, variational or swag), not a {kind}.")
    if isinstance(posterior, Laplace) and posterior.curvature.keep is not None:
        raise NotDefined("pruning by a subnetwork mask is not defined; fit a posterior without a mask.")
    chosen = _chosen(posterior, layers)
    network = posterior.network
    owners: dict[str, set[int]] = {}
    for part in network.module.modules():
        for p in part._parameters.values():
            if p is not None and id(p) in network.names_by_id:
                owners.setdefault(network.names_by_id[id(p)], set()).add(id(part))
    usable = {network.names_by_id.get(id(layer._parameters.get("weight"))) for _, layer in named_layers(network.module)}
    names = [n for n in chosen if n in usable and len(owners[n]) == 1]
    if not names:
        raise NothingSelected(
            f"nothing can be pruned: the {len(chosen)} chosen parameters of the posterior ({', '.join(chosen[:3])}"
            f"{', …' * (len(chosen) > 3)}) hold no weight of a Linear or convolution layer that is its own."
        )
    left = [n for n in chosen if n not in names and network.params[n].dim() > 1]
    if left:
        parts = [f"{n} ({_why(network.module, n, len(owners[n]) > 1)})" for n in left[:4]]
        more = f" and {len(left) - 4} more" * (len(left) > 4)
        notice(f"not pruned: {', '.join(parts)}{more}; only weights of Linear and convolution layers are.")
    return names


def _why(module: nn.Module, name: str, tied: bool) -> str:
    if tied:
        return "tied"
    owner = owner_of(name)
    if owner.endswith("out_proj"):
        return "MultiheadAttention"
    if name.endswith("_orig"):
        return "masked already: call torch.nn.utils.prune.remove first"
    return type(module.get_submodule(owner)).__name__


def _chosen(posterior: WeightPosterior, layers: Any) -> list[str]:
    """Bayesian parameters of the layers that the user names."""
    if layers is None:
        return posterior.names()
    picked = selection(layers, posterior.network)
    if isinstance(picked, Mask):
        raise BadOption("layers is a mask of weights; pass None, 'last', patterns on module names, or a predicate.")
    if isinstance(picked, Last):
        return _last(posterior)
    names = set(picked.resolve(posterior.network, None))
    return [n for n in posterior.names() if n in names]


def _last(posterior: WeightPosterior) -> list[str]:
    probe = getattr(posterior, "probe", None)
    if probe is None:
        raise BadOption("this posterior keeps no example to find the last layer with; name the layer instead.")
    names = set(Last().resolve(posterior.network, probe[0]))
    return [n for n in posterior.names() if n in names]


def scores(posterior: WeightPosterior, names: Sequence[str], by: str, seed: int = 0) -> dict[str, Tensor]:
    """The score of every weight, in float64 on the CPU; the lowest are pruned first."""
    check_criterion(posterior, by)
    mean = posterior.mean()
    weights = {n: mean[n].detach().double().cpu() for n in names}
    if by == "magnitude":
        return {n: w.abs() for n, w in weights.items()}
    if by == "random":
        generator = torch.Generator().manual_seed(seed)
        return {n: torch.rand(w.shape, generator=generator, dtype=torch.float64) for n, w in weights.items()}
    if by == "saliency":  # LeCun et al. (1989): ½ h_ii w_i²
        assert isinstance(posterior, Laplace)
        curved = curvature_diagonal(posterior)
        return {n: 0.5 * posterior.scale * w.square() * curved[n].double().cpu() for n, w in weights.items()}
    if by == "identified" and isinstance(posterior, Laplace):
        known = {n: v for block in posterior.blocks for n, v in block.scatter(identified_of(posterior, block)).items()}
        return {n: known[n] for n in posterior.names() if n in weights}
    variance = {n: v.double().cpu() for n, v in posterior.variance().items() if n in weights}
    if by == "snr":
        return {n: w.abs() / variance[n].sqrt() for n, w in weights.items()}
    prior = prior_variances(posterior)
    assert prior is not None
    return {n: 1 - v / prior[n].double().cpu() for n, v in variance.items()}


def unit_scores(layer: nn.Module, score: Tensor, by: str) -> Tensor:
    """One score for each unit, [O]: the mean over its weights; their sum for saliency, one draw for random."""
    rows = by_unit(layer, score).flatten(1)
    if by == "random":
        return rows[:, 0]
    return rows.sum(1) if by == "saliency" else rows.mean(1)
