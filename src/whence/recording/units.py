"""The units of a block: rows of a matrix, filters, channels, attention heads, rows of a table.

Index legend: P weights of a block, E Kronecker pairs, O outputs of a pair, U units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from whence.engine.options import Option
from whence.functional import Network
from whence.recording.blocks import Block, owner_of


class UnitKind(Option):
    """What the units of a block are."""

    ROW = "row"
    FILTER = "filter"
    CHANNEL = "channel"
    HEAD = "head"


KINDS = {
    "Linear": UnitKind.ROW, "Embedding": UnitKind.ROW, "Conv": UnitKind.FILTER, "Norm": UnitKind.CHANNEL,
}  # fmt: skip


@dataclass(frozen=True)
class Units:
    """Which unit each weight of a block belongs to."""

    kind: UnitKind
    count: int
    of_weight: Tensor  # [P], in the block's flat order
    of_row: Tensor | None  # [E · O], where the block is a matrix

    def to(self, device: torch.device) -> Units:
        """The same with its indices on a device."""
        rows = None if self.of_row is None else self.of_row.to(device)
        return replace(self, of_weight=self.of_weight.to(device), of_row=rows)

    def total(self, values: Tensor) -> Tensor:
        """Sum values of weights [..., P] by unit, [..., U]."""
        return _summed(values, self.of_weight, self.count)

    def total_of_rows(self, values: Tensor) -> Tensor:
        """Sum values of a matrix's rows [..., E, O] by unit, [..., U]."""
        assert self.of_row is not None
        values = values.flatten(-2)
        return values if len(self.of_row) == self.count else _summed(values, self.of_row, self.count)


def _summed(values: Tensor, index: Tensor, count: int) -> Tensor:
    return values.new_zeros(*values.shape[:-1], count).index_add(-1, index.to(values.device), values)


def units_of(network: Network, block: Block) -> Units:
    """Units: output rows of a matrix, heads of a packed attention projection, otherwise the first dimension."""
    heads = _heads(network, block)
    if block.form is None:
        index = torch.cat([_first_dimension(p.shape) for p in block.params])
        return Units(_kind(block), int(index.max()) + 1, index, None)
    pairs, outputs, _ = block.form.native
    rows = torch.arange(pairs * outputs) if heads is None else heads
    native = rows.reshape(pairs, outputs, 1).expand(block.form.native)
    return Units(
        _kind(block) if heads is None else UnitKind.HEAD, int(rows.max()) + 1, block.form.unpack(native.clone()), rows
    )


def _kind(block: Block) -> UnitKind:
    return next((kind for part, kind in KINDS.items() if part in block.kind), UnitKind.ROW)


def _first_dimension(shape: tuple[int, ...]) -> Tensor:
    first = shape[0] if shape else 1
    size = torch.Size(shape).numel()
    return torch.arange(first).repeat_interleave(size // max(first, 1))


def _heads(network: Network, block: Block) -> Tensor | None:
    """The head of each row of attention's q, k and v projections, [E · O]; None for other blocks."""
    if block.form is None or block.form.inputs_first:
        return None
    module = network.module.get_submodule(owner_of(block.params[0].name))
    if not isinstance(module, nn.MultiheadAttention):
        return None
    rows = block.form.pairs * block.form.outputs
    if rows % module.embed_dim:
        return None
    return torch.arange(rows) % module.embed_dim // (module.embed_dim // module.num_heads)
