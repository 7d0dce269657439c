"""Masks on the least needed weights or units according to a posterior, on a copy of the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from whence import errors
from whence.copies import copy_module
from whence.engine.randomness import resolve_seed
from whence.errors import (
    BadData,
    BadOption,
    NotDefined,
    NothingSelected,
    UnsupportedLayer,
    explains_keywords,
    notice,
    one_of,
)
from whence.extras.pruning.graph import NORM, by_unit, like_weight, named_layers, trace, units_of
from whence.posteriors.base import Posterior, WeightPosterior, is_posterior
from whence.recording.blocks import owner_of
from whence.recording.selection import Last, Layers, Mask, selection
from whence.where.sampled import at_mean, prior_variances
from whence.where.weights import curvature_diagonal, identified_of

By = Literal["snr", "identified", "saliency", "magnitude", "random"]
Tensors = dict[str, Tensor]  # by parameter name


@explains_keywords
@torch.inference_mode(False)
@torch.no_grad()
def prune(
    posterior: WeightPosterior,
    fraction: float,
    *,
    by: By = "snr",
    units: bool = False,
    per_layer: bool = False,
    layers: Layers = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A copy of the network, in evaluation mode, with ``torch.nn.utils.prune`` masks on its least needed weights.

    Weights of Linear and convolution layers are pruned; biases and norms are not. ``torch.nn.utils.prune.remove`` makes
    a mask permanent, :func:`whence.compact` removes pruned units. Parameters outside the posterior are frozen.

    Args:
        posterior: a posterior over weights: of :func:`whence.laplace`, :func:`whence.variational`, :func:`whence.swag`.
        fraction: in [0, 1): share of all prunable weights (of all units, with ``units``) to prune.
        by: criterion, lowest first, ties by index. ``"snr"``: |weight| / standard deviation; ``"identified"``:
            1 − posterior variance / prior variance; ``"saliency"``: ½ weight² H_ii, the loss of optimal brain damage
            (LeCun et al. 1989); ``"magnitude"``; ``"random"``.
        units: whole units (rows, filters, output channels) with their biases, and their channels in a batch norm that
            follows. A unit's score is the mean over its weights, for saliency the sum. The output layer is not
            pruned, and every layer keeps at least one unit.
        per_layer: ``fraction`` of each layer instead of all layers together.
        layers: which of the posterior's layers: ``None`` all, ``"last"``, patterns on module names, or a predicate.
        seed: seed of ``"random"`` (0); or a ``generator`` to draw it from.
    """
    seed = resolve_seed(seed, generator)
    check_fraction(fraction)
    criterion = CRITERIA[one_of(by, CRITERIA, "by")]
    plan = PruningPlan.make(posterior, units, layers)
    return plan.apply(plan.rank(criterion, per_layer, seed).keep(fraction))


def check_fraction(value: float) -> float:
    """Check that a fraction is in [0, 1)."""
    return errors.fraction(value, "fraction", "0.9 prunes nine weights in ten", zero=True)


# Criteria


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
    "magnitude": Criterion("magnitude", _magnitude),
    "random": Criterion("random", _random, lambda rows: rows[:, 0]),
}


# Ranking


@dataclass(frozen=True)
class Ranking:
    """The order in which weights (or units) are pruned, in one group or one per layer."""

    names: list[list[str]]  # weights of each group
    shapes: dict[str, torch.Size]  # of the ranked entries
    orders: list[Tensor]  # by group: indices in its concatenated vector, in pruning order
    fixed: int  # entries per layer that are always kept; last in the order

    def keep(self, fraction: float) -> Tensors:
        """Masks by weight for this fraction; True for kept entries."""
        found: Tensors = {}
        for names, order in zip(self.names, self.orders, strict=True):
            count = min(round(fraction * len(order)), len(order) - self.fixed * len(names))
            stays = torch.ones(len(order), dtype=torch.bool, device=order.device)
            stays[order[:count]] = False
            pieces = stays.split([self.shapes[n].numel() for n in names])
            found |= {n: piece.reshape(self.shapes[n]) for n, piece in zip(names, pieces, strict=True)}
        return found


