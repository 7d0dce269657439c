"""What the inputs of each block are like over the data: the sums that a relative prior is made from.

They are sums like the curvature itself: added up over batches, ranks and data sets, written and read back.

Index legend: N examples, T positions, E Kronecker pairs, I input channels, O outputs, F features, V rows of a table.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.curvature.accumulate import InputSums
from whence.curvature.blocks import Block, owner_of
from whence.curvature.broadcast import AddedRule, ExpandedRule
from whence.curvature.capture import Use
from whence.curvature.jacobian import CalledUse, Recording, pairs_of, widened
from whence.curvature.layout import Inspection
from whence.curvature.patches import padding_of, per_dimension
from whence.curvature.rules import ConvRule, ConvTransposeRule, EmbeddingRule, MatrixRule, SlopeRule
from whence.functional import Network
from whence.linalg.structures import Kronecker

Kind = Literal["matrix", "bias", "affine", "shift", "slope", "table", "added", "recurrent", "unknown"]
SUMMED: tuple[Kind, ...] = ("matrix", "bias", "affine", "shift", "table", "recurrent")  # kinds that need sums


@dataclass(frozen=True)
class Description:
    """How a block's parameters act, as far as its prior depends on that."""

    kind: Kind
    external: tuple[bool, ...] = ()  # by pair or matrix: whether its input depends on no parameter
    head: bool = False  # whether its outputs are those of the network
    offset: float = 0.0  # what is added to its weight before it acts


@dataclass(frozen=True)
class Signal:
    """Sums of squares of a block's inputs.

    ``squares``: of each input channel [E, I] ("matrix"), of each row's output over the number of its inputs [E, O]
    ("bias"), of each feature [F] ("affine", "shift"), how often each row was looked up [V] ("table"), of the inputs of
    each matrix one after the other ("recurrent"); empty for other kinds.
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

    def mean_squares(self) -> Tensor:
        """Mean square of each channel or feature; 0 where nothing was seen."""
        count = self.count.clamp(min=1e-300)
        return self.squares / (count.unsqueeze(1) if self.squares.dim() == 2 else count)


Signals = dict[str, Signal]  # by block
Seen = dict[Any, Tensor]  # of convolutions, how often each place of an input is seen; kept: a CUDA graph reads it


# Which kind a block is


def describe(network: Network, blocks: Sequence[Block], found: Inspection) -> dict[str, Description]:
    """How each block's parameters act, from the calls of the inspected pass."""
    return {block.name: _described(network, block, found) for block in blocks}


def _described(network: Network, block: Block, found: Inspection) -> Description:
    names = {p.name for p in block.params}
    uses = [use for use in found.uses if names & {ref.name for ref in (use.weight, use.bias) if ref is not None}]
    kind = _kind(network, block, uses, found)
    external: tuple[bool, ...] = ()
    if kind == "matrix":
        assert block.form is not None
        seen = [[True] for _ in range(block.form.pairs)]
        for use in uses:
            ref = use.weight or use.bias
            assert ref is not None
            for pair in range(block.form.pairs)[pairs_of(ref, block.form)]:
                seen[pair].append(use.key in found.external)
        external = tuple(all(flags) for flags in seen)
    elif kind == "recurrent":
        external = tuple(p.name in found.external for p in matrices(block))
    offsets = {use.weight.offset for use in uses if use.weight is not None}
    return Description(kind, external, bool(names & found.heads), offsets.pop() if len(offsets) == 1 else 0.0)


def _kind(network: Network, block: Block, uses: list[Use], found: Inspection) -> Kind:
    rules = [use.rule for use in uses]
    if block.source == "matrix":
        assert block.form is not None
        return "matrix" if block.form.inputs else "bias"
    if any(isinstance(rule, EmbeddingRule) for rule in rules) and len(block.params) == 1:
        return "table"  # tied to a head, too
    if block.source == "example":
        module = network.module.get_submodule(owner_of(block.params[0].name))
        known = all(p.name in found.recurrent for p in matrices(block))
        return "recurrent" if isinstance(module, (nn.RNNBase, nn.RNNCellBase)) and known else "unknown"
    if any(isinstance(rule, MatrixRule) for rule in rules):
        return "unknown"
    if all(isinstance(rule, SlopeRule) for rule in rules):
        return "slope"
    if all(isinstance(rule, AddedRule) for rule in rules):
        repeated = all(isinstance(rule, ExpandedRule) for rule in rules)
        return "added" if repeated or _is_table(block, uses) else "shift"
    return "affine" if any(use.weight is not None for use in uses) else "shift"


