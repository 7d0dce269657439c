"""The diagonal of a large weight that several kinds of calls share, such as a tied embedding and head.

An exact diagonal sums an example's gradients over calls and positions before it squares them, which takes a row as long
as the weight for every example. Here squares are summed call by call, and in matrix calls position by position. For an
output layer that is no loss: labels are drawn independently at every position, so the mixed terms vanish on average.

Index legend: K root columns, N examples, T positions, E Kronecker pairs, O outputs, D inputs, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.curvature.blocks import Block
from whence.curvature.capture import Ref
from whence.curvature.jacobian import CalledUse, chunks, widened
from whence.curvature.layout import as_weight
from whence.curvature.rows import summed_at_first
from whence.curvature.rules import EmbeddingRule, MatrixRule

if TYPE_CHECKING:
    from whence.curvature.jacobian import Gradients


def squares_by_call(block: Block, grads: Gradients, dtype: torch.dtype) -> Tensor:
    """Σ over calls of Σ (gradient)², [P] in the block's flat order."""
    total = torch.zeros(block.size, dtype=dtype, device=grads.columns.device)
    pieces = dict(zip((p.name for p in block.params), total.split([p.numel for p in block.params]), strict=True))
    shapes = {p.name: p.shape for p in block.params}
    for index, _ in grads.recording.calls_of.get(block.name, []):
        for ref, squares in _squares(grads.recording.called[index], widened(grads.grads[index]), dtype):
            if ref.name in pieces:
                rows = pieces[ref.name].view(shapes[ref.name])[ref.start : ref.stop]
                rows += squares.reshape(rows.shape)
    return total


def _squares(called: CalledUse, g: Tensor, dtype: torch.dtype) -> Iterator[tuple[Ref, Tensor]]:
    """What one call adds to the diagonal of its weight, and of its bias."""
    use, rule = called.use, called.use.rule
    if isinstance(rule, MatrixRule):
        if use.weight is not None:
            yield use.weight, as_weight(_products(g, called.features, dtype), rule)
        if use.bias is not None:
            yield use.bias, g.to(dtype).square().sum((0, 2, 3))
    elif isinstance(rule, EmbeddingRule):
        assert use.weight is not None
        merged = summed_at_first(called.features, g)  # [K, N, T, F]
        table = torch.zeros(use.weight.rows, g.shape[-1], dtype=dtype, device=g.device)
        yield use.weight, table.index_add_(0, called.features.flatten(), merged.to(dtype).square().sum(0).flatten(0, 1))
    else:
        if use.weight is not None:
            yield use.weight, (g * called.features).sum(2).to(dtype).square().sum((0, 1))
        if use.bias is not None:
            yield use.bias, g.sum(2).to(dtype).square().sum((0, 1))


def _products(g: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Σ_{k,n,t} g² ⊗ x² for g [K, E, N, T, O] and x [E, N, T, D]: [E, O, D]."""
    flat, seen = g.flatten(2, 3), x.flatten(1, 2)  # [K, E, R, O], [E, R, D]
    total = torch.zeros(x.shape[0], g.shape[-1], x.shape[-1], dtype=dtype, device=g.device)
    each = len(g) * x.shape[0] * (g.shape[-1] + x.shape[-1]) * total.element_size()
    for which in chunks(flat.shape[2], 2 * each, g.device):
        squares = flat[:, :, which].to(dtype).square()
        summed = squares[0] if len(squares) == 1 else squares.sum(0)  # [E, r, O]
        total += summed.mT @ seen[:, which].to(dtype).square()
    return total
