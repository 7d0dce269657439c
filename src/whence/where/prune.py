"""Pruning by what the posterior knows: masks on a copy of the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from whence.copies import copy_module
from whence.curvature.blocks import owner_of
from whence.curvature.selection import Layers
from whence.errors import BadOption, NothingSelected, UnsupportedLayer, notice, one_of
from whence.posteriors.base import WeightPosterior
from whence.randomness import resolve_seed
from whence.where.by_draws import at_mean
from whence.where.pruning_scores import CRITERIA, prunable, scores, unit_scores
from whence.where.wiring import NORM, like_weight, named_layers, trace, units_of

By = Literal["snr", "identified", "saliency", "magnitude", "random"]


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

    Weights of Linear and convolution layers are pruned; biases and norms stay. ``torch.nn.utils.prune.remove`` makes
    a mask permanent, :func:`whence.compact` takes pruned units out. Parameters outside the posterior come back frozen.

    Args:
        posterior: a posterior over weights: of :func:`whence.laplace`, :func:`whence.variational`, :func:`whence.swag`.
        fraction: in [0, 1): the part of all prunable weights (of all units, with ``units``) that goes.
        by: the lowest go first, ties by index. ``"snr"``: |weight| / standard deviation; ``"identified"``:
            1 − posterior variance / prior variance; ``"saliency"``: ½ weight² H_ii, the loss of optimal brain damage
            (LeCun et al. 1989); ``"magnitude"``; ``"random"``.
        units: whole units (rows, filters, output channels) with their biases, and their channels in a batch norm that
            follows. A unit's score is the mean over its weights, for saliency the sum. The output layer is left
            alone, and every layer keeps at least one unit.
        per_layer: ``fraction`` of each layer rather than of all layers together.
        layers: which of the posterior's layers: ``None`` all, ``"last"``, patterns on module names, or a predicate.
        seed: of ``"random"`` (0); or a ``generator`` that one is drawn from.
    """
    seed = resolve_seed(seed, generator)
    check_fraction(fraction)
    one_of(by, CRITERIA, "by")
    plan = PruningPlan.make(posterior, units, layers)
    return plan.apply(plan.rank(by, per_layer, seed).keep(fraction))


def check_fraction(fraction: float) -> float:
    """In [0, 1)."""
    if isinstance(fraction, bool) or not isinstance(fraction, Real) or not 0 <= fraction < 1:
        raise BadOption(f"fraction={fraction!r} is not in [0, 1): 0.9 prunes nine weights in ten.")
    return float(fraction)


@dataclass(frozen=True)
class Ranking:
    """The order in which weights (or units) go, by group: one group, or one for each layer."""

    names: list[list[str]]  # weights of each group
    shapes: dict[str, torch.Size]  # of what is ranked in them
    orders: list[Tensor]  # of each group: indices in its joined vector, first to go first
    fixed: int  # entries of each layer that stay in any case; they are last in the order

    def keep(self, fraction: float) -> dict[str, Tensor]:
        """True where it stays, by weight, at this fraction."""
        found: dict[str, Tensor] = {}
        for names, order in zip(self.names, self.orders, strict=True):
            count = min(round(fraction * len(order)), len(order) - self.fixed * len(names))
            stays = torch.ones(len(order), dtype=torch.bool)
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
        return _with_units(posterior, names) if units else cls(posterior, names, False)

    def layer(self, name: str, module: nn.Module | None = None) -> nn.Module:
        """The layer of a weight, in the posterior's network or in a copy of it."""
        return (module or self.posterior.network.module).get_submodule(owner_of(name))

    def rank(self, by: str, per_layer: bool = False, seed: int = 0) -> Ranking:
        """Order all candidates by a criterion."""
        found = scores(self.posterior, self.names, by, seed)
        if self.units:
            found = {n: _guarded(unit_scores(self.layer(n), score, by)) for n, score in found.items()}
        groups = [[n] for n in self.names] if per_layer else [self.names]
        orders = [torch.cat([found[n].flatten() for n in group]).argsort(stable=True) for group in groups]
        return Ranking(groups, {n: s.shape for n, s in found.items()}, orders, int(self.units))

    def apply(self, keep: dict[str, Tensor]) -> nn.Module:
        """A copy of the network with these masks."""
        module = at_mean(self.posterior.network, self.posterior.mean()).module
        for name, stays in keep.items():
            layer = self.layer(name, module)
            stays = stays.to(self.posterior.network.device)
            if not self.units:
                torch_prune.custom_from_mask(layer, "weight", stays)
                continue
            torch_prune.custom_from_mask(layer, "weight", like_weight(layer, stays))
            _mask_vector(layer, "bias", stays)
            for norm in self.norms[name]:
                _mask_vector(module.get_submodule(norm), "weight", stays)
                _mask_vector(module.get_submodule(norm), "bias", stays)
        return module

    def sparsity(self, keep: dict[str, Tensor]) -> float:
        """Part of the prunable weights that the masks take."""
        sizes = {n: self.posterior.network.params[n].numel() for n in keep}
        gone = sum(int((~stays).sum()) * (sizes[n] // stays.numel()) for n, stays in keep.items())
        return gone / sum(sizes.values())


def _guarded(unit: Tensor) -> Tensor:
    """The scores with the best unit's made infinite, so that it stays."""
    unit = unit.clone()
    unit[unit.argmax()] = math.inf
    return unit


def _mask_vector(module: nn.Module, name: str, stays: Tensor) -> None:
    if isinstance(module._parameters.get(name), nn.Parameter):
        torch_prune.custom_from_mask(module, name, stays)


def _with_units(posterior: WeightPosterior, names: Sequence[str]) -> PruningPlan:
    """The plan for whole units: without output layers, with the batch norms that follow."""
    module = copy_module(posterior.network.module)  # tracing runs the user's code
    layers = {n: module.get_submodule(owner_of(n)) for n in names}
    paths = {id(part): path for path, part in module.named_modules()}
    try:
        wiring = trace(module)
    except UnsupportedLayer as error:
        if any(isinstance(m, NORM) for m in module.modules()):
            raise UnsupportedLayer(
                f"{error}, so that the batch norm behind each unit is not known; prune weights with units=False."
            ) from error
        *_, (path, last) = named_layers(module)
        notice(f"{error}; {path!r}, which comes last, is taken for the output layer.")
        outputs = {id(last)}
        norms: dict[str, list[str]] = {n: [] for n in names}
    else:
        outputs = {id(layer) for layer in wiring.output_layers()}
        found = {n: wiring.norms_after(layer, units_of(layer)) for n, layer in layers.items()}
        norms = {n: [paths[id(norm)] for norm in after] for n, after in found.items()}
    kept = [n for n in names if id(layers[n]) not in outputs]
    if not kept:
        raise NothingSelected(
            f"no unit can be pruned: {', '.join(map(owner_of, names))} is the output layer; use units=False."
        )
    return PruningPlan(posterior, kept, True, {n: norms[n] for n in kept})
