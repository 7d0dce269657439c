"""Per-example gradients of one call.

Index legend: K columns, N examples, T positions, E pairs, O outputs, D inputs, F features of a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.curvature.affine import outer_sum
from whence.curvature.capture import Ref
from whence.curvature.layout import as_weight
from whence.curvature.rules import EmbeddingRule, MatrixRule

if TYPE_CHECKING:
    from whence.curvature.jacobian import CalledUse


def summed_at_first(ids: Tensor, g: Tensor) -> Tensor:
    """Gradients [K, N, T, F] of looked-up rows [N, T], those of an example's same index summed at its first place."""
    first = (ids.unsqueeze(2) == ids.unsqueeze(1)).byte().argmax(2)  # [N, T]: first position of the same index
    return torch.zeros_like(g).scatter_add(2, first[None, :, :, None].expand_as(g), g)


def use_rows(called: CalledUse, g: Tensor, which: slice) -> Iterator[tuple[Ref, Tensor]]:
    """Per-example gradients of a use's weight and bias, [K, n, numel]."""
    use, rule = called.use, called.use.rule
    if isinstance(rule, MatrixRule):
        g = g[:, :, which]
        if use.weight is not None:
            native = outer_sum(g, called.features[:, which])
            yield use.weight, as_weight(native, rule).flatten(2)
        if use.bias is not None:
            yield use.bias, g.sum(3).movedim(1, 2).flatten(2)
    elif isinstance(rule, EmbeddingRule):
        assert use.weight is not None
        g, ids = g[:, which], called.features[which]
        table = g.new_zeros(*g.shape[:2], use.weight.rows, g.shape[-1])
        yield use.weight, table.scatter_add(2, ids[None, :, :, None].expand_as(g), g).flatten(2)
    else:
        g = g[:, which]
        if use.weight is not None:
            yield use.weight, (g * called.features[which]).sum(2)
        if use.bias is not None:
            yield use.bias, g.sum(2)
