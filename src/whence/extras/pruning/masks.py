"""Masks on the least needed weights, units or layers according to a posterior, on a copy of the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from whence import errors
from whence.copies import copy_module
from whence.engine.batches import Inputs, map_tensors, tensors_in
from whence.engine.options import Option
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
from whence.extras.pruning.criteria import CRITERIA, By, Criterion, Tensors
from whence.extras.pruning.graph import NORM, by_unit, like_weight, named_layers, trace, units_of
from whence.functional import Network
from whence.posteriors.base import Posterior, WeightPosterior, is_posterior
from whence.recording.blocks import owner_of
from whence.recording.selection import Last, Layers, Mask, selection
from whence.where.sampled import at_mean

UnitsOption = bool | Literal["layers"]


class Pieces(Option):
    """What is pruned as one."""

    WEIGHTS = "weights"
    UNITS = "units"
    LAYERS = "layers"

    @classmethod
    def of(cls, units: UnitsOption) -> Pieces:
        """The option ``units``."""
        if isinstance(units, str):
            return cls(one_of(units, ("layers",), "units (True, False or 'layers')"))
        return cls.UNITS if units else cls.WEIGHTS


@explains_keywords
@torch.inference_mode(False)
@torch.no_grad()
def prune(
    posterior: WeightPosterior,
    fraction: float | None = None,
    *,
    threshold: float | None = None,
    by: By = "snr",
    units: UnitsOption = False,
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
        threshold: instead of ``fraction``: prune every weight (unit, layer) whose score is at most this;
            ``threshold=1e-3, by="magnitude"`` after a training with ``l1=``.
        by: criterion, lowest first, ties by index. ``"snr"``: |weight| / standard deviation; ``"identified"``:
            1 − posterior variance / prior variance; ``"saliency"``: ½ weight² H_ii, the loss of optimal brain damage
            (LeCun et al. 1989); ``"relative_curvature"``: weight² H_ii / N, which ranks single weights as saliency
            does, but units and layers by the mean over their weights; ``"magnitude"``; ``"random"``.
        units: whole units (rows, filters, output channels) with their biases, and their channels in a batch norm that
            follows. A unit's score is the mean over its weights, for saliency the sum. The output layer is not
            pruned, and every layer keeps at least one unit. ``"layers"``: whole layers, of those that have a path
            around them, as in residual networks.
        per_layer: ``fraction`` of each layer instead of all layers together.
        layers: which of the posterior's layers: ``None`` all, ``"last"``, patterns on module names, or a predicate.
        seed: seed of ``"random"`` (0); or a ``generator`` to draw it from.
    """
    seed = resolve_seed(seed, generator)
    check_amount(fraction, threshold, per_layer)
    criterion = CRITERIA[one_of(by, CRITERIA, "by")]
    plan = PruningPlan.make(posterior, Pieces.of(units), layers)
    if fraction is None:
        assert threshold is not None
        return plan.apply(plan.above(criterion, threshold, seed))
    return plan.apply(plan.rank(criterion, per_layer, seed).keep(fraction))


def check_amount(fraction: float | None, threshold: float | None, per_layer: bool) -> None:
    """Check that either a fraction or a threshold says how much is pruned."""
    if (fraction is None) == (threshold is None):
        raise BadOption(f"pass fraction= or threshold=, one of the two; here {fraction!r} and {threshold!r}.")
    if fraction is not None:
        check_fraction(fraction)
        return
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not math.isfinite(threshold):
        raise BadOption(f"threshold={threshold!r} must be a finite number: the largest score that is pruned.")
    if per_layer:
        raise BadOption("per_layer=True applies to fraction=; a threshold is the same for all layers.")


