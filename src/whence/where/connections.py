"""Which part of the output variance the incoming connections of units cause.

Index legend: N inputs, K columns (what the trace is over), G connections, P weights, E Kronecker pairs, O outputs,
D inputs of a layer, R rows of the units asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.diagonals import is_unshared
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.spectral import KroneckerSpectral, basis_times, times_basis, times_transposed
from whence.predictive.projection import shared_rows
from whence.recording.blocks import Block
from whence.recording.gradients import Gradients
from whence.recording.units import Units, units_of
from whence.where.question import Question
from whence.where.shares import ColumnPass, per_weight

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace


@dataclass(frozen=True)
class Connections:
    """The incoming connections of a block's units: which one each weight belongs to.

    A connection joins a unit to one of its inputs: a weight of a Linear layer, a kernel of a convolution. The bias is
    one of its own; an attention head has three (query, key and value rows), a norm two (its weight and its bias).
    """

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
    """None for an embedding, whose rows have no further parts."""
    if block.source == "table":
        return None
    form, first = block.form, block.params[0]
    if form is None:
        index = torch.cat([torch.full((p.numel,), i) for i, p in enumerate(block.params)])
        return Connections(tuple(p.name.rpartition(".")[2] for p in block.params), index)
    if units.kind == "head":
        return _connections_of_heads(block, units)
    kernel = math.prod(first.shape[2:]) if form.inputs else 1
    sources = form.inputs // kernel
    index = (torch.arange(form.inputs) // kernel).expand(form.pairs, form.outputs, -1)
    index = index + sources * torch.arange(form.pairs).reshape(-1, 1, 1)
    if form.bias:
        last = torch.full((form.pairs, form.outputs, 1), form.pairs * sources)
        index = torch.cat([index, last], -1)
    word = "channel" if kernel > 1 or len(first.shape) > 2 else "input"
    names = [f"{word} {i}" for i in range(form.pairs * sources)] + ["bias"] * form.bias
    return Connections(tuple(names), form.unpack(index.contiguous()))


def _connections_of_heads(block: Block, units: Units) -> Connections:
    """Query, key and value, where they are packed into one projection."""
    assert block.form is not None and units.of_row is not None
    rows = len(units.of_row)
    packed = rows % 3 == 0 and block.params[0].name.endswith(("in_proj_weight", "in_proj_bias"))
    index = (torch.arange(rows) // (rows // 3 if packed else rows)).reshape(*block.form.native[:2], 1)
    names = ("query", "key", "value") if packed else ("weights",)
    return Connections(names, block.form.unpack(index.expand(block.form.native).contiguous()))


@torch.inference_mode(False)
def connection_shares(
    posterior: Laplace, x: Any, chosen: Mapping[str, list[int]], question: Question | None = None
) -> dict[str, ConnectionShares]:
    """The parts of the connections of some units, by layer; embeddings are left out."""
    layers: dict[str, _ChosenUnits] = {}
    for block in posterior.blocks:
        if chosen.get(block.name):
            units = units_of(posterior.network, block)
            found = connections_of(block, units)
            if found is not None:
                layers[block.name] = _ChosenUnits(block, units, found, chosen[block.name])
    sums = {name: torch.zeros(2, layer.cells, dtype=torch.float64) for name, layer in layers.items()}

    def compute(_: Tensor, grads: Gradients) -> dict[str, Tensor]:
        return dict(_connection_parts(posterior, layers, grads))

    for parts in ColumnPass(posterior, question or Question(), "connections()").over(x, compute):
        for name, part in parts.items():
            sums[name] += part
    return {
        name: ConnectionShares(
            tuple(layer.chosen), layer.connections, *sums[name].reshape(2, -1, layer.connections.count)
        )
        for name, layer in layers.items()
    }


def _connection_parts(
    posterior: Laplace, layers: Mapping[str, _ChosenUnits], grads: Gradients
) -> Iterator[tuple[str, Tensor]]:
    """By layer, [2, units · G], of one batch."""
    for gaussian, blocks in posterior.gaussians():
        if posterior.curvature.joint:
            parts = torch.stack(per_weight(gaussian, blocks, grads)).sum((1, 2)).cpu()  # [2, P]
            for block, part in zip(blocks, parts.split([b.size for b in blocks], -1), strict=True):
                if block.name in layers:
                    yield block.name, layers[block.name].total(part)
        elif blocks[0].name in layers:
            yield blocks[0].name, layers[blocks[0].name].parts(gaussian, grads)


@dataclass(frozen=True)
class _ChosenUnits:
    """Some units of a block; each of their connections is one cell of a table [units, G]."""

    block: Block
    units: Units
    connections: Connections
    chosen: list[int]

    @property
    def cells(self) -> int:
        return len(self.chosen) * self.connections.count

    def cell(self) -> Tensor:
        """The cell of each weight, [P]; −1 for other units."""
        place = torch.full((self.units.count,), -1)
        place[self.chosen] = torch.arange(len(self.chosen))
        place = place[self.units.of_weight]
        return torch.where(place < 0, -1, place * self.connections.count + self.connections.of_weight)

    def total(self, values: Tensor, cell: Tensor | None = None) -> Tensor:
        """Values of weights [2, P] added up by cell, [2, units · G]."""
        cell = self.cell() if cell is None else cell
        mine = cell >= 0
        return torch.zeros(2, self.cells, dtype=torch.float64).index_add(1, cell[mine], values.double().cpu()[:, mine])

    def parts(self, gaussian: BlockGaussian, grads: Gradients) -> Tensor:
        """Of one batch, where blocks are not correlated, [2, units · G]."""
        block = self.block
        if not isinstance(gaussian.spectral, KroneckerSpectral):
            found = torch.zeros(2, block.size, dtype=torch.float64)
            for which in grads.row_chunks(block):
                rows = grads.rows(block, which)  # [K, n, P]
                others = (gaussian.solve(rows), rows * gaussian.prior_variance())
                found += torch.stack([(rows * other).double().sum((0, 1)) for other in others]).cpu()
            return self.total(found)
        assert self.units.of_row is not None and block.form is not None
        wanted = torch.isin(self.units.of_row, torch.tensor(self.chosen)).reshape(block.form.native[:2])
        cells = block.to_native(self.cell())  # [E, O, D]
        total = torch.zeros(2, self.cells, dtype=torch.float64)
        for pair, mine in enumerate(wanted):
            rows = mine.nonzero().flatten()
            if len(rows):
                values = _kronecker_parts(gaussian, gaussian.spectral, block, grads, pair, rows)
                total = total + self.total(values.flatten(1), cells[pair, rows].flatten())
        return total


def _kronecker_parts(
    gaussian: BlockGaussian, spectral: KroneckerSpectral, block: Block, grads: Gradients, pair: int, rows: Tensor
) -> Tensor:
    """Parts of the weights in some rows of one Kronecker pair, posterior and prior, [2, R, D]."""
    assert block.form is not None
    parts = grads.matrix_calls(block)
    weights, prior_variance = (1 / gaussian.precision)[pair], 1 / gaussian.null_precision
    rows = rows.to(weights.device)
    left, right = (None if b is None else b[pair : pair + 1] for b in (spectral.left, spectral.right))
    ratio = None if spectral.ratio is None else spectral.ratio.dense()[pair, rows]  # [R, D]
    own_left = basis_times(torch.eye(len(weights), dtype=weights.dtype, device=weights.device), left)
    own_left = own_left.reshape(weights.shape[0], -1)[rows]  # [R, O]
    if is_unshared(parts, block.form.pairs):
        (part,) = parts
        a, g = part.a.dense().squeeze(2)[pair], part.g.squeeze(3).permute(1, 2, 0, 3)[pair]  # [N, D], [N, K, O]
        own = g[:, :, rows]  # [N, K, R]
        # B_G[r] ((g̃ᵀ g_r) ∘ w) ∘ ã, turned back: the sum over K comes first
        inner = (own_left * (own.mT @ times_basis(g, left))) @ weights  # [N, R, D]
        posterior = times_transposed(inner * times_basis(a, right).reshape(a.shape).unsqueeze(1), right) * a.unsqueeze(
            1
        )
        prior = own.square().sum(1).mT @ a.square()  # [R, D]
        prior = prior if ratio is None else prior / ratio
        return torch.stack([posterior.double().sum(0), (prior_variance * prior).double()])
    turned = shared_rows(parts, block.form.native, grads, spectral)[:, :, pair]  # [N, K, O, D]
    plain, weighed = (times_transposed(own_left @ v, right) for v in (turned, turned * weights))
    jacobian = plain if ratio is None else plain * ratio  # J = D B (turned rows)
    return torch.stack([(jacobian * other).double().sum((0, 1)) for other in (weighed, prior_variance * plain)])