@dataclass(frozen=True)
class PruningPlan:
    """What can be pruned in a posterior's network."""

    posterior: WeightPosterior
    names: list[str]  # of weights
    units: bool
    norms: dict[str, list[str]] = field(default_factory=dict)  # weight → batch norms over its units

    @classmethod
    def make(cls, posterior: WeightPosterior, units: bool, layers: Any = None) -> PruningPlan:
        names = prunable(posterior, layers)
        return _unit_plan(posterior, names) if units else cls(posterior, names, False)

    def layer(self, name: str, module: nn.Module | None = None) -> nn.Module:
        """The layer of a weight, in the posterior's network or in a copy of it."""
        return (module or self.posterior.network.module).get_submodule(owner_of(name))

    def scores(self, criterion: Criterion, seed: int = 0) -> Tensors:
        """One score for each weight or unit, in float64 on the CPU."""
        criterion.check(self.posterior)
        mean = self.posterior.mean()
        weights = {n: mean[n].detach().double().cpu() for n in self.names}
        found = criterion.scores(self.posterior, weights, seed)
        if not self.units:
            return found
        return {n: criterion.of_unit(by_unit(self.layer(n), score).flatten(1)) for n, score in found.items()}

    def rank(self, criterion: Criterion, per_layer: bool = False, seed: int = 0) -> Ranking:
        """Order all candidates by a criterion."""
        found = self.scores(criterion, seed)
        if self.units:
            found = {n: _with_best_fixed(score) for n, score in found.items()}
        groups = [[n] for n in self.names] if per_layer else [self.names]
        device = self.posterior.network.device  # sorting millions of scores takes a CPU seconds
        orders = [torch.cat([found[n].flatten() for n in group]).to(device).argsort(stable=True) for group in groups]
        return Ranking(groups, {n: s.shape for n, s in found.items()}, orders, int(self.units))

    def apply(self, keep: Tensors) -> nn.Module:
        """A copy of the network with these masks."""
        module = at_mean(self.posterior.network, self.posterior.mean()).module
        for name, stays in keep.items():
            layer = self.layer(name, module)
            stays = stays.to(self.posterior.network.device)
            torch_prune.custom_from_mask(layer, "weight", like_weight(layer, stays) if self.units else stays)
            if self.units:
                _mask_vector(layer, "bias", stays)
                for norm in self.norms[name]:
                    for tensor in ("weight", "bias"):
                        _mask_vector(module.get_submodule(norm), tensor, stays)
        return module

    def sparsity(self, keep: Tensors) -> float:
        """Share of the prunable weights that the masks remove."""
        sizes = {n: self.posterior.network.params[n].numel() for n in keep}
        gone = sum(int((~stays).sum()) * (sizes[n] // stays.numel()) for n, stays in keep.items())
        return gone / sum(sizes.values())


def _with_best_fixed(scores: Tensor) -> Tensor:
    """The scores with the best unit's set to infinity, so that it is kept."""
    scores = scores.clone()
    scores[scores.argmax()] = math.inf
    return scores


def _mask_vector(module: nn.Module, name: str, stays: Tensor) -> None:
    if isinstance(module._parameters.get(name), nn.Parameter):
        torch_prune.custom_from_mask(module, name, stays)


def _unit_plan(posterior: WeightPosterior, names: Sequence[str]) -> PruningPlan:
    """The plan for whole units: without output layers, with the batch norms that follow."""
    module = copy_module(posterior.network.module)  # tracing runs the user's code
    layers = {n: module.get_submodule(owner_of(n)) for n in names}
    paths = {id(part): path for path, part in module.named_modules()}
    try:
        traced = trace(module)
    except UnsupportedLayer as error:
        if any(isinstance(m, NORM) for m in module.modules()):
            raise UnsupportedLayer(
                f"{error}, so the batch norms after each unit are unknown; prune weights with units=False."
            ) from error
        *_, (path, last) = named_layers(module)
        notice(f"{error}; {path!r}, the last layer, is assumed to be the output layer.")
        outputs = {id(last)}
        norms: dict[str, list[str]] = {n: [] for n in names}
    else:
        outputs = {id(layer) for layer in traced.output_layers()}
        found = {n: traced.norms_after(layer, units_of(layer)) for n, layer in layers.items()}
        norms = {n: [paths[id(norm)] for norm in after] for n, after in found.items()}
    kept = [n for n in names if id(layers[n]) not in outputs]
    if not kept:
        raise NothingSelected(
            f"no unit can be pruned: {', '.join(map(owner_of, names))} is the output layer; use units=False."
        )
    return PruningPlan(posterior, kept, True, {n: norms[n] for n in kept})


def prunable(posterior: Posterior, layers: Any = None) -> list[str]:
    """Names of the Bayesian weights of Linear and convolution layers; a notice names other matrices."""
    if not is_posterior(posterior) or not posterior.over_weights:
        kind = type(posterior).__name__
        raise BadData(f"pruning needs a posterior over weights (whence.laplace, variational or swag), not a {kind}.")
    if posterior.has_curvature and posterior.as_laplace("pruning").curvature.keep is not None:
        raise NotDefined("pruning by a subnetwork mask is not defined; fit a posterior without a mask.")
    chosen = _chosen(posterior, layers)
    network = posterior.snapshots[0]
    if network.shift is not None:
        raise NotDefined("pruning needs weights of the network; those of a refined posterior are a linear model's.")
    owners: dict[str, set[int]] = {}
    for part in network.module.modules():
        for p in part._parameters.values():
            if p is not None and id(p) in network.names_by_id:
                owners.setdefault(network.names_by_id[id(p)], set()).add(id(part))
    usable = {network.names_by_id.get(id(layer._parameters.get("weight"))) for _, layer in named_layers(network.module)}
    names = [n for n in chosen if n in usable and len(owners[n]) == 1]
    if not names:
        raise NothingSelected(
            f"nothing can be pruned: the {len(chosen)} selected parameters of the posterior ({', '.join(chosen[:3])}"
            f"{', …' * (len(chosen) > 3)}) include no weight that belongs to one Linear or convolution layer."
        )
    left = [n for n in chosen if n not in names and network.params[n].dim() > 1]
    if left:
        parts = [f"{n} ({_why_not(network.module, n, len(owners[n]) > 1)})" for n in left[:4]]
        more = f" and {len(left) - 4} more" * (len(left) > 4)
        notice(f"not pruned: {', '.join(parts)}{more}; only weights of Linear and convolution layers can be.")
    return names


def _why_not(module: nn.Module, name: str, tied: bool) -> str:
    if tied:
        return "tied"
    owner = owner_of(name)
    if owner.endswith("out_proj"):
        return "MultiheadAttention"
    if name.endswith("_orig"):
        return "already masked: call torch.nn.utils.prune.remove first"
    return type(module.get_submodule(owner)).__name__


def _chosen(posterior: Posterior, layers: Any) -> list[str]:
    """Bayesian parameters of the selected layers."""
    if layers is None:
        return posterior.names()
    network, example = posterior.snapshots[0], None
    picked = selection(layers, network)
    if isinstance(picked, Mask):
        raise BadOption("layers is a mask of weights; pass None, 'last', patterns on module names, or a predicate.")
    if isinstance(picked, Last):
        if posterior.probe is None:
            raise BadOption("this posterior has no stored example to find the last layer; name the layer instead.")
        example = posterior.probe[0]
    names = set(picked.resolve(network, example))
    return [n for n in posterior.names() if n in names]
