"""What is compared, in a form that every library can give and that a results file can hold.

A matrix or a vector is known by its norm, its trace or sum, and by fixed random forms of it. Every layer gives a
short list of numbers; the difference of two results is the largest relative difference over their layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

Summary = dict[str, list[float]]
PROBES = 4


def probes(size: int) -> Tensor:
    """Fixed random directions, [PROBES, size]."""
    return torch.randn(PROBES, size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)


def of_factors(g: Tensor, a: Tensor) -> list[float]:
    """Trace, norm and quadratic forms of G ⊗ A."""
    g, a = g.detach().double().cpu(), a.detach().double().cpu()
    forms = _forms(g) * _forms(a)
    return [float(g.trace() * a.trace()), float(g.norm() * a.norm()), *forms.tolist()]


def of_vector(values: Tensor) -> list[float]:
    """Sum, norm and random sums."""
    v = values.detach().double().cpu().flatten()
    return [float(v.sum()), float(v.norm()), *(probes(len(v)) @ v / math.sqrt(len(v))).tolist()]


def of_matrices(matrices: Tensor) -> Summary:
    """Trace, norm and quadratic forms of each of [N, C, C]."""
    found = {}
    for i, matrix in enumerate(matrices.detach().double().cpu()):
        found[str(i)] = [float(matrix.trace()), float(matrix.norm()), *_forms(matrix).tolist()]
    return found


def _forms(matrix: Tensor) -> Tensor:
    u = probes(len(matrix))
    return torch.einsum("pi,ij,pj->p", u, matrix, u)


def of_share(summary: Summary) -> Summary:
    """The same, known to come from a part of the data only."""
    return {f"share of {name}": values for name, values in summary.items()}


def difference(theirs: Summary | None, ours: Summary | None) -> float | None:
    """The largest relative difference over what both have; None where that is nothing."""
    if not theirs or not ours:
        return None
    found = [_relative(theirs[name], ours[name]) for name in ours if name in theirs]
    return max(found, default=None)


def _relative(a: Iterable[float], b: Iterable[float]) -> float:
    pairs = list(zip(a, b, strict=True))
    off = math.sqrt(sum((x - y) ** 2 for x, y in pairs))
    return off / max(math.sqrt(sum(y * y for _, y in pairs)), 1e-300)
