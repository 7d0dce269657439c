"""Which part of the output's variance each incoming connection of a unit causes.

A connection joins a unit to one of its inputs: a weight of a Linear layer, a kernel of a convolution. The bias is one
of its own; of an attention head the query, key and value rows are three; of a norm its weight and its bias are two. The
parts are covariance shares, tr[J_w (Σ Jᵀ)_w] summed over the weights w of a connection; they add up to their unit's.

Index legend: N inputs, K columns, E Kronecker pairs, O outputs, D inputs of a layer, U rows of the units asked for,
G connections, P weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.blocks import Block
from whence.curvature.jacobian import Gradients
from whence.curvature.squares import is_unshared
from whence.curvature.units import Units, units_of
from whence.linalg.spectral import KroneckerSpectral, turn, turn_back, turn_left
from whence.posteriors.block import BlockGaussian
from whence.predictive.projection import shared_rows
from whence.where.shares import Measure, by_pieces, elements
from whence.where.tabular import Table

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace


@dataclass(frozen=True)
class Connections:
    """The connections of a block: which one each weight belongs to."""

    names: tuple[str, ...]  # [G]
    of_weight: Tensor  # [P], in the block's flat order

    @property
    def count(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class ConnectionShares:
    """Σₓ of the part of tr V of each connection of some units, under the posterior and under the prior alone."""

    units: tuple[int, ...]
    connections: Connections
    variance: Tensor  # [units, G], float64 on the CPU; zero where a unit has no such connection
    prior: Tensor  # [units, G]


def connections_of(block: Block, units: Units) -> Connections | None:
    """None for a table of embeddings, whose rows have no further parts."""
    if block.source == "table":
        return None
    if block.form is None:
        index = torch.cat([torch.full((p.numel,), i) for i, p in enumerate(block.params)])
        return Connections(tuple(p.name.rpartition(".")[2] for p in block.params), index)
    if units.kind == "head":
        return _of_heads(block, units)
    form = block.form
    kernel = math.prod(block.params[0].shape[2:]) if form.inputs else 1
    sources = form.inputs // kernel
    index = (torch.arange(form.inputs) // kernel).expand(form.pairs, form.outputs, -1)
    index = index + sources * torch.arange(form.pairs).reshape(-1, 1, 1)
    if form.bias:
        last = torch.full((form.pairs, form.outputs, 1), form.pairs * sources)
        index = torch.cat([index, last], -1)
    word = "channel" if kernel > 1 or len(block.params[0].shape) > 2 else "input"
    names = [f"{word} {i}" for i in range(form.pairs * sources)] + ["bias"] * form.bias
    return Connections(tuple(names), form.unpack(index.contiguous()))


def _of_heads(block: Block, units: Units) -> Connections:
    """Query, key and value, where they are packed into one projection."""
    assert block.form is not None and units.of_row is not None
    rows = len(units.of_row)
    width = rows // 3 if rows % 3 == 0 and block.params[0].name.endswith(("in_proj_weight", "in_proj_bias")) else rows
    index = (torch.arange(rows) // width).reshape(*block.form.native[:2], 1).expand(block.form.native)
    names = ("query", "key", "value") if width < rows else ("weights",)
    return Connections(names, block.form.unpack(index.contiguous()))


@torch.inference_mode(False)
def connection_shares(
    posterior: Laplace, x: Any, chosen: Mapping[str, list[int]], measure: Measure = "variance"
) -> dict[str, ConnectionShares]:
    """The parts of the connections of some units, by layer; tables of embeddings are left out."""
    places = {}
    for block in posterior.blocks:
        if chosen.get(block.name):
            units = units_of(posterior.network, block)
            found = connections_of(block, units)
            if found is not None:
                places[block.name] = _Places(block, units, found, chosen[block.name])
    sums = {
        name: torch.zeros(2, len(p.chosen) * p.connections.count, dtype=torch.float64) for name, p in places.items()
    }
    for parts in by_pieces(posterior, x, measure, lambda _, grads: dict(_by_layer(posterior, places, grads))):
        for name, part in parts.items():
            sums[name] += part
    return {
        name: ConnectionShares(tuple(p.chosen), p.connections, *sums[name].reshape(2, len(p.chosen), -1))
        for name, p in places.items()
    }


def _by_layer(posterior: Laplace, places: Mapping[str, _Places], grads: Gradients) -> Iterator[tuple[str, Tensor]]:
    """The parts [2, …] of one piece of the inputs."""
    for gaussian, blocks in posterior.gaussians():
        if posterior.curvature.joint:
            parts = torch.stack(elements(gaussian, blocks, grads)).sum(1).cpu()  # [2, P]
            for block, part in zip(blocks, parts.split([b.size for b in blocks], -1), strict=True):
                if block.name in places:
                    yield block.name, places[block.name].total(part)
        elif blocks[0].name in places:
            yield blocks[0].name, _of_block(gaussian, places[blocks[0].name], grads)


def connection_table(found: ConnectionShares, total: float, prior_total: float) -> Table:
    """One row for each unit and connection that it has, as shares of the network's whole variance."""
    tiny = torch.finfo(torch.float64).tiny
    units, index = (found.prior > 0).nonzero(as_tuple=True)
    variance, prior = found.variance[units, index], found.prior[units, index]
    return Table(
        {
            "unit": torch.tensor(found.units)[units],
            "connection": [found.connections.names[i] for i in index.tolist()],
            "variance_share": variance / max(total, tiny),
            "prior_share": prior / max(prior_total, tiny),
            "explained": 1 - variance / prior.clamp(min=tiny),
        },
        "connections that reach nothing are left out",
    )


