"""Which part of the output variance the incoming connections of units cause.

Index legend: N inputs, M groups of inputs, K columns (what the trace is over), G connections, P weights,
E Kronecker pairs, O outputs, D inputs of a layer, R rows of the units asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.diagonals import is_unshared
from whence.engine.checks import DeferredChecks
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.spectral import KroneckerSpectral, basis_times, times_basis, times_transposed
from whence.predictive.project import shared_rows
from whence.recording.blocks import Block, GradientSource
from whence.recording.gradients import Gradients
from whence.recording.units import UnitKind, Units, units_of
from whence.where.one_pass import ColumnPass, per_weight
from whence.where.question import Question

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

    def times(self, factor: float) -> ConnectionShares:
        return replace(self, variance=self.variance * factor, prior=self.prior * factor)


def connections_of(block: Block, units: Units) -> Connections | None:
    """None for an embedding, whose rows have no further parts."""
    if block.source is GradientSource.TABLE:
        return None
    form, first = block.form, block.params[0]
    if form is None:
        index = torch.cat([torch.full((p.numel,), i) for i, p in enumerate(block.params)])
        return Connections(tuple(p.name.rpartition(".")[2] for p in block.params), index)
    if units.kind is UnitKind.HEAD:
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


def connection_shares(
    posterior: Laplace, x: Any, chosen: Mapping[str, list[int]], question: Question | None = None
) -> dict[str, ConnectionShares]:
    """The parts of the connections of some units, by layer; embeddings are left out."""
    (found,) = connection_shares_of_groups(posterior, x, chosen, None, question)
    return found


@torch.inference_mode(False)
def connection_shares_of_groups(
    posterior: Laplace,
    x: Any,
    chosen: Mapping[str, list[int]],
    groups: Tensor | None,
    question: Question | None = None,
) -> list[dict[str, ConnectionShares]]:
    """The same over each group of inputs, in one pass; ``groups`` [N, M] says which inputs are in each."""
    layers: dict[str, _ChosenUnits] = {}
    for gaussian, blocks in posterior.gaussians():
        by_rows = isinstance(gaussian.spectral, KroneckerSpectral)
        for block in blocks:
            units = units_of(posterior.network, block) if chosen.get(block.name) else None
            found = None if units is None else connections_of(block, units)
            if units is not None and found is not None:
                layers[block.name] = _ChosenUnits(block, units, found, chosen[block.name], by_rows)
    count = 1 if groups is None else groups.shape[1]

    def compute(outputs: Tensor, grads: Gradients, first: int) -> dict[str, Tensor]:
        size = grads.recording.size
        members = torch.ones(size, 1) if groups is None else groups[first : first + size]
        return dict(_connection_parts(posterior, layers, grads, members.to(outputs.device)))

    if not layers:
        return [{} for _ in range(count)]
    sums: dict[str, Tensor] = {}  # where they were computed: no piece waits for a transfer
    with DeferredChecks():
        for parts in ColumnPass(posterior, question or Question(), "connections()").over(x, compute):
            for name, part in parts.items():
                sums[name] = sums[name] + part if name in sums else part
    tables = {name: layer.total(sums[name]).reshape(count, 2, len(layer.chosen), -1) for name, layer in layers.items()}
    return [
        {
            name: ConnectionShares(tuple(layer.chosen), layer.connections, *tables[name][group])
            for name, layer in layers.items()
        }
        for group in range(count)
    ]


def _connection_parts(
    posterior: Laplace, layers: Mapping[str, _ChosenUnits], grads: Gradients, members: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """By layer, weights of one batch [M, 2, p]."""
    for gaussian, blocks in posterior.gaussians():
        if posterior.curvature.joint:
            parts = torch.stack(per_weight(gaussian, blocks, grads)).squeeze(1)  # [2, N, P]
            by_group = torch.einsum("inp,nm->mip", parts, members.to(parts.dtype))
            for block, part in zip(blocks, by_group.split([b.size for b in blocks], -1), strict=True):
                if block.name in layers:
                    yield block.name, part
        elif blocks[0].name in layers:
            yield blocks[0].name, layers[blocks[0].name].parts(gaussian, grads, members)


@dataclass(frozen=True)
class _ChosenUnits:
    """Some units of a block; each of their connections is one cell of a table [units, G]."""

    block: Block
    units: Units
    connections: Connections
    chosen: list[int]
    by_rows: bool  # Kronecker: only the rows of the units are computed

    @property
    def cells(self) -> int:
        return len(self.chosen) * self.connections.count

    def cell(self) -> Tensor:
        """The cell of each weight, [P]; −1 for other units."""
        place = torch.full((self.units.count,), -1)
        place[self.chosen] = torch.arange(len(self.chosen))
        place = place[self.units.of_weight]
        return torch.where(place < 0, -1, place * self.connections.count + self.connections.of_weight)

    @cached_property
    def rows(self) -> list[tuple[int, Tensor]]:
        """The rows of the units in each Kronecker pair that has any."""
        assert self.units.of_row is not None and self.block.form is not None
        wanted = torch.isin(self.units.of_row, torch.tensor(self.chosen)).reshape(self.block.form.native[:2])
        return [(pair, mine.nonzero().flatten()) for pair, mine in enumerate(wanted) if bool(mine.any())]

    def total(self, values: Tensor) -> Tensor:
        """Values of weights, as :meth:`parts` or a joint structure gives them, added up by cell, [M, 2, units · G]."""
        cell = self.cell()
        if self.by_rows:
            native = self.block.to_native(cell)  # [E, O, D]
            cell = torch.cat([native[pair, rows].flatten() for pair, rows in self.rows])
        mine = cell >= 0
        sums = torch.zeros(*values.shape[:2], self.cells, dtype=torch.float64)
        return sums.index_add(2, cell[mine], values.double().cpu()[..., mine])

    def parts(self, gaussian: BlockGaussian, grads: Gradients, members: Tensor) -> Tensor:
        """Of one batch, where blocks are not correlated: weights of ``rows`` if ``by_rows``, else all, [M, 2, p]."""
        block = self.block
        if isinstance(gaussian.spectral, KroneckerSpectral):
            kronecker = _KroneckerParts(gaussian, gaussian.spectral, block, grads, members)
            return torch.cat([kronecker.of(pair, rows).flatten(2) for pair, rows in self.rows], 2)
        found = torch.zeros(members.shape[1], 2, block.size, dtype=torch.float64, device=members.device)
        for which in grads.row_chunks(block):
            rows = grads.rows(block, which)  # [K, n, P]
            others = (gaussian.solve(rows), rows * gaussian.prior_variance())
            both = torch.stack([(rows * other).sum(0) for other in others])  # [2, n, P]
            found += torch.einsum("inp,nm->mip", both, members[which].to(both.dtype)).double()
        return found


class _KroneckerParts:
    """Parts of single weights of a Kronecker block, for one batch."""

    def __init__(
        self,
        gaussian: BlockGaussian,
        spectral: KroneckerSpectral,
        block: Block,
        grads: Gradients,
        members: Tensor,
    ) -> None:
        assert block.form is not None
        self.gaussian, self.spectral, self.parts = gaussian, spectral, grads.matrix_calls(block)
        self.variances, self.prior_variance = 1 / gaussian.precision, 1 / gaussian.null_precision
        self.members = members.to(self.variances.dtype)
        self.unshared = is_unshared(self.parts, block.form.pairs)
        bases = spectral.left, spectral.right
        self.turned = None if self.unshared else shared_rows(self.parts, block.form.native, grads, *bases)

    def of(self, pair: int, rows: Tensor) -> Tensor:
        """Some rows of one Kronecker pair, posterior and prior, [M, 2, R, D]."""
        spectral, weights = self.spectral, self.variances[pair]
        rows = rows.to(weights.device)
        left, right = (None if b is None else b[pair : pair + 1] for b in (spectral.left, spectral.right))
        ratio = None if spectral.ratio is None else spectral.ratio.dense()[pair, rows]  # [R, D]
        own_left = basis_times(torch.eye(len(weights), dtype=weights.dtype, device=weights.device), left)
        own_left = own_left.reshape(weights.shape[0], -1)[rows]  # [R, O]
        if self.turned is None:
            return self._unshared(pair, rows, weights, (left, right), own_left, ratio)
        turned = self.turned[:, :, pair]  # [N, K, O, D]
        plain, weighed = (times_transposed(own_left @ v, right) for v in (turned, turned * weights))
        jacobian = plain if ratio is None else plain * ratio  # J = D B (turned rows)
        both = [(jacobian * other).sum(1) for other in (weighed, self.prior_variance * plain)]  # [N, R, D]
        return torch.stack([torch.einsum("nrd,nm->mrd", part, self.members).double() for part in both], 1)

    def _unshared(
        self,
        pair: int,
        rows: Tensor,
        weights: Tensor,
        basis: tuple[Tensor | None, Tensor | None],
        own_left: Tensor,
        ratio: Tensor | None,
    ) -> Tensor:
        """One position for each example: B_G[r] ((g̃ᵀ g_r) ∘ w) ∘ ã, turned back; the sum over K comes first."""
        ((part,), (left, right)) = self.parts, basis
        a, g = part.a.dense().squeeze(2)[pair], part.g.squeeze(3).permute(1, 2, 0, 3)[pair]  # [N, D], [N, K, O]
        own = g[:, :, rows]  # [N, K, R]
        inner = (own_left * (own.mT @ times_basis(g, left))) @ weights  # [N, R, D]
        turned = times_basis(a, right).reshape(a.shape).unsqueeze(1)  # ã
        posterior = times_transposed(inner * turned, right) * a.unsqueeze(1)  # [N, R, D]
        squares = own.square().sum(1)  # [N, R]
        prior = torch.einsum("nr,nd,nm->mrd", squares, a.square(), self.members)
        prior = prior if ratio is None else prior / ratio
        found = torch.einsum("nrd,nm->mrd", posterior, self.members)
        return torch.stack([found.double(), (self.prior_variance * prior).double()], 1)
