"""How much memory a fit needs, and how to reduce it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from whence.curvature.options import FitOptions
from whence.engine import memory
from whence.engine.memory import readable
from whence.errors import TooLarge
from whence.linalg.structures import BlockStructure, StructureKind
from whence.recording.blocks import Block


@dataclass(frozen=True)
class Needs:
    """Bytes that one block's curvature takes."""

    sums: int  # sums over the data
    decomposition: int  # eigenvectors and eigenvalues
    work: int = 0  # temporary memory during the decomposition

    @property
    def stored(self) -> int:
        return self.sums + self.decomposition


def needs(block: Block, item: int) -> Needs:
    """Memory that a block's structure needs, with ``item`` bytes per number."""
    if block.structure is BlockStructure.DENSE:
        return Needs(block.size**2 * item, (block.size**2 + block.size) * item, 2 * block.size**2 * item)
    if block.matrix_structured:
        pairs, outputs, inputs = block.native
        full = [n for n, thin in ((outputs, block.thin_outputs), (inputs, block.thin_inputs)) if not thin]
        squares = pairs * sum(n * n for n in full)
        ends = pairs * (outputs + inputs)
        table = pairs * outputs * inputs
        work = 2 * max((n * n for n in full), default=0) * 8
        return Needs((squares + ends) * item, (squares + ends + table) * item, work)
    return Needs(block.size * item, 0)  # a diagonal is its own decomposition


def total(blocks: Sequence[Block], offload: bool, item: int) -> int:
    """Largest number of bytes that a fit keeps on the device."""
    found = [needs(block, item) for block in blocks]
    sums = sum(n.sums for n in found)
    if offload:
        return sums + max((n.decomposition + n.work for n in found), default=0)
    return sums + sum(n.decomposition for n in found) + max((n.work for n in found), default=0)


def check(blocks: Sequence[Block], options: FitOptions, joint: int | None, item: int, device: torch.device) -> None:
    """Refuse curvature that does not fit; ``joint`` is the size of a dense matrix over all blocks, if there is one."""
    counts = [b.size for b in blocks if b.structure is BlockStructure.DENSE] if joint is None else [joint]
    dense, limit = sum(3 * n * n for n in counts) * item, memory.sizes().dense_curvature
    if dense > limit:
        raise TooLarge(
            f"structure={options.structure!r} with {max(counts):,} parameters in one block would need about "
            f"{readable(dense)} (limit {readable(limit)}). Use structure='kron' (default), 'diag' or 'lowrank', "
            "or select fewer weights with layers='last' or a subnetwork."
        )
    if joint is not None or options.structure is StructureKind.LOWRANK:
        return
    needed, free = total(blocks, options.execution.offload, item), memory.available(device)
    if free is not None and needed > free:
        raise TooLarge(
            f"the curvature needs {readable(needed)} for its sums and their decompositions, and {device} has "
            f"{readable(free)} free. Largest:  {largest(blocks, item)}. {remedy(options)}"
        )


def largest(blocks: Sequence[Block], item: int, count: int = 3) -> str:
    """Text that names the blocks that need the most memory."""
    found = sorted(blocks, key=lambda b: needs(b, item).stored, reverse=True)[:count]
    return "; ".join(f"{b.name} ({b.kind}, {_shape(b)}) {readable(needs(b, item).stored)}" for b in found)


def _shape(block: Block) -> str:
    if block.matrix_structured:
        pairs, outputs, inputs = block.native
        times = f"{pairs} × " if pairs > 1 else ""
        return f"factors of {times}{outputs:,} outputs and {inputs:,} inputs"
    return f"{block.structure} over {block.size:,} weights"


def remedy(options: FitOptions) -> str:
    ways = ["select fewer weights with layers=…"]
    if options.structure.factored:
        ways.append(f"lower max_factor (now {options.max_factor:,}) so that wide factors are stored diagonal")
    if not options.execution.offload:
        ways.append("keep the decompositions in main memory with execution=whence.Execution(offload=True)")
    if options.structure is not StructureKind.DIAG:
        ways.append("use structure='diag'")
    return f"To use less memory:  {'; '.join(ways)}."
