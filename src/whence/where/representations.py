"""How much members of an ensemble, or draws of a chain, disagree layer by layer.

Members have no common weight coordinates, and their hidden units none either: units may be permuted or turned. So
layers are compared by what they make of a set of inputs: ``disagreement`` = 1 − CKA (Kornblith et al. 2019), averaged
over pairs, 0 where two layers tell inputs apart alike whatever the order of their units, and near 1 where they have
nothing in common. ``spread``, in the units of the output itself, is for draws that share coordinates.

Index legend: S members, N inputs, D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whence.batches import as_inputs
from whence.errors import NotDefined
from whence.functional import arguments, output_tensor
from whence.where.activations import Watch
from whence.where.tabular import Table

MOST = 256  # inputs that take part
MEMBERS = 20
FEWEST = 3  # inputs


def layers_of(module: nn.Module) -> dict[str, nn.Module]:
    """Modules with parameters of their own, by dotted name, in order."""
    return {n: m for n, m in module.named_modules() if n and any(True for _ in m.parameters(recurse=False))}


@torch.no_grad()
def disagreement(modules: list[nn.Module], x: Any, weights: Sequence[float] | None = None) -> Table:
    """One row for each layer that all members have; the last row is the output. None where CKA is not defined.

    ``weights``: of the members; a pair counts by the product of its two.
    """
    chosen, parts = _different(modules, weights)
    if len(chosen) < 2:
        raise NotDefined(f"disagreement needs two different members at least, and there is {len(chosen)}.")
    common = [n for n in layers_of(chosen[0]) if all(n in layers_of(m) for m in chosen[1:])]
    grams: dict[str, list[Tensor | None]] = {name: [] for name in [*common, "output"]}
    for module in chosen:
        like = next(module.parameters())
        inputs = next(iter(as_inputs(x, like.device, like.dtype, MOST)))
        args, kwargs = arguments(inputs)
        with Watch({name: layers_of(module)[name] for name in common}) as watch:
            output = output_tensor(module(*args, **kwargs))
        if len(output) < FEWEST:
            raise NotDefined(f"disagreement is over inputs: {FEWEST} at least, and there is {len(output)}.")
        for name, value in [*watch.seen.items(), ("output", output)]:
            if value.dim() > 0 and len(value) == len(output):
                grams[name].append(centred_gram(value))
    kept = {name: found for name, found in grams.items() if len(found) == len(chosen)}
    return Table(
        {"name": list(kept), "disagreement": [_apart(found, parts) for found in kept.values()]},
        "1 − CKA of the layer's outputs, averaged over pairs of members",
    )


def _different(modules: list[nn.Module], weights: Sequence[float] | None) -> tuple[list[nn.Module], list[float]]:
    """Each member once, at most twenty."""
    given = [1.0] * len(modules) if weights is None else [float(w) for w in weights]
    found: dict[int, tuple[nn.Module, float]] = {}
    for module, weight in zip(modules, given, strict=True):
        found.setdefault(id(module), (module, weight))
    some = list(found.values())[:MEMBERS]
    return [module for module, _ in some], [weight for _, weight in some]


def _apart(grams: list[Tensor | None], weights: list[float]) -> float | None:
    """1 − CKA; None where a layer gives the same for all inputs."""
    there = [g for g in grams if g is not None]
    return max(0.0, 1 - mean_alignment(there, weights)) if len(there) == len(grams) else None


def centred_gram(values: Tensor) -> Tensor | None:
    """H K H with K = F Fᵀ, of norm 1, [N, N]; None where it vanishes."""
    features = values.double().reshape(len(values), -1)
    scale = features.norm()
    features = features - features.mean(0)
    gram = features @ features.mT
    norm = gram.norm()
    return gram / norm if bool(norm > (1e-12 * scale) ** 2) and bool(norm > 0) else None


def mean_alignment(grams: list[Tensor], weights: Sequence[float] | None = None) -> float:
    """Linear CKA averaged over pairs: ⟨K, L⟩ / (‖K‖ ‖L‖)."""
    stacked = torch.stack([g.flatten() for g in grams])
    similar = stacked @ stacked.mT
    w = torch.ones(len(grams)) if weights is None else torch.tensor(weights)
    pairs = w.to(similar).unsqueeze(1) * w.to(similar)
    pairs.fill_diagonal_(0)
    return float((similar * pairs).sum() / pairs.sum())
