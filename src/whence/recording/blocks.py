"""Named groups of parameters whose curvature is kept together, and the structure of each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whence.engine.memory import readable, sizes
from whence.engine.options import Option
from whence.functional import Network
from whence.linalg.structures import BlockStructure, StructureKind
from whence.recording.layout import Inspection, kernel_size
from whence.recording.recorder import Ref, Use
from whence.recording.rules import EmbeddingRule, MatrixRule

MAX_FACTOR = 16384  # rows of a Kronecker factor above which only its diagonal is kept; 1 GiB in float32
UNREACHED = "it does not reach the output"


class GradientSource(Option):
    """Where a block's per-example gradients come from."""

    MATRIX = "matrix"  # calls that multiply by one matrix
    TABLE = "table"  # lookups of rows
    ROWS = "rows"  # other calls with a rule
    EXAMPLE = "example"  # no rule applies: one example after the other


@dataclass(frozen=True)
class Param:
    """A Bayesian parameter."""

    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class MatrixForm:
    """How weight and bias are arranged in a matrix [E, O, D (+ 1)]."""

    pairs: int  # E
    outputs: int  # O, of one pair
    inputs: int  # D, of one pair; 0 where only the bias is Bayesian
    bias: bool
    inputs_first: bool = False  # the weight is stored as [E · I, O, kernel]
    kernel: int = 1  # D = I · kernel

    @property
    def native(self) -> tuple[int, int, int]:
        return self.pairs, self.outputs, self.inputs + self.bias

    def pairs_of(self, ref: Ref) -> slice:
        """The pairs that a call with some rows of the parameter covers."""
        if ref.whole:
            return slice(0, self.pairs)
        width = ref.stop - ref.start
        return slice(ref.start // width, ref.stop // width)

    def weight_to_native(self, flat: Tensor) -> Tensor:
        """[..., weight.numel()] → [..., E, O, D]."""
        lead = flat.shape[:-1]
        if not self.inputs_first:
            return flat.reshape(*lead, self.pairs, self.outputs, self.inputs)
        split = flat.reshape(*lead, self.pairs, self.inputs // self.kernel, self.outputs, self.kernel)
        return split.transpose(-3, -2).reshape(*lead, self.pairs, self.outputs, self.inputs)

    def native_to_weight(self, native: Tensor) -> Tensor:
        """[..., E, O, D] → [..., weight.numel()]."""
        if self.inputs_first:
            native = native.unflatten(-1, (self.inputs // self.kernel, self.kernel)).transpose(-3, -2)
            return native.flatten(-4)
        return native.flatten(-3)

    def pack(self, flat: Tensor) -> Tensor:
        """(weight, bias) concatenated [..., P] → [..., E, O, D + 1]."""
        size = self.pairs * self.outputs * self.inputs
        parts = []
        if self.inputs:
            parts.append(self.weight_to_native(flat[..., :size]))
        if self.bias:
            parts.append(flat[..., size:].reshape(*flat.shape[:-1], self.pairs, self.outputs, 1))
        return torch.cat(parts, dim=-1)

    def unpack(self, native: Tensor) -> Tensor:
        """The inverse of :meth:`pack`."""
        parts = []
        if self.inputs:
            parts.append(self.native_to_weight(native[..., : self.inputs]))
        if self.bias:
            parts.append(native[..., -1].flatten(-2))
        return torch.cat(parts, dim=-1)


@dataclass(frozen=True)
class Block:
    """Parameters whose curvature is kept together. Vectors follow the order of ``params``, flattened."""

    name: str  # the module's dotted name, or the parameter's where a module has several blocks
    kind: str  # class of the module
    params: tuple[Param, ...]
    source: GradientSource  # where its per-example gradients come from
    form: MatrixForm | None = None
    structure: BlockStructure = BlockStructure.DIAG
    reason: str = ""
    thin_outputs: bool = False  # only the diagonal of the gradients' Kronecker factor is kept
    thin_inputs: bool = False  # the same for the inputs

    @property
    def per_call(self) -> bool:
        """Whether its diagonal is summed call by call (:func:`whence.curvature.diagonals.squares_per_call`)."""
        return (
            self.source is GradientSource.ROWS
            and self.structure is BlockStructure.DIAG
            and self.size > sizes().call_by_call
        )

    @property
    def size(self) -> int:
        return sum(p.numel for p in self.params)

    @property
    def matrix_structured(self) -> bool:
        return self.form is not None and self.structure in (BlockStructure.KRON, BlockStructure.EKFAC)

    @property
    def native(self) -> tuple[int, ...]:
        """Shape of vectors in its structure."""
        if self.matrix_structured:
            assert self.form is not None
            return self.form.native
        return (self.size,)

    def to_native(self, flat: Tensor) -> Tensor:
        if self.matrix_structured:
            assert self.form is not None
            return self.form.pack(flat)
        return flat

    def to_flat(self, native: Tensor) -> Tensor:
        if self.matrix_structured:
            assert self.form is not None
            return self.form.unpack(native)
        return native

    def to_parameters(self, native: Tensor) -> dict[str, Tensor]:
        """[..., *native] → parameters [..., *shape], as views where possible."""
        if not self.matrix_structured or self.form is None or self.form.inputs_first:
            return self.scatter(self.to_flat(native))
        parts = [native[..., : self.form.inputs]] if self.form.inputs else []
        parts += [native[..., -1]] if self.form.bias else []
        lead = native.shape[:-3]
        return {p.name: part.reshape(*lead, *p.shape) for p, part in zip(self.params, parts, strict=True)}

    def offset_of(self, name: str, row: int = 0) -> int:
        """Where a row of a parameter starts in the block's vector."""
        names = [p.name for p in self.params]
        before, own = self.params[: names.index(name)], self.params[names.index(name)]
        return sum(p.numel for p in before) + row * math.prod(own.shape[1:])

    def gather(self, values: Mapping[str, Tensor]) -> Tensor:
        """Parameters [..., *shape] → one vector [..., P]."""
        flat = []
        for p in self.params:
            value = values[p.name]
            flat.append(value.reshape(*value.shape[: value.dim() - len(p.shape)], p.numel))
        return torch.cat(flat, dim=-1)

    def scatter(self, flat: Tensor) -> dict[str, Tensor]:
        """One vector [..., P] → parameters [..., *shape]."""
        pieces = flat.split([p.numel for p in self.params], dim=-1)
        return {p.name: v.reshape((*flat.shape[:-1], *p.shape)) for p, v in zip(self.params, pieces, strict=True)}


def partition(network: Network, selected: list[str], found: Inspection) -> list[Block]:
    """Partition the selected parameters into blocks, in the order of the network's parameters."""
    uses_of: dict[str, list[Use]] = defaultdict(list)
    for use in found.uses:
        for ref in use.refs:
            if ref.name not in found.unexplained:
                uses_of[ref.name].append(use)
    groups = _groups(selected, found, uses_of)
    owners = [owner_of(group[0]) for group in groups]
    blocks = []
    for group, owner in zip(groups, owners, strict=True):
        alone = owners.count(owner) == 1
        name = owner if alone and owner else group[0]
        blocks.append(_block(network, name, owner, group, found, uses_of))
    return blocks


def owner_of(parameter: str) -> str:
    """Dotted name of the module that holds the parameter."""
    return parameter.rpartition(".")[0]


def _groups(selected: list[str], found: Inspection, uses_of: dict[str, list[Use]]) -> list[list[str]]:
    """Parameter names by block: a weight with its bias; a module's parameters without a rule together."""
    partner = _partners(uses_of)
    leftover: dict[str, list[str]] = defaultdict(list)
    groups: list[list[str]] = []
    placed: set[str] = set()
    for name in selected:
        if name in placed:
            continue
        if not uses_of[name]:
            mates = leftover[owner_of(name)]
            if not mates:
                groups.append(mates)
            mates.append(name)
            continue
        group = [name, partner[name]] if name in partner else [name]
        bias = uses_of[name][0].bias
        if len(group) == 2 and bias is not None and bias.name == name:
            group.reverse()  # weight first
        placed.update(group)
        groups.append(group)
    return groups


def _partners(uses_of: dict[str, list[Use]]) -> dict[str, str]:
    """weight ↔ bias where each is used with the other, in every use, and over the same rows."""
    weights_of: dict[str, set[str | None]] = defaultdict(set)
    biases_of: dict[str, set[str | None]] = defaultdict(set)
    same_rows: dict[str, bool] = defaultdict(lambda: True)
    for name, uses in uses_of.items():
        for use in uses:
            if use.weight is not None and use.weight.name == name:
                biases_of[name].add(use.bias.name if use.bias is not None else None)
            if use.bias is not None and use.bias.name == name:
                weights_of[name].add(use.weight.name if use.weight is not None else None)
                if use.weight is not None and not _aligned(use):
                    same_rows[name] = False
    pairs: dict[str, str] = {}
    for weight, biases in biases_of.items():
        (bias, *more) = biases
        if more or bias is None or bias not in uses_of:
            continue
        if weights_of[bias] == {weight} and same_rows[bias]:
            pairs[weight], pairs[bias] = bias, weight
    return pairs


def _aligned(use: Use) -> bool:
    """Whether weight and bias cover the same rows of their parameters."""
    assert use.weight is not None and use.bias is not None
    if getattr(use.rule, "inputs_first", False):
        return use.weight.whole and use.bias.whole
    return (use.weight.start, use.weight.stop, use.weight.rows) == (use.bias.start, use.bias.stop, use.bias.rows)


def _block(
    network: Network, name: str, owner: str, group: list[str], found: Inspection, uses_of: dict[str, list[Use]]
) -> Block:
    params = tuple(Param(n, tuple(network.params[n].shape)) for n in group)
    kind = type(network.module.get_submodule(owner)).__name__ if owner else type(network.module).__name__
    uses = uses_of[group[0]]
    if not uses:
        unused = all(n in found.unused for n in group)
        reason = (
            UNREACHED
            if unused
            else next((found.unexplained[n] for n in group if n in found.unexplained), "no layer rule covers its use")
        )
        return Block(name, kind, params, GradientSource.EXAMPLE, reason=reason)
    if all(isinstance(use.rule, EmbeddingRule) for use in uses) and len(uses) == 1:
        return Block(name, kind, params, GradientSource.TABLE, reason="an embedding has an exact diagonal")
    if all(isinstance(use.rule, MatrixRule) for use in uses):
        form = _form(params, uses, group)
        if form is not None:
            return Block(name, kind, params, GradientSource.MATRIX, form)
        return Block(name, kind, params, GradientSource.ROWS, reason="its calls do not have the same matrix form")
    elements = not any(isinstance(use.rule, (MatrixRule, EmbeddingRule)) for use in uses)
    reason = "its parameters act feature by feature" if elements else "its weight is tied between different layers"
    return Block(name, kind, params, GradientSource.ROWS, reason=reason)


def _form(params: tuple[Param, ...], uses: list[Use], group: list[str]) -> MatrixForm | None:
    """The matrix form that all uses agree on, or None."""
    forms = set()
    for use in uses:
        rule = use.rule
        assert isinstance(rule, MatrixRule)
        has_weight = use.weight is not None and use.weight.name in group
        has_bias = use.bias is not None and use.bias.name in group
        ref = use.weight if has_weight else use.bias
        assert isinstance(ref, Ref)
        if ref.rows % (ref.stop - ref.start) or ref.start % (ref.stop - ref.start) or not ref.stop > ref.start:
            return None
        if rule.pairs > 1 and not ref.whole:
            return None
        if has_weight and rule.inputs_first:
            outputs = params[0].shape[1]
            pairs = rule.pairs
        else:
            pairs = rule.pairs if ref.whole else ref.rows // (ref.stop - ref.start)
            outputs = ref.rows // pairs
        inputs = params[0].numel // (pairs * outputs) if has_weight else 0
        kernel = kernel_size(rule) if rule.inputs_first else 1
        forms.add(MatrixForm(pairs, outputs, inputs, has_bias, rule.inputs_first and has_weight, kernel))
    return forms.pop() if len(forms) == 1 else None


def assign(blocks: Sequence[Block], structure: StructureKind, max_factor: int = MAX_FACTOR) -> list[Block]:
    """Assign each block its structure under the chosen kind; a smaller one where that is too large."""
    return [_assigned(block, structure, max_factor) for block in blocks]


def _assigned(block: Block, structure: StructureKind, max_factor: int) -> Block:
    if structure is StructureKind.BLOCK:
        return replace(block, structure=BlockStructure.DENSE, reason="")
    if structure.factored and block.source is GradientSource.MATRIX:
        return _thinned(replace(block, structure=BlockStructure(structure), reason=""), max_factor)
    if structure.factored and block.source is GradientSource.ROWS and block.size <= sizes().dense_block:
        return replace(block, structure=BlockStructure.DENSE, reason=f"{block.reason}: exact, since it is small")
    if not structure.factored and structure is not StructureKind.DIAG:
        return replace(block, structure=BlockStructure(structure), reason="")
    found = replace(block, structure=BlockStructure.DIAG, reason=block.reason if structure.factored else "")
    if not found.per_call:
        return found
    why = block.reason or "its calls differ"
    reason = f"{why}: with {block.size:,} weights its diagonal is summed call by call, without cross terms"
    return replace(found, reason=reason)


def _thinned(block: Block, max_factor: int) -> Block:
    """Keep only the diagonal of factors with more than ``max_factor`` rows; EKFAC's table would then be too large."""
    pairs, outputs, inputs = block.native
    wide = [(n, what) for n, what in ((outputs, "outputs"), (inputs, "inputs")) if n > max_factor]
    if not wide:
        return block
    width = " and ".join(f"{n:,} {what}" for n, what in wide)
    needed = readable(sum(2 * 4 * pairs * n * n for n, _ in wide))
    reason = (
        f"it has {width}, more than max_factor={max_factor:,}: only the diagonal of that Kronecker factor is kept (the "
        f"whole factor with its eigenvectors would take {needed})"
    )
    return replace(
        block,
        structure=BlockStructure.KRON,
        reason=reason,
        thin_outputs=outputs > max_factor,
        thin_inputs=inputs > max_factor,
    )
