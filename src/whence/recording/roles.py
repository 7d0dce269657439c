"""How a block's parameters act on its inputs; priors depend on this.

Index legend: E Kronecker pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from whence.engine.options import Option
from whence.functional import Network
from whence.recording.blocks import Block, GradientSource, Param, owner_of
from whence.recording.broadcast import AddedRule, ExpandedRule
from whence.recording.layout import Inspection
from whence.recording.recorder import Use
from whence.recording.rules import EmbeddingRule, MatrixRule, SlopeRule


class Role(Option):
    """How a block's parameters act."""

    MATRIX = "matrix"
    BIAS = "bias"  # bias of a matrix that is not in the block
    AFFINE = "affine"  # scale of features, perhaps with a shift
    SHIFT = "shift"  # added to features
    SLOPE = "slope"  # slope of PReLU
    TABLE = "table"  # a table of rows for lookup
    ADDED = "added"  # a table that is added, or an expanded token
    RECURRENT = "recurrent"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Description:
    """How a block's parameters act, for its prior."""

    kind: Role
    external: tuple[bool, ...] = ()  # by pair or matrix: whether its input depends on no parameter
    head: bool = False  # whether its outputs are the network's
    offset: float = 0.0  # added to its weight before use


def describe(network: Network, blocks: Sequence[Block], found: Inspection) -> dict[str, Description]:
    """How each block's parameters act, from the calls of the inspected pass."""
    return {block.name: _described(network, block, found) for block in blocks}


def _described(network: Network, block: Block, found: Inspection) -> Description:
    names = {p.name for p in block.params}
    uses = [use for use in found.uses if names & {ref.name for ref in use.refs}]
    kind = _kind(network, block, uses, found)
    external: tuple[bool, ...] = ()
    if kind is Role.MATRIX:
        assert block.form is not None
        seen = [[True] for _ in range(block.form.pairs)]
        for use in uses:
            ref = use.weight or use.bias
            assert ref is not None
            for pair in range(block.form.pairs)[block.form.pairs_of(ref)]:
                seen[pair].append(use.key in found.external)
        external = tuple(all(flags) for flags in seen)
    elif kind is Role.RECURRENT:
        external = tuple(p.name in found.external for p in matrices(block))
    offsets = {use.weight.offset for use in uses if use.weight is not None}
    return Description(kind, external, bool(names & found.heads), offsets.pop() if len(offsets) == 1 else 0.0)


def _kind(network: Network, block: Block, uses: list[Use], found: Inspection) -> Role:
    rules = [use.rule for use in uses]
    if block.source is GradientSource.MATRIX:
        assert block.form is not None
        return Role.MATRIX if block.form.inputs else Role.BIAS
    if any(isinstance(rule, EmbeddingRule) for rule in rules) and len(block.params) == 1:
        return Role.TABLE  # also if tied to a head
    if block.source is GradientSource.EXAMPLE:
        module = network.module.get_submodule(owner_of(block.params[0].name))
        known = all(p.name in found.recurrent for p in matrices(block))
        return Role.RECURRENT if isinstance(module, (nn.RNNBase, nn.RNNCellBase)) and known else Role.UNKNOWN
    if any(isinstance(rule, MatrixRule) for rule in rules):
        return Role.UNKNOWN
    if all(isinstance(rule, SlopeRule) for rule in rules):
        return Role.SLOPE
    if all(isinstance(rule, AddedRule) for rule in rules):
        repeated = all(isinstance(rule, ExpandedRule) for rule in rules)
        return Role.ADDED if repeated or _is_table(block, uses) else Role.SHIFT
    return Role.AFFINE if any(use.weight is not None for use in uses) else Role.SHIFT


def _is_table(block: Block, uses: list[Use]) -> bool:
    """Whether the added tensor has several rows of features (in the last dimension)."""
    shape = block.params[0].shape
    return len(uses[0].shape) <= 3 and bool(shape) and shape[-1] > 1 and block.size > shape[-1]


def matrices(block: Block) -> list[Param]:
    """The matrices of a recurrent block, in its order."""
    return [p for p in block.params if len(p.shape) == 2]
