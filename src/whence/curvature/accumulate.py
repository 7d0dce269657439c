"""Sums over the data, one accumulator for each block and structure.

Index legend: K root columns, N examples, T positions, E Kronecker pairs, O outputs, D inputs, P parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from whence.curvature.affine import Affine, gram_of_positions, squares_of_positions
from whence.curvature.blocks import Block
from whence.curvature.by_call import squares_by_call
from whence.curvature.jacobian import Gradients, Recording, chunks, widened
from whence.curvature.squares import matrix_squares
from whence.likelihoods import Likelihood
from whence.linalg.dense import gram, mirrored
from whence.linalg.ratios import Ratio
from whence.linalg.structures import Dense, Diagonal, Ekfac, Kronecker, Structure


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """At least float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class InputSums(ABC):
    """Running sums of what one block (or several, jointly) saw; no backward pass is needed for them.

    Each call adds all it has to add at its end, or nothing: where memory runs out in between, it is made again.
    """

    name = "all layers together"
    fixed: ClassVar[tuple[str, ...]] = ("keep",)  # tensors that are no sums
    host: ClassVar[tuple[str, ...]] = ()  # sums that are known without the device, and kept on the CPU

    @abstractmethod
    def inputs(self, recording: Recording) -> None:
        """Called once for each batch."""

    def state(self) -> dict[str, Tensor]:
        """The running sums themselves, by name: every tensor that it has, except those that are ``fixed``."""
        return {k: v for k, v in vars(self).items() if isinstance(v, Tensor) and k not in self.fixed}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Set the running sums."""
        for key, value in self.state().items():
            if state[key].shape != value.shape or state[key].dtype != value.dtype:
                raise ValueError(f"{self.name}: {key} has shape {list(state[key].shape)}, not {list(value.shape)}")
            value.copy_(state[key])


class Accumulator(InputSums):
    """The same of curvature, for which gradients go backward."""

    def inputs(self, recording: Recording) -> None:
        """Nothing, where a structure needs no inputs of their own."""

    @abstractmethod
    def gradients(self, grads: Gradients) -> None:
        """Called for each chunk of root columns."""

    @property
    def takes_direct(self) -> bool:
        """Whether :meth:`direct` is there."""
        return False

    def direct(self, recording: Recording, likelihood: Likelihood, targets: Tensor) -> None:
        """What all columns together would add, from Λ itself, where the network's outputs are the layer's own."""
        raise NotImplementedError

    @abstractmethod
    def result(self) -> Structure: ...


class KroneckerAccumulator(Accumulator):
    """A = Σ a aᵀ / R and G = Σ g gᵀ, in the expand or the reduce form for shared weights; diagonal on a thin side."""

    host: ClassVar[tuple[str, ...]] = ("count",)

    def __init__(self, block: Block, sharing: str, like: Tensor) -> None:
        assert block.form is not None
        self.block, self.name, self.reduce = block, block.name, sharing == "reduce"
        self.coarse = any(len(p.shape) > 2 for p in block.params)  # a convolution
        pairs, outputs, inputs = block.form.native
        dtype = accumulation_dtype(like.dtype)
        a_shape = (pairs, inputs) if block.thin_inputs else (pairs, inputs, inputs)
        g_shape = (pairs, outputs) if block.thin_outputs else (pairs, outputs, outputs)
        self.a = torch.zeros(a_shape, dtype=dtype, device=like.device)
        self.g = torch.zeros(g_shape, dtype=dtype, device=like.device)
        self.count = torch.zeros(pairs, dtype=torch.float64)  # known without the device
        self.live = torch.zeros(pairs, dtype=torch.float64, device=like.device)  # positions that were found to count

    def inputs(self, recording: Recording) -> None:
        if not self.reduce:
            self._expanded_inputs(recording)
            return
        thin, sums = self.block.thin_inputs, Contributions()
        by_pairs: dict[tuple[int, int], list[Affine]] = defaultdict(list)
        for pairs, a in recording.block_inputs(self.block):
            by_pairs[pairs.start, pairs.stop].append(a)
        for (start, stop), seen in by_pairs.items():
            number = sum(a.rows_of_examples for a in seen)  # of one example, [N, 1]
            number = number.clamp(min=1) if isinstance(number, Tensor) else number
            mean = torch.stack([a.summed() for a in seen]).sum(0) / number  # [E, N, D]
            sums.add(slice(start, stop), mean.square().sum(1) if thin else gram(mean), recording.size)
        sums.into(self.a, self.count, self.live)

    def _expanded_inputs(self, recording: Recording) -> None:
        thin, sums = self.block.thin_inputs, Contributions()
        for pairs, a, last in recording.input_pieces(self.block):
            if thin:
                sums.add(pairs, a.squares(), a.rows)
            elif isinstance(a, Affine) and not a.adds_in_place:
                sums.add(pairs, a.gram(self.coarse), a.rows)
            elif not last:
                a.add_gram(sums.part(pairs, self.a, a.rows))
            else:  # nothing is made after it, so that it needs no copy of the sum
                a.add_gram(self.a[pairs])
                (self.live if isinstance(a.rows, Tensor) else self.count)[pairs] += a.rows
        sums.into(self.a, self.count, self.live)

    def gradients(self, grads: Gradients) -> None:
        sums = Contributions()
        if not self.reduce:
            for pairs, g in grads.outputs_of(self.block):
                sums.add(pairs, self._moment(g))
            sums.into(self.g)
            return
        by_pairs: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for pairs, g in grads.outputs_of(self.block):
            by_pairs[pairs.start, pairs.stop].append(g)
        for (start, stop), seen in by_pairs.items():
            total = torch.stack([widened(g).sum(3) for g in seen]).sum(0)  # [K, E, N, O]
            sums.add(slice(start, stop), self._moment(total.unsqueeze(3)))
        sums.into(self.g)

    def _moment(self, g: Tensor) -> Tensor:
        return squares_of_positions(g) if self.block.thin_outputs else gram_of_positions(g, self.coarse)

    @property
    def takes_direct(self) -> bool:
        return not self.block.thin_outputs

    def direct(self, recording: Recording, likelihood: Likelihood, targets: Tensor) -> None:
        self.g[0] += likelihood.hessian_sum(widened(recording.outputs.detach()), targets).to(self.g.dtype)

    def result(self) -> Structure:
        a = self.a if self.block.thin_inputs else mirrored(self.a)
        return Kronecker(a, self.g, self.count.to(self.a.device) + self.live)


class Contributions:
    """What the calls of a batch add to a sum, by the pairs that they cover; added at once, when all are there."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], Tensor] = {}
        self.rows: dict[tuple[int, int], int] = defaultdict(int)
        self.live: dict[tuple[int, int], Tensor] = {}  # rows that the device has counted

    def add(self, pairs: slice, part: Tensor, rows: int | Tensor = 0) -> None:
        key = (pairs.start, pairs.stop)
        self.parts[key] = self.parts[key].add_(part) if key in self.parts else part
        self._count(key, rows)

    def _count(self, key: tuple[int, int], rows: int | Tensor) -> None:
        if isinstance(rows, Tensor):
            self.live[key] = self.live[key] + rows if key in self.live else rows
        else:
            self.rows[key] += rows

    def part(self, pairs: slice, like: Tensor, rows: int | Tensor) -> Tensor:
        """The sum so far, to be added to in place."""
        key = (pairs.start, pairs.stop)
        if key not in self.parts:
            self.parts[key] = torch.zeros_like(like[pairs])
        self._count(key, rows)
        return self.parts[key]

    def into(self, total: Tensor, count: Tensor | None = None, live: Tensor | None = None) -> None:
        for key, part in self.parts.items():
            pairs = slice(*key)
            total[pairs] += part
            if count is not None:
                count[pairs] += self.rows[key]
            if live is not None and key in self.live:
                live[pairs] += self.live[key]


