"""How much members of an ensemble, or draws of a chain, disagree layer by layer.

Members have no common weight coordinates, and their hidden units none either: units may be permuted or turned. So
layers are compared by what they make of a set of inputs: ``disagreement`` = 1 − CKA (Kornblith et al. 2019), averaged
over pairs, 0 where two layers tell inputs apart alike whatever the order of their units, and near 1 where they have
nothing in common. ``spread``, in the units of the output itself, is for draws that share coordinates.

Index legend: S members, N inputs, D features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from whence.batches import as_inputs
from whence.errors import NotDefined
from whence.functional import arguments
from whence.where.activations import Watch
from whence.where.tabular import Table

MOST = 256  # inputs that take part
MEMBERS = 20


def layers_of(module: nn.Module) -> dict[str, nn.Module]:
    """Modules with parameters of their own, by dotted name, in order."""
    return {n: m for n, m in module.named_modules() if n and any(True for _ in m.parameters(recurse=False))}


@torch.no_grad()
def disagreement(modules: list[nn.Module], x: Any) -> Table:
    """One row for each layer that all members have; the last row is the output."""
    common = [n for n in layers_of(modules[0]) if all(n in layers_of(m) for m in modules[1:])]
    if len(modules) < 2:
        raise NotDefined(f"disagreement needs two members at least, and there is {len(modules)}.")
    grams: dict[str, list[Tensor]] = {name: [] for name in [*common, "output"]}
    for module in modules[:MEMBERS]:
        like = next(module.parameters())
        inputs = next(iter(as_inputs(x, like.device, like.dtype, MOST)))
        args, kwargs = arguments(inputs)
        with Watch({name: layers_of(module)[name] for name in common}) as watch:
            output = module(*args, **kwargs)
        size = len(output)
        for name, value in [*watch.seen.items(), ("output", output)]:
            if value.dim() > 0 and len(value) == size:
                grams[name].append(centred_gram(value))
    kept = {name: found for name, found in grams.items() if len(found) == min(len(modules), MEMBERS)}
    return Table(
        {
            "name": list(kept),
            "disagreement": [1 - mean_alignment(found) for found in kept.values()],
        },
        "1 − CKA of the layer's outputs, averaged over pairs of members",
    )


def centred_gram(values: Tensor) -> Tensor:
    """H K H with K = F Fᵀ, of norm 1, [N, N]."""
    features = values.double().flatten(1)
    features = features - features.mean(0)
    gram = features @ features.mT
    return gram / gram.norm().clamp(min=torch.finfo(torch.float64).tiny)


def mean_alignment(grams: list[Tensor]) -> float:
    """Linear CKA averaged over pairs: ⟨K, L⟩ / (‖K‖ ‖L‖)."""
    stacked = torch.stack([g.flatten() for g in grams])
    similar = stacked @ stacked.mT
    count = len(grams)
    return float((similar.sum() - similar.diagonal().sum()) / (count * (count - 1)))
