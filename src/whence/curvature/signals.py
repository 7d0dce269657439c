"""Signals: sums of squares of each block's inputs over the data, from which relative priors are computed.

Like the curvature, they are summed over batches, ranks and data sets, saved and loaded.

Index legend: N examples, T positions, E Kronecker pairs, I input channels, O outputs, F features, V rows of a table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.curvature.sums import InputSums
from whence.engine.ranks import Ranks
from whence.functional import Network
from whence.linalg.dense import widened
from whence.linalg.structures import Kronecker, Structure
from whence.recording.blocks import Block
from whence.recording.broadcast import AddedRule
from whence.recording.calls import LayerCall, Recording
from whence.recording.patches import padding_of, per_dimension
from whence.recording.plan import Plan
from whence.recording.recorder import Use
from whence.recording.roles import Description, Role, matrices
from whence.recording.rules import ConvRule, ConvTransposeRule, EmbeddingRule, MatrixRule

SUMMED = (Role.MATRIX, Role.BIAS, Role.AFFINE, Role.SHIFT, Role.TABLE, Role.RECURRENT)  # roles that need sums


@dataclass(frozen=True)
class Signal:
    """Sums of squares of a block's inputs.

    ``squares``: of each input channel [E, I] (a matrix), of each row's output over the number of its inputs [E, O]
    (a bias), of each feature [F] (affine, shift), how often each row was looked up [V] (a table), of the inputs of each
    matrix, concatenated (recurrent); empty for other roles.
    """

    description: Description
    squares: Tensor  # float64
    count: Tensor  # number of terms, by pair or matrix, float64

    def merged(self, other: Signal) -> Signal:
        return replace(self, squares=self.squares + other.squares, count=self.count + other.count)

    def scaled(self, factor: float) -> Signal:
        return replace(self, squares=self.squares * factor, count=self.count * factor)

    def to(self, device: torch.device | str) -> Signal:
        return replace(self, squares=self.squares.to(device), count=self.count.to(device))

    def map_sums(self, function: Callable[[Tensor], Tensor]) -> Signal:
        """Apply a function to each of its sums."""
        return replace(self, squares=function(self.squares), count=function(self.count))

    def mean_squares(self) -> Tensor:
        """Mean square of each channel or feature; 0 where there was no input."""
        count = self.count.clamp(min=1e-300)
        return self.squares / (count.unsqueeze(1) if self.squares.dim() == 2 else count)


Signals = dict[str, Signal]  # by block
Coverage = dict[Any, Tensor]  # how often a convolution reads each input position; kept for CUDA graphs


class SignalSums(InputSums):
    """Sums a :class:`Signal`."""

    def __init__(self, block: Block, description: Description, network: Network) -> None:
        self.block, self.name, self.description, self.network = block, block.name, description, network
        shape, terms = _shape(block, description.kind)
        self.squares = torch.zeros(shape, dtype=torch.float64, device=network.device)
        self.count = torch.zeros(terms, dtype=torch.float64, device=network.device)
        self.coverage: Coverage = {}

    def add_inputs(self, recording: Recording) -> None:
        parts = list(_parts(self.block, self.description.kind, recording, self.coverage))
        for which, squares, terms in parts:
            self.squares[which] += squares
            self.count[which if len(self.count) > 1 and self.squares.dim() == 2 else slice(None)] += terms

    def signal(self) -> Signal:
        return Signal(self.description, self.squares, self.count)


def _shape(block: Block, kind: Role) -> tuple[tuple[int, ...], int]:
    """The shape of ``squares``, and the number of counts."""
    if kind is Role.MATRIX or kind is Role.BIAS:
        assert block.form is not None
        pairs = block.form.pairs
        return (pairs, block.form.inputs // kernel_of(block) if kind is Role.MATRIX else block.form.outputs), pairs
    if kind is Role.RECURRENT:
        return (sum(p.shape[1] for p in matrices(block)),), len(matrices(block))
    return (block.params[0].shape[0] if kind is Role.TABLE else block.params[0].numel,), 1


def kernel_of(block: Block) -> int:
    """Kernel positions of a convolution's weight; 1 for other layers."""
    return int(torch.Size(block.params[0].shape[2:]).numel())