class DiagonalAccumulator(Accumulator):
    """Σ (per-example gradient)², summed over positions and calls before squaring."""

    def __init__(self, block: Block, like: Tensor) -> None:
        self.block, self.name = block, block.name
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
        elif block.by_call:
            self.sum += squares_by_call(block, grads, self.sum.dtype)
        else:
            sums = Contributions()
            for which in grads.row_chunks(block):
                sums.add(slice(0, block.size), grads.rows(block, which).to(self.sum.dtype).square().sum((0, 1)))
            sums.into(self.sum)

    @property
    def takes_direct(self) -> bool:
        return self.block.source == "matrix"

    def direct(self, recording: Recording, likelihood: Likelihood, targets: Tensor) -> None:
        assert self.block.form is not None
        ((_, a),) = recording.block_inputs(self.block)
        weights = likelihood.hessian_diagonal(widened(recording.outputs.detach()), targets).movedim(0, 1)  # [1, N, C]
        native = weights.mT.to(self.sum.dtype) @ a.dense().squeeze(2).square().to(self.sum.dtype)
        self.sum += self.block.form.unpack(native)

    def result(self) -> Structure:
        return Diagonal(self.sum)


class DenseAccumulator(Accumulator):
    """Σ Jᵀ Λ J over several blocks jointly; ``keep`` picks entries of their joined vector."""

    def __init__(self, blocks: list[Block], like: Tensor, keep: Tensor | None = None) -> None:
        self.blocks, self.keep = blocks, keep
        size = sum(b.size for b in blocks) if keep is None else len(keep)
        self.sum = torch.zeros(size, size, dtype=accumulation_dtype(like.dtype), device=like.device)
        self.name = blocks[0].name if len(blocks) == 1 else self.name

    def gradients(self, grads: Gradients) -> None:
        sums = Contributions()
        for which in joint_chunks(grads, self.blocks):
            rows = joint_rows(grads, self.blocks, which, self.keep)
            sums.add(slice(0, len(self.sum)), gram(rows.flatten(0, 1).to(self.sum.dtype)))
        sums.into(self.sum)

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
    """Σ_{n,k} (B_Gᵀ J B_A)², in the eigenvectors of Kronecker factors from an earlier pass."""

    fixed = ("left", "right")

    def __init__(self, block: Block, left: Tensor, right: Tensor, ratio: Ratio | None = None) -> None:
        assert block.form is not None
        self.block, self.name, self.ratio = block, block.name, ratio
        self.left, self.right = left, right
        self.sum = torch.zeros(block.form.native, dtype=right.dtype, device=right.device)

    def gradients(self, grads: Gradients) -> None:
        assert self.block.form is not None
        turned = [part.turned(self.left, self.right) for part in grads.parts(self.block)]
        self.sum += matrix_squares(turned, self.block.form.native, grads).to(self.sum.dtype)

    def result(self) -> Structure:
        return Ekfac(self.sum, self.left, self.right, ratio=self.ratio)