def _is_table(block: Block, uses: list[Use]) -> bool:
    """Whether what is added has several rows of features, the features being the last dimension."""
    shape = block.params[0].shape
    return len(uses[0].shape) <= 3 and bool(shape) and shape[-1] > 1 and block.size > shape[-1]


def matrices(block: Block) -> list[Any]:
    """The matrices of a recurrent block, in its order."""
    return [p for p in block.params if len(p.shape) == 2]


# Sums


class SignalSums(InputSums):
    """Adds up a :class:`Signal`."""

    def __init__(self, block: Block, description: Description, network: Network) -> None:
        self.block, self.name, self.description, self.network = block, block.name, description, network
        shape, terms = _shape(block, description.kind)
        self.squares = torch.zeros(shape, dtype=torch.float64, device=network.device)
        self.count = torch.zeros(terms, dtype=torch.float64, device=network.device)
        self.seen: Seen = {}

    def inputs(self, recording: Recording) -> None:
        parts = list(_parts(self.block, self.description.kind, recording, self.seen))
        for which, squares, terms in parts:
            self.squares[which] += squares
            self.count[which if len(self.count) > 1 and self.squares.dim() == 2 else slice(None)] += terms

    def signal(self) -> Signal:
        return Signal(self.description, self.squares, self.count)


