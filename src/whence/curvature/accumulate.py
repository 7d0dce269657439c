"""Sums over the data, one accumulator for each block and structure.

Index legend: K root columns, N examples, T positions, E Kronecker pairs, O outputs, D inputs, P parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator

import torch
from torch import Tensor

from whence.curvature.affine import Affine, gram_of_positions
from whence.curvature.blocks import Block
from whence.curvature.jacobian import Gradients, MatrixPart, Recording, chunks
from whence.linalg.dense import gram
from whence.linalg.structures import Dense, Diagonal, Ekfac, Kronecker, Structure


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """At least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Accumulator(ABC):
    """A running sum for one block (or several, jointly)."""

    def inputs(self, recording: Recording) -> None:  # noqa: B027
        """Called once for each batch."""

    @abstractmethod
    def gradients(self, grads: Gradients) -> None:
        """Called for each chunk of root columns."""

    @abstractmethod
    def result(self) -> Structure: ...


class KroneckerAccumulator(Accumulator):
    """A = Σ a aᵀ / R and G = Σ g gᵀ, in the expand or the reduce form for shared weights."""

    def __init__(self, block: Block, sharing: str, like: Tensor) -> None:
        assert block.form is not None
        self.block, self.reduce = block, sharing == "reduce"
        pairs, outputs, inputs = block.form.native
        dtype = accumulation_dtype(like.dtype)
        self.a = torch.zeros(pairs, inputs, inputs, dtype=dtype, device=like.device)
        self.g = torch.zeros(pairs, outputs, outputs, dtype=dtype, device=like.device)
        self.count = torch.zeros(pairs, dtype=torch.float64, device=like.device)

    def inputs(self, recording: Recording) -> None:
        if not self.reduce:
            for pairs, a in recording.block_inputs(self.block, whole=False):
                self.a[pairs] += a.gram()
                self.count[pairs] += a.rows
            return
        by_pairs: dict[tuple[int, int], list[Affine]] = defaultdict(list)
        for pairs, a in recording.block_inputs(self.block):
            by_pairs[pairs.start, pairs.stop].append(a)
        for (start, stop), seen in by_pairs.items():
            mean = torch.stack([a.summed() for a in seen]).sum(0) / sum(a.positions for a in seen)  # [E, N, D]
            self.a[start:stop] += gram(mean)
            self.count[start:stop] += recording.size

    def gradients(self, grads: Gradients) -> None:
        if not self.reduce:
            for pairs, g in grads.outputs_of(self.block):
                self.g[pairs] += gram_of_positions(g)
            return
        by_pairs: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for pairs, g in grads.outputs_of(self.block):
            by_pairs[pairs.start, pairs.stop].append(g)
        for (start, stop), seen in by_pairs.items():
            total = torch.stack([g.sum(3) for g in seen]).sum(0)  # [K, E, N, O]
            self.g[start:stop] += gram_of_positions(total.unsqueeze(3))

    def result(self) -> Structure:
        return Kronecker(self.a, self.g, self.count)


class DiagonalAccumulator(Accumulator):
    """Σ (per-example gradient)², summed over positions and calls before squaring."""

    def __init__(self, block: Block, like: Tensor) -> None:
        self.block = block
        self.sum = torch.zeros(block.size, dtype=accumulation_dtype(like.dtype), device=like.device)

    def gradients(self, grads: Gradients) -> None:
        block = self.block
        if block.source == "matrix":
            assert block.form is not None
            native = matrix_squares(grads.parts(block), block.form.native, grads)
            self.sum += block.form.unpack(native).to(self.sum.dtype)
        elif block.source == "table":
            ids, merged = grads.table(block)  # [N, T], [K, N, T, F]
            squares = merged.to(self.sum.dtype).square().sum(0).flatten(0, 1)
            self.sum.view(block.params[0].shape).index_add_(0, ids.flatten(), squares)
        else:
            for which in grads.row_chunks(block):
                self.sum += grads.rows(block, which).to(self.sum.dtype).square().sum((0, 1))

    def result(self) -> Structure:
        return Diagonal(self.sum)