@dataclass(frozen=True)
class _Places:
    """Where the weights of the chosen units go in a table [chosen, G]."""

    block: Block
    units: Units
    connections: Connections
    chosen: list[int]

    @property
    def cells(self) -> int:
        return len(self.chosen) * self.connections.count

    def cell(self) -> Tensor:
        """The cell of each weight, [P]; −1 for units that were not chosen."""
        place = torch.full((self.units.count,), -1)
        place[self.chosen] = torch.arange(len(self.chosen))
        place = place[self.units.of_weight]
        return torch.where(place < 0, -1, place * self.connections.count + self.connections.of_weight)

    def total(self, values: Tensor, cell: Tensor | None = None) -> Tensor:
        """Values [2, P] by cell, [2, chosen · G]."""
        cell = self.cell() if cell is None else cell
        mine = cell >= 0
        return torch.zeros(2, self.cells, dtype=torch.float64).index_add(1, cell[mine], values.double().cpu()[:, mine])

    def rows(self) -> list[Tensor]:
        """Rows of the chosen units in each Kronecker pair."""
        assert self.units.of_row is not None and self.block.form is not None
        wanted = torch.isin(self.units.of_row, torch.tensor(self.chosen)).reshape(self.block.form.native[:2])
        return [pair.nonzero().flatten() for pair in wanted]


def _of_block(gaussian: BlockGaussian, places: _Places, grads: Gradients) -> Tensor:
    """[2, chosen · G] of one piece."""
    block = places.block
    if isinstance(gaussian.spectral, KroneckerSpectral):
        cells = block.to_native(places.cell())  # [E, O, D]
        total: Tensor | None = None
        for pair, rows in enumerate(places.rows()):
            if len(rows):
                values = _kronecker(gaussian, gaussian.spectral, block, grads, pair, rows)
                part = places.total(values.flatten(1), cells[pair, rows].flatten())
                total = part if total is None else total + part
        assert total is not None
        return total
    found = torch.zeros(2, block.size, dtype=torch.float64)
    for which in grads.row_chunks(block):
        rows_of = grads.rows(block, which)  # [K, n, P]
        moved, alone = gaussian.solve(rows_of), rows_of * gaussian.prior_variance()
        found += torch.stack([(rows_of * other).double().sum((0, 1)) for other in (moved, alone)]).cpu()
    return places.total(found)


def _kronecker(
    gaussian: BlockGaussian, spectral: KroneckerSpectral, block: Block, grads: Gradients, pair: int, rows: Tensor
) -> Tensor:
    """Parts of the weights in some rows of one pair, posterior and prior, [2, U, D]."""
    assert block.form is not None
    parts = grads.parts(block)
    weights, rest = (1 / gaussian.precision)[pair], 1 / gaussian.rest
    rows = rows.to(weights.device)
    left, right = (None if b is None else b[pair : pair + 1] for b in (spectral.left, spectral.right))
    ratio = None if spectral.ratio is None else spectral.ratio.dense()[pair, rows]  # [U, D]
    own_left = turn_left(torch.eye(len(weights), dtype=weights.dtype, device=weights.device), left)
    own_left = own_left.reshape(weights.shape[0], -1)[rows]  # [U, O]
    if is_unshared(parts, block.form.pairs):
        (part,) = parts
        a, g = part.a.dense().squeeze(2)[pair], part.g.squeeze(3).permute(1, 2, 0, 3)[pair]  # [N, D], [N, K, O]
        own = g[:, :, rows]  # [N, K, U]
        # T = B_G[u] ((g̃ᵀ g_u) ∘ w) ∘ ã, turned back: the sum over K comes first
        inner = (own_left * (own.mT @ turn(g, left))) @ weights  # [N, U, D]
        moved = turn_back(inner * turn(a, right).reshape(a.shape).unsqueeze(1), right) * a.unsqueeze(1)
        alone = own.square().sum(1).mT @ a.square()  # [U, D]
        alone = alone if ratio is None else alone / ratio
        return torch.stack([moved.double().sum(0), (rest * alone).double()])
    turned = shared_rows(parts, block.form.native, grads, spectral)[:, :, pair]  # [N, K, O, D]
    plain, moved = (turn_back(own_left @ v, right) for v in (turned, turned * weights))
    rows_of = plain if ratio is None else plain * ratio  # J = D B (turned rows)
    return torch.stack([(rows_of * other).double().sum((0, 1)) for other in (moved, rest * plain)])