def _shape(block: Block, kind: Kind) -> tuple[tuple[int, ...], int]:
    """Of ``squares``, and the number of counts."""
    if kind == "matrix" or kind == "bias":
        assert block.form is not None
        pairs = block.form.pairs
        return (pairs, block.form.inputs // kernel_of(block) if kind == "matrix" else block.form.outputs), pairs
    if kind == "recurrent":
        return (sum(p.shape[1] for p in matrices(block)),), len(matrices(block))
    return (block.params[0].shape[0] if kind == "table" else block.params[0].numel,), 1


def kernel_of(block: Block) -> int:
    """Kernel positions of a convolution's weight; 1 for others."""
    return int(torch.Size(block.params[0].shape[2:]).numel())


def _parts(block: Block, kind: Kind, recording: Recording, seen_by: Seen) -> Iterator[tuple[Any, Tensor, Any]]:
    """What a batch adds: where, squares, number of terms."""
    calls = [(recording.called[index], ref) for index, ref in recording.calls_of.get(block.name, [])]
    if kind == "recurrent":
        yield from _recurrent(block, recording)
        return
    for called, ref in calls:
        rule = called.use.rule
        if kind in ("matrix", "bias"):
            assert block.form is not None and isinstance(rule, MatrixRule)
            squares, terms = channel_squares(called, seen_by)
            if kind == "bias":
                squares = _of_outputs(_weight_of(called.use, recording), rule, squares)
            yield pairs_of(ref, block.form), squares.double(), terms
        elif kind == "table":
            if isinstance(rule, EmbeddingRule):
                yield _looked_up(called, rule, block)
        elif isinstance(rule, AddedRule):
            seen = replace(rule, x=rule.x.detach()).spread_input().unsqueeze(0)
            yield slice(None), *_of_features(called.layout.examples_first(seen, 1, called.size)[0], called.live)
        else:
            features = called.features if kind == "affine" else _scaled(called, recording)
            yield slice(None), *_of_features(features, called.live)


def _of_features(features: Tensor, live: Tensor | None) -> tuple[Tensor, Any]:
    """Σ x² [F] over the positions that count of features [N, T, F], and their number."""
    if live is None:
        return _squares(features.flatten(0, 1).unsqueeze(0))[0].double(), features.shape[0] * features.shape[1]
    counted = features * live.unsqueeze(-1).to(features.dtype)
    return _squares(counted.flatten(0, 1).unsqueeze(0))[0].double(), live.sum()


def _squares(rows: Tensor) -> Tensor:
    """Σ x² over rows [E, R, D], without writing the squares down: [E, D]."""
    return torch.linalg.vector_norm(widened(rows), dim=1).square()


def channel_squares(called: CalledUse, seen_by: Seen) -> tuple[Tensor, Any]:
    """Σ a² of each input channel over examples and positions, meaned over kernel positions [E, I], and their number."""
    rule = called.use.rule
    assert isinstance(rule, MatrixRule)
    x = rule.x.detach()
    if isinstance(rule, ConvRule):
        x = replace(rule, x=x).batched()
        key = (called.use.key, x.shape[2:])
        if key not in seen_by:
            seen_by[key] = _times_seen(rule, tuple(x.shape[2:]), x.device)
        seen = torch.linalg.vector_norm(widened(x), dim=0).square() * seen_by[key]
        squares = seen.flatten(1).sum(1) / int(torch.Size(rule.kernel).numel())
        positions = called.use.shape[2:] if len(called.use.shape) == len(rule.kernel) + 2 else called.use.shape[1:]
        return squares.reshape(rule.pairs, -1), len(x) * int(torch.Size(positions).numel())
    if called.live is not None:
        squares, terms = _of_features(called.features[0], called.live)
        return squares.unsqueeze(0), terms
    flat = rule.features().detach().flatten(1, -2) if x.dim() > 1 else x.reshape(1, 1, -1)
    return _squares(flat), flat.shape[1]


def _times_seen(rule: ConvRule, space: tuple[int, ...], device: torch.device) -> Tensor:
    """How many (output position, kernel position) pairs see each place of the input, [*space]."""
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
    """The weight of a call, whether it is a selected parameter or not."""
    if use.weight is None:
        return None if use.weight_value is None else use.weight_value.detach()
    whole = recording.plan.network.params[use.weight.name].detach() + use.weight.offset
    return whole[use.weight.start : use.weight.stop]


def _of_outputs(weight: Tensor | None, rule: MatrixRule, squares: Tensor) -> Tensor:
    """Σ_i w_oi² Σ a_i² / D of each row of a bias of its own, by the weight beside it, [E, O]."""
    assert weight is not None
    kernel = int(torch.Size(getattr(rule, "kernel", ())).numel())
    pairs, channels = squares.shape
    split = weight.double().square()
    if rule.inputs_first:
        split = split.reshape(pairs, channels, -1, kernel).transpose(1, 2)  # [E, O, I, k]
    rows = split.reshape(pairs, -1, channels, kernel).sum(-1)  # [E, O, I]
    return (rows @ squares.double().unsqueeze(-1)).squeeze(-1) / (channels * kernel + 1)


def _looked_up(called: CalledUse, rule: EmbeddingRule, block: Block) -> tuple[slice, Tensor, Tensor]:
    ids = called.features.flatten()
    counted = torch.ones_like(ids, dtype=torch.float64)
    if rule.padding_index is not None:
        counted = (ids != rule.padding_index).double()
    if called.live is not None:
        counted = counted * called.live.flatten()
    found = torch.zeros(block.params[0].shape[0], dtype=torch.float64, device=ids.device)
    return slice(None), found.index_add_(0, ids, counted), counted.sum()


def _scaled(called: CalledUse, recording: Recording) -> Tensor:
    """γ x̂ of a normalisation of which only β is in the block."""
    weight = _weight_of(called.use, recording)
    return called.features if weight is None else called.features * weight.reshape(-1)


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


def accumulators(
    blocks: Sequence[Block], descriptions: dict[str, Description], network: Network, known: Sequence[str] = ()
) -> list[SignalSums]:
    """One for each block that needs sums of its own; those of ``known`` blocks are had from their curvature."""
    wanted = [b for b in blocks if descriptions[b.name].kind in SUMMED and b.name not in known]
    return [SignalSums(block, descriptions[block.name], network) for block in wanted]


def from_kronecker(block: Block, description: Description, structure: Kronecker) -> Signal:
    """The diagonal of Σ a aᵀ by channel, where positions are counted one by one."""
    assert block.form is not None
    inputs = structure.inputs if structure.inputs.dim() == 2 else structure.inputs.diagonal(dim1=-2, dim2=-1)
    channels = inputs[:, : block.form.inputs].double().unflatten(1, (-1, kernel_of(block))).mean(2)
    return Signal(description, channels, structure.count.double())


def without_sums(block: Block, description: Description, device: torch.device) -> Signal:
    """Of a kind that needs none."""
    empty = torch.zeros(0, dtype=torch.float64, device=device)
    return Signal(description, empty, empty)