def _parts(block: Block, kind: Role, recording: Recording, coverage: Coverage) -> Iterator[tuple[Any, Tensor, Any]]:
    """The terms of a batch: (index, squares, number of terms)."""
    calls = [(recording.calls[index], ref) for index, ref in recording.calls_of(block)]
    if kind is Role.RECURRENT:
        yield from _recurrent(block, recording)
        return
    for call, ref in calls:
        rule = call.use.rule
        if kind in (Role.MATRIX, Role.BIAS):
            assert block.form is not None and isinstance(rule, MatrixRule)
            squares, terms = channel_squares(call, coverage)
            if kind is Role.BIAS:
                squares = _of_outputs(_weight_of(call.use, recording), rule, squares)
            yield block.form.pairs_of(ref), squares.double(), terms
        elif kind is Role.TABLE:
            if isinstance(rule, EmbeddingRule):
                yield _looked_up(call, rule, block)
        elif isinstance(rule, AddedRule):
            seen = replace(rule, x=rule.x.detach()).spread_input().unsqueeze(0)
            yield slice(None), *_of_features(call.layout.examples_first(seen, 1, call.size)[0], call.live)
        else:
            features = call.features if kind is Role.AFFINE else _scaled(call, recording)
            yield slice(None), *_of_features(features, call.live)


def _of_features(features: Tensor, live: Tensor | None) -> tuple[Tensor, Any]:
    """Σ x² [F] over the live positions of features [N, T, F], and their number."""
    if live is None:
        return _squares(features.flatten(0, 1).unsqueeze(0))[0].double(), features.shape[0] * features.shape[1]
    counted = features * live.unsqueeze(-1).to(features.dtype)
    return _squares(counted.flatten(0, 1).unsqueeze(0))[0].double(), live.sum()


def _squares(rows: Tensor) -> Tensor:
    """Σ x² over rows [E, R, D], without storing the squares: [E, D]."""
    return torch.linalg.vector_norm(widened(rows), dim=1).square()


def channel_squares(call: LayerCall, coverage: Coverage) -> tuple[Tensor, Any]:
    """Σ a² of each input channel over examples and positions, averaged over the kernel [E, I], and their number."""
    rule = call.use.rule
    assert isinstance(rule, MatrixRule)
    x = rule.x.detach()
    if isinstance(rule, ConvRule):
        x = replace(rule, x=x).batched()
        key = (call.use.key, x.shape[2:])
        if key not in coverage:
            coverage[key] = _times_seen(rule, tuple(x.shape[2:]), x.device)
        seen = torch.linalg.vector_norm(widened(x), dim=0).square() * coverage[key]
        squares = seen.flatten(1).sum(1) / int(torch.Size(rule.kernel).numel())
        positions = call.use.shape[2:] if len(call.use.shape) == len(rule.kernel) + 2 else call.use.shape[1:]
        return squares.reshape(rule.pairs, -1), len(x) * int(torch.Size(positions).numel())
    if call.live is not None:
        squares, terms = _of_features(call.features[0], call.live)
        return squares.unsqueeze(0), terms
    flat = rule.features().detach().flatten(1, -2) if x.dim() > 1 else x.reshape(1, 1, -1)
    return _squares(flat), flat.shape[1]


def _times_seen(rule: ConvRule, space: tuple[int, ...], device: torch.device) -> Tensor:
    """How many (output position, kernel position) pairs read each input position, [*space]."""
    dims = len(space)
    stride, dilation = (per_dimension(rule.options[key], dims) for key in ("stride", "dilation"))
    if isinstance(rule, ConvTransposeRule):
        padding = [(p, p) for p in per_dimension(rule.options["padding"], dims)]
        extra = per_dimension(rule.options["output_padding"], dims)
    else:
        padding, extra = padding_of(rule.options["padding"], rule.kernel, dilation), None
    total: Tensor | None = None
    for d in range(dims):
        one = _times_seen_along(
            space[d], rule.kernel[d], stride[d], dilation[d], padding[d], None if extra is None else extra[d]
        ).to(device)
        total = one if total is None else total.unsqueeze(-1) * one
    assert total is not None
    return total


@functools.lru_cache(maxsize=256)
def _times_seen_along(
    size: int, kernel: int, stride: int, dilation: int, padding: tuple[int, int], extra: int | None
) -> Tensor:
    """The same along one dimension; ``extra`` is a transposed convolution's output padding."""
    steps = dilation * torch.arange(kernel)
    if extra is not None:
        outputs = (size - 1) * stride - sum(padding) + dilation * (kernel - 1) + extra + 1
        reached = stride * torch.arange(size).unsqueeze(1) + steps - padding[0]
        return ((reached >= 0) & (reached < outputs)).sum(1).float()
    outputs = (size + sum(padding) - dilation * (kernel - 1) - 1) // stride + 1
    places = (stride * torch.arange(outputs).unsqueeze(1) + steps - padding[0]).flatten()
    return torch.bincount(places[(places >= 0) & (places < size)], minlength=size).float()


