"""Memory: what a fit needs and has, and how it goes on where that was not enough."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import torch
from torch import Tensor

from whence.errors import TooLarge, is_out_of_memory, notice

if TYPE_CHECKING:
    from whence.curvature.blocks import Block
    from whence.curvature.options import Options

T = TypeVar("T")
DENSE_LIMIT = 6 * 2**30  # bytes that dense curvature may take


def release(device: torch.device) -> None:
    """Hand back what a failed computation has left."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def attempt(compute: Callable[[], T]) -> T | None:
    """What is computed, or None if memory ran out; then nothing holds on to the failed computation."""
    try:
        return compute()
    except Exception as error:
        if is_out_of_memory(error):
            return None
        raise


@dataclass
class Room:
    """How much is computed together: the root columns are halved first, then the examples."""

    examples: int | None = None  # None: as many as come
    columns: int | None = None
    ran_out: tuple[int, int] | None = field(default=None)  # examples and columns, the first time

    def shrink(self, examples: int, columns: int) -> bool:
        """Halve what did not fit (``columns`` 0 where it was the examples); False where nothing is left to halve."""
        if self.ran_out is None:
            self.ran_out = (examples, columns)
        if columns > 1:
            self.columns = columns // 2
        elif examples > 1:
            self.examples = examples // 2
        else:
            return False
        return True

    def say(self, what: str, unit: str = "root column") -> None:
        """One line on what was chosen, if anything had to be."""
        if self.ran_out is None:
            return
        examples, columns = self.ran_out
        chosen = []
        if self.columns is not None:
            chosen.append(f"{self.columns} {unit}{'s' * (self.columns > 1)} (not {columns or 'more'})")
        if self.examples is not None:
            chosen.append(f"{self.examples} example{'s' * (self.examples > 1)} (not {examples})")
        notice(
            f"{what} ran out of memory and went on with {' and '.join(chosen)} at a time; its result is the same. "
            "Smaller batches avoid the failed attempts."
        )


class Cuttable(Protocol):
    """Some examples that remember what has been summed of them."""

    rows: Tensor
    trying: int  # columns under way

    def cut(self, size: int) -> Sequence[Self]: ...


P = TypeVar("P", bound=Cuttable)


def within(room: Room, piece: P, add: Callable[[P], None], too_large: Callable[[P], str]) -> None:
    """Sum a piece; halved, where memory runs out, until it fits. What ``add`` has summed it must not sum again."""
    waiting = [piece]
    while waiting:
        now = waiting.pop()
        if room.examples is not None and len(now.rows) > room.examples:
            waiting += reversed(now.cut(room.examples))
        elif not _fits(add, now):
            release(now.rows.device)
            if not room.shrink(len(now.rows), now.trying):
                raise TooLarge(too_large(now))
            waiting.append(now)


def _fits(add: Callable[[P], None], piece: P) -> bool:
    try:
        add(piece)
    except Exception as error:
        if is_out_of_memory(error):
            return False  # outside of here nothing holds on to what was computed
        raise
    return True


# What is needed


@dataclass(frozen=True)
class Needs:
    """Bytes that one block's curvature takes."""

    sums: int  # running sums over the data
    decomposition: int  # eigenvectors and eigenvalues
    work: int = 0  # beside both, while it is decomposed

    @property
    def kept(self) -> int:
        return self.sums + self.decomposition


def needs(block: Block, item: int) -> Needs:
    """What a block's structure takes, for numbers of ``item`` bytes."""
    if block.structure == "dense":
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


def estimate(blocks: list[Block], item: int) -> dict[str, Needs]:
    """What each block's curvature takes, by name."""
    return {b.name: needs(b, item) for b in blocks}


def available(device: torch.device) -> int | None:
    """Bytes that are free on a device; None where that is not known."""
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_allocated(device)
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _: 1.0)(device)  # torch 2.8
        return int(min(free + torch.cuda.memory_reserved(device), fraction * whole) - held)
    if device.type != "cpu":
        return None
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def check(blocks: list[Block], options: Options, joint: int | None, item: int, device: torch.device) -> None:
    """Refuse curvature that cannot fit; ``joint`` is the size of one dense matrix over all blocks, if there is one."""
    sizes = [b.size for b in blocks if b.structure == "dense"] if joint is None else [joint]
    dense = sum(3 * n * n for n in sizes) * item
    if dense > DENSE_LIMIT:
        raise TooLarge(
            f"structure={options.structure!r} with {max(sizes):,} parameters in one block would need about "
            f"{gib(dense)} (limit {DENSE_LIMIT / 2**30:.0f} GiB). Use structure='kron' (default), 'diag' or 'lowrank', "
            "or select fewer weights with layers='last' or a subnetwork."
        )
    if joint is not None or options.structure == "lowrank":
        return
    needed, free = total(blocks, options.offload, item), available(device)
    if free is not None and needed > free:
        raise TooLarge(
            f"the curvature needs {gib(needed)} for its sums and their decompositions, and {device} has {gib(free)} "
            f"left. Most of it: {largest(blocks, item)}. {remedy(options)}"
        )


def total(blocks: list[Block], offload: bool, item: int) -> int:
    """Bytes that a fit keeps on the device, at the most."""
    found = list(estimate(blocks, item).values())
    sums = sum(n.sums for n in found)
    if offload:
        return sums + max((n.decomposition + n.work for n in found), default=0)
    return sums + sum(n.decomposition for n in found) + max((n.work for n in found), default=0)


def largest(blocks: list[Block], item: int, count: int = 3) -> str:
    """The blocks that take most, in words."""
    found = sorted(blocks, key=lambda b: needs(b, item).kept, reverse=True)[:count]
    return "; ".join(f"{b.name} ({b.kind}, {shape_of(b)}) {gib(needs(b, item).kept)}" for b in found)


def shape_of(block: Block) -> str:
    if block.matrix_structured:
        pairs, outputs, inputs = block.native
        times = f"{pairs} × " if pairs > 1 else ""
        return f"factors of {times}{outputs:,} outputs and {inputs:,} inputs"
    return f"{block.structure} over {block.size:,} weights"


def remedy(options: Options) -> str:
    ways = ["select fewer weights with layers=…"]
    if options.structure in ("kron", "ekfac"):
        ways.append(f"lower max_factor (now {options.max_factor:,}) so that wide factors are kept diagonal")
    if not options.offload:
        ways.append("keep the decompositions in main memory with offload=True")
    if options.structure != "diag":
        ways.append("use structure='diag'")
    return f"To need less: {'; '.join(ways)}."


def gib(count: float) -> str:
    """Bytes in words."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.1f} MiB"
