"""Σ_{k,n} (Σ_t g aᵀ)² of a matrix: the diagonal of its curvature, exact for weights that are shared over positions.

Index legend: K root columns, N examples, T positions, E Kronecker pairs, O outputs, D inputs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from whence.curvature.jacobian import Gradients, MatrixPart, chunks, widened

PAIRS_PAY = 1.5  # times the multiplications of rows, up to which pairs of positions are faster
LARGE = 2 * 2**20  # bytes of one example's rows from which on they are made one by one on the CPU


def matrix_squares(parts: list[MatrixPart], native: tuple[int, ...], grads: Gradients) -> Tensor:
    """Σ_{k,n} (Σ_t g aᵀ)², [E, O, D], by the cheapest way that is open."""
    total = widened((parts[0].g if parts else grads.columns).new_zeros(native))
    if not parts:
        return total  # the layer was not called in this batch
    part = parts[0]
    if is_unshared(parts, native[0]):
        squares = part.g.square().sum(0).squeeze(2)  # [E, N, O]
        return squares.mT @ part.a.dense().squeeze(2).square()
    if len(parts) == 1 and part.pairs == slice(0, native[0]):
        if (part.a.positions + 1) / 2 <= PAIRS_PAY * grads.count:
            return _by_pairs(part, total)
        if part.g.device.type == "cpu" and grads.count * total[0].numel() * total.element_size() > LARGE:
            return _one_by_one(part, total)
    for part_rows in summed_rows(parts, native, grads):
        total += part_rows.square().sum((0, 1))
    return total


def is_unshared(parts: list[MatrixPart], pairs: int) -> bool:
    """Whether there is one call, over all pairs, with one position for each example."""
    return len(parts) == 1 and parts[0].a.positions == 1 and parts[0].pairs == slice(0, pairs)


def summed_rows(parts: list[MatrixPart], native: tuple[int, ...], grads: Gradients) -> Iterator[Tensor]:
    """Chunks over examples of Σ_calls Σ_t g aᵀ, [K, n, E, O, D]."""
    each = grads.count * int(torch.Size(native).numel()) * grads.columns.element_size()
    for which in chunks(grads.recording.size, each, grads.columns.device):
        if len(parts) == 1 and parts[0].pairs == slice(0, native[0]):
            yield parts[0].rows(which)
            continue
        size = which.stop - which.start
        rows = parts[0].g.new_zeros(grads.count, size, *native)
        for part in parts:
            rows[:, :, part.pairs] += part.rows(which)
        yield rows


def _by_pairs(part: MatrixPart, total: Tensor) -> Tensor:
    """Σ_{t,t'} (Σ_k g_t g_t') (a_t a_t'): one product over examples and pairs of positions, no rows."""
    positions, columns = part.a.positions, len(part.g)
    one, other = torch.triu_indices(positions, positions, device=total.device)
    twice = torch.where(one == other, 1.0, 2.0).to(total.dtype).unsqueeze(-1)
    widest = max(total.shape[1:])
    for which in chunks(part.a.x.shape[1], len(one) * widest * total.element_size(), total.device):
        a, g = part.a.take(which).dense(), part.g[:, :, which]  # [E, n, T, D], [K, E, n, T, O]
        outer = g[0][:, :, one] * g[0][:, :, other]
        for k in range(1, columns):
            outer.addcmul_(g[k][:, :, one], g[k][:, :, other])
        inner = a[:, :, one] * a[:, :, other] * twice
        total += outer.flatten(1, 2).mT @ inner.flatten(1, 2)
    return total


def _one_by_one(part: MatrixPart, total: Tensor) -> Tensor:
    """Row after row in memory that stays in the cache: there are too many to be held together."""
    a, row = part.a.dense(), torch.empty_like(total[0])
    for e, pair in enumerate(total):
        for n in range(a.shape[1]):
            for g in part.g[:, e, n]:
                torch.mm(g.mT, a[e, n], out=row)
                pair.addcmul_(row, row)
    return total