def _weight_of(use: Use, recording: Recording) -> Tensor | None:
    """The weight of a call, whether it is selected or not."""
    if use.weight is None:
        return None if use.weight_value is None else use.weight_value.detach()
    whole = recording.plan.network.params[use.weight.name].detach() + use.weight.offset
    return whole[use.weight.start : use.weight.stop]


def _of_outputs(weight: Tensor | None, rule: MatrixRule, squares: Tensor) -> Tensor:
    """Σ_i w_oi² Σ a_i² / D for each row of a bias that is a block of its own, from its layer's weight, [E, O]."""
    assert weight is not None
    kernel = int(torch.Size(getattr(rule, "kernel", ())).numel())
    pairs, channels = squares.shape
    split = weight.double().square()
    if rule.inputs_first:
        split = split.reshape(pairs, channels, -1, kernel).transpose(1, 2)  # [E, O, I, k]
    rows = split.reshape(pairs, -1, channels, kernel).sum(-1)  # [E, O, I]
    return (rows @ squares.double().unsqueeze(-1)).squeeze(-1) / (channels * kernel + 1)


def _looked_up(call: LayerCall, rule: EmbeddingRule, block: Block) -> tuple[slice, Tensor, Tensor]:
    ids = call.features.flatten()
    counted = torch.ones_like(ids, dtype=torch.float64)
    if rule.padding_index is not None:
        counted = (ids != rule.padding_index).double()
    if call.live is not None:
        counted = counted * call.live.flatten()
    found = torch.zeros(block.params[0].shape[0], dtype=torch.float64, device=ids.device)
    return slice(None), found.index_add_(0, ids, counted), counted.sum()


def _scaled(call: LayerCall, recording: Recording) -> Tensor:
    """γ x̂ of a normalisation with only β in the block."""
    weight = _weight_of(call.use, recording)
    return call.features if weight is None else call.features * weight.reshape(-1)


def _recurrent(block: Block, recording: Recording) -> Iterator[tuple[slice, Tensor, Tensor]]:
    names = recording.plan.network.names_by_id
    starts, at = {}, 0
    for index, p in enumerate(matrices(block)):
        starts[p.name] = (index, at)
        at += p.shape[1]
    for call in recording.seen.recurrent:
        for weight, rows in call.inputs():
            name = names.get(id(weight), "")
            if name in starts:
                index, start = starts[name]
                flat = rows.detach().reshape(1, -1, rows.shape[-1])
                terms = torch.zeros(len(starts), dtype=torch.float64, device=rows.device)
                terms[index] = flat.shape[1]
                yield slice(start, start + rows.shape[-1]), _squares(flat)[0].double(), terms


# Of all blocks


class SignalCollector:
    """Collects the signals of all blocks, from sums of their own or from their Kronecker factors."""

    def __init__(self, plan: Plan, has_factors: bool) -> None:
        self.plan, self.descriptions = plan, plan.descriptions
        self.factored = {b.name for b in plan.blocks if has_factors and b.matrix_structured and self._is_matrix(b)}
        wanted = [b for b in plan.blocks if self.descriptions[b.name].kind in SUMMED and b.name not in self.factored]
        self.sums = [SignalSums(block, self.descriptions[block.name], plan.network) for block in wanted]

    def _is_matrix(self, block: Block) -> bool:
        return self.descriptions[block.name].kind is Role.MATRIX

    def totals(self, structures: list[Structure], ranks: Ranks) -> Signals:
        """The signals by block, summed over all ranks; the structures must already be summed."""
        ranks.synchronise("adding up the input statistics")
        own = {s.name: s.signal().map_sums(ranks.summed) for s in self.sums}
        found = {}
        for i, block in enumerate(self.plan.blocks):
            description = self.descriptions[block.name]
            if block.name in self.factored:
                factors = structures[i]
                assert isinstance(factors, Kronecker)
                found[block.name] = _from_kronecker(block, description, factors)
            elif block.name in own:
                found[block.name] = own[block.name]
            else:
                empty = torch.zeros(0, dtype=torch.float64, device=self.plan.network.device)
                found[block.name] = Signal(description, empty, empty)
        return found


def _from_kronecker(block: Block, description: Description, structure: Kronecker) -> Signal:
    """The diagonal of Σ a aᵀ by channel, where positions are counted one by one."""
    assert block.form is not None
    inputs = structure.inputs if structure.inputs.dim() == 2 else structure.inputs.diagonal(dim1=-2, dim2=-1)
    channels = inputs[:, : block.form.inputs].double().unflatten(1, (-1, kernel_of(block))).mean(2)
    return Signal(description, channels, structure.count.double())