def matrix_squares(parts: list[MatrixPart], native: tuple[int, ...], grads: Gradients) -> Tensor:
    """Σ_{k,n} (Σ_t g aᵀ)², [E, O, D]."""
    total = parts[0].g.new_zeros(native) if parts else grads.columns.new_zeros(native)
    if not parts:
        return total  # the layer was not called in this batch
    if is_unshared(parts, native[0]):
        part = parts[0]
        squares = part.g.square().sum(0).squeeze(2)  # [E, N, O]
        return squares.mT @ part.a.dense().squeeze(2).square()
    for part_rows in summed_rows(parts, native, grads):
        total += part_rows.square().sum((0, 1))
    return total


def is_unshared(parts: list[MatrixPart], pairs: int) -> bool:
    """Whether there is one call, over all pairs, with one position for each example."""
    return len(parts) == 1 and parts[0].a.positions == 1 and parts[0].pairs == slice(0, pairs)


def summed_rows(parts: list[MatrixPart], native: tuple[int, ...], grads: Gradients) -> Iterator[Tensor]:
    """Chunks over examples of Σ_calls Σ_t g aᵀ, [K, n, E, O, D]."""
    each = grads.count * int(torch.Size(native).numel()) * grads.columns.element_size()
    for which in chunks(grads.recording.size, each, grads.columns.device):
        if len(parts) == 1 and parts[0].pairs == slice(0, native[0]):
            yield parts[0].rows(which)
            continue
        size = which.stop - which.start
        rows = parts[0].g.new_zeros(grads.count, size, *native)
        for part in parts:
            rows[:, :, part.pairs] += part.rows(which)
        yield rows


class DenseAccumulator(Accumulator):
    """Σ Jᵀ Λ J over several blocks jointly; ``keep`` picks entries of their joined vector."""

    def __init__(self, blocks: list[Block], like: Tensor, keep: Tensor | None = None) -> None:
        self.blocks, self.keep = blocks, keep
        size = sum(b.size for b in blocks) if keep is None else len(keep)
        self.sum = torch.zeros(size, size, dtype=accumulation_dtype(like.dtype), device=like.device)

    def gradients(self, grads: Gradients) -> None:
        for which in joint_chunks(grads, self.blocks):
            rows = joint_rows(grads, self.blocks, which, self.keep)
            self.sum += gram(rows.flatten(0, 1).to(self.sum.dtype))

    def result(self) -> Structure:
        return Dense(self.sum)


def joint_chunks(grads: Gradients, blocks: list[Block]) -> Iterator[slice]:
    """Pieces of the batch whose joined rows fit the memory budget."""
    elements = sum(b.size for b in blocks) * grads.count
    return chunks(grads.recording.size, elements * grads.columns.element_size(), grads.columns.device)


def joint_rows(grads: Gradients, blocks: list[Block], which: slice, keep: Tensor | None = None) -> Tensor:
    """Rows of several blocks side by side, [K, n, P]."""
    rows = torch.cat([grads.rows(block, which) for block in blocks], dim=-1)
    return rows if keep is None else rows[..., keep]


class EkfacAccumulator(Accumulator):
    """Σ_{n,k} (Q_Gᵀ J Q_A)², in the eigenvectors of Kronecker factors from an earlier pass."""

    def __init__(self, block: Block, factors: Kronecker) -> None:
        assert block.form is not None
        self.block = block
        spectral = factors.spectral(None, block.name)
        self.left, self.right = spectral.left, spectral.right  # type: ignore[attr-defined]
        self.sum = torch.zeros(block.form.native, dtype=factors.inputs.dtype, device=factors.inputs.device)

    def gradients(self, grads: Gradients) -> None:
        assert self.block.form is not None
        turned = [part.turned(self.left, self.right) for part in grads.parts(self.block)]
        self.sum += matrix_squares(turned, self.block.form.native, grads).to(self.sum.dtype)

    def result(self) -> Structure:
        return Ekfac(self.sum, self.left, self.right)