def check_fraction(value: float) -> float:
    """Check that a fraction is in [0, 1)."""
    return errors.fraction(value, "fraction", "0.9 prunes nine weights in ten", zero=True)


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
    pieces: Pieces = Pieces.WEIGHTS
    norms: dict[str, list[str]] = field(default_factory=dict)  # weight → batch norms over its units

    @classmethod
    def make(cls, posterior: WeightPosterior, pieces: Pieces, layers: Any = None) -> PruningPlan:
        names = prunable(posterior, layers)
        if pieces is Pieces.WEIGHTS:
            return cls(posterior, names)
        return (_unit_plan if pieces is Pieces.UNITS else _layer_plan)(posterior, names)

    def layer(self, name: str, module: nn.Module | None = None) -> nn.Module:
        """The layer of a weight, in the posterior's network or in a copy of it."""
        return (module or self.posterior.network.module).get_submodule(owner_of(name))

    def scores(self, criterion: Criterion, seed: int = 0) -> Tensors:
        """One score for each weight, unit or layer, in float64 on the CPU."""
        criterion.check(self.posterior)
        mean = self.posterior.mean()
        weights = {n: mean[n].detach().double().cpu() for n in self.names}
        found = criterion.scores(self.posterior, weights, seed)
        if self.pieces is Pieces.WEIGHTS:
            return found
        if self.pieces is Pieces.LAYERS:
            return {n: criterion.of_unit(score.reshape(1, -1)) for n, score in found.items()}
        return {n: criterion.of_unit(by_unit(self.layer(n), score).flatten(1)) for n, score in found.items()}

    def rank(self, criterion: Criterion, per_layer: bool = False, seed: int = 0) -> Ranking:
        """Order all candidates by a criterion."""
        found = self.scores(criterion, seed)
        if self.pieces is Pieces.UNITS:
            found = {n: _with_best_fixed(score) for n, score in found.items()}
        groups = [[n] for n in self.names] if per_layer else [self.names]
        device = self.posterior.network.device  # sorting millions of scores takes a CPU seconds
        orders = [torch.cat([found[n].flatten() for n in group]).to(device).argsort(stable=True) for group in groups]
        return Ranking(groups, {n: s.shape for n, s in found.items()}, orders, int(self.pieces is Pieces.UNITS))

    def above(self, criterion: Criterion, threshold: float, seed: int = 0) -> Tensors:
        """Masks that keep what scores above a threshold; of units also the best of each layer."""
        found = self.scores(criterion, seed)
        if self.pieces is Pieces.UNITS:
            found = {n: _with_best_fixed(score) for n, score in found.items()}
        keep = {n: score > threshold for n, score in found.items()}
        if not any(bool(stays.any()) for stays in keep.values()):
            largest = max(float(score.max()) for score in found.values())
            raise NothingSelected(f"no score is above threshold={threshold:g} (the largest is {largest:.3g}).")
        return keep

    def apply(self, keep: Tensors) -> nn.Module:
        """A copy of the network with these masks."""
        module = at_mean(self.posterior.network, self.posterior.mean()).module
        for name, stays in keep.items():
            layer = self.layer(name, module)
            stays = stays.to(self.posterior.network.device)
            if self.pieces is Pieces.LAYERS:
                stays = stays.expand(units_of(layer))
            whole = self.pieces is not Pieces.WEIGHTS
            torch_prune.custom_from_mask(layer, "weight", like_weight(layer, stays) if whole else stays)
            if whole:
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
    outputs, norms = _surroundings(posterior, names)
    kept = [n for n in names if owner_of(n) not in outputs]
    if not kept:
        raise NothingSelected(
            f"no unit can be pruned: {', '.join(map(owner_of, names))} is the output layer; use units=False."
        )
    return PruningPlan(posterior, kept, Pieces.UNITS, {n: norms[n] for n in kept})


def _layer_plan(posterior: WeightPosterior, names: Sequence[str]) -> PruningPlan:
    """The plan for whole layers: those without which the outputs still depend on the inputs."""
    if posterior.probe is None:
        raise BadOption("this posterior has no stored example to find layers with a path around them; use laplace().")
    _, norms = _surroundings(posterior, names)
    plan = PruningPlan(posterior, list(names), Pieces.LAYERS, norms)
    gone = torch.zeros(1, dtype=torch.bool)
    kept = [n for n in names if depends_on_inputs(plan.apply({n: gone}), posterior.probe[0])]
    if not kept:
        raise NothingSelected(
            "no layer can be pruned: without any one of them the outputs no longer depend on the inputs. Only layers "
            "with a path around them can be, as in residual networks; use units=True."
        )
    return PruningPlan(posterior, kept, Pieces.LAYERS, {n: norms[n] for n in kept})


def _surroundings(posterior: WeightPosterior, names: Sequence[str]) -> tuple[set[str], dict[str, list[str]]]:
    """The output layers, and the batch norms after each weight's layer."""
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
        *_, (path, _) = named_layers(module)
        notice(f"{error}; {path!r}, the last layer, is assumed to be the output layer.")
        return {path}, {n: [] for n in names}
    found = {n: traced.norms_after(layer, units_of(layer)) for n, layer in layers.items()}
    outputs = {paths[id(layer)] for layer in traced.output_layers()}
    return outputs, {n: [paths[id(norm)] for norm in after] for n, after in found.items()}


@torch.enable_grad()
def depends_on_inputs(module: nn.Module, inputs: Inputs) -> bool:
    """Whether any output has a gradient in any input (of tokens: in a table of embeddings)."""
    moved = map_tensors(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()), inputs)
    wanted = [t for t in tensors_in(moved) if t.requires_grad]
    if not wanted:
        tables = [m.weight for m in module.modules() if isinstance(m, nn.Embedding)]
        wanted = [table.requires_grad_() for table in tables]
    outputs = Network(module)(moved)
    noise = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs)
    found = torch.autograd.grad(outputs, wanted, noise, allow_unused=True) if wanted else ()
    return any(g is not None and bool(g.any()) for g in found)


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
