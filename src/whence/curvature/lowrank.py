"""The leading eigenpairs of the curvature, from matrix-vector products.

Block Krylov iteration with restarts (Musco, Musco 2015; Stewart 2002): each pass over the data multiplies H by a block
of directions, the residuals of the current Ritz pairs. It stops when the residuals of the leading pairs are small.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.curvature.jvp import push
from whence.curvature.options import CurvatureKind, FitOptions
from whence.curvature.products import Rooted, Vector
from whence.curvature.result import FitRecord, RecordSums
from whence.curvature.sweep import Examples, add_in_parts
from whence.engine.batches import counted_examples
from whence.engine.files import digest
from whence.engine.memory import ChunkLimits, sizes
from whence.engine.passes import Passes
from whence.engine.ranks import Ranks
from whence.engine.stages import NamedSums
from whence.errors import UnsupportedLayer, is_out_of_memory, notice
from whence.functional import differentiable
from whence.likelihoods import Likelihood
from whence.linalg.dense import accumulation_dtype
from whence.linalg.ratios import Ratio
from whence.linalg.structures import LowRank, Structure, StructureKind
from whence.recording.backward import gradients
from whence.recording.plan import Plan

OVERSAMPLE = 10
PASSES = 40  # largest number of passes over the data
BLOCKS = 6  # blocks of directions before a restart from the leading ones
WHOLE = 4096  # no restart up to this number of weights
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}  # of ‖H u − λ u‖ / λ₁


def compute(
    plan: Plan,
    batches: Passes,
    likelihood: Likelihood,
    options: FitOptions,
    ranks: Ranks,
    ratio: Ratio | None,
    passes: int = PASSES,
) -> tuple[list[Structure], FitRecord]:
    """U diag(λ) Uᵀ ≈ D^{-1/2} H D^{-1/2} over all blocks jointly; ``ratio`` is D, or None for I.

    At most ``passes`` passes over the data.
    """
    size = sum(b.size for b in plan.blocks)
    rank = min(options.rank, size)
    width = min(rank + OVERSAMPLE, size)
    like = plan.network.like
    dtype = accumulation_dtype(like.dtype)
    ratio = None if ratio is None else ratio.to(like.device, dtype)
    root = None if ratio is None else ratio.root().unsqueeze(1)
    generator = torch.Generator().manual_seed(2011)
    start = torch.randn(size, width, generator=generator, dtype=torch.float64)
    space = Krylov(torch.linalg.qr(start.to(like.device, dtype))[0], rank, size)
    record = FitRecord()
    for _ in range(passes):
        (block,) = _from_rank_zero(ranks, space.block)
        product, record = _product(plan, batches, likelihood, options, block if root is None else root * block)
        ranks.synchronise("adding up products")
        product = ranks.summed(product)
        batches.same_data(record.loss, StructureKind.LOWRANK)
        space.add(block, product if root is None else root * product)
        if space.done:
            break
    if not space.done:
        _notify_unconverged(space, rank, passes)
    values, vectors = _from_rank_zero(ranks, *space.leading())
    return [LowRank(values, vectors, ratio=ratio)], record


def _notify_unconverged(space: Krylov, rank: int, passes: int) -> None:
    notice(
        f"{space.converged} of the leading {rank} eigenpairs have converged after {passes} passes over the data; the "
        f"largest residual is {space.residual:.2g} times the largest eigenvalue. The spectrum is flat there: a lower "
        "rank, at which it still falls, or structure='kron' describes the curvature better."
    )


class Krylov:
    """A growing space of directions V with their products H V, and the Ritz pairs of H in it."""

    def __init__(self, start: Tensor, rank: int, size: int) -> None:
        self.block = start  # next directions to multiply: orthonormal, and orthogonal to the space
        self.rank, self.most = rank, size if size <= WHOLE else BLOCKS * start.shape[1]
        self.tolerance = TOLERANCE[start.dtype]
        self.vectors, self.products = start[:, :0], start[:, :0]
        self.values = start.new_zeros(0)
        self.residuals = start.new_zeros(0)
        self.done = False

    def add(self, block: Tensor, product: Tensor) -> None:
        """Add a block and its products, update the Ritz pairs, and choose the next block."""
        vectors, products = torch.cat([self.vectors, block], 1), torch.cat([self.products, product], 1)
        small = (vectors.mT @ products).double()
        values, turn = torch.linalg.eigh((small + small.mT) / 2)
        turn = turn.flip(1)[:, : self.most].to(block.dtype)
        self.values = values.flip(0)[: turn.shape[1]].to(block.dtype)
        self.vectors, self.products = vectors @ turn, products @ turn
        rest = self.products - self.vectors * self.values
        self.residuals = rest.norm(dim=0) / self.values[0].clamp(min=torch.finfo(block.dtype).tiny)
        self.block = self._next(rest, block.shape[1])
        room = self.most - self.block.shape[1]
        if self.block.shape[1] and self.vectors.shape[1] > room:  # restart from the leading pairs
            kept = max(room, self.rank)
            self.vectors, self.products = self.vectors[:, :kept], self.products[:, :kept]
            self.values, self.residuals = self.values[:kept], self.residuals[:kept]
        self.done = not self.block.shape[1] or float(self.residuals[: self.rank].max()) <= self.tolerance

    def _next(self, rest: Tensor, width: int) -> Tensor:
        """An orthonormal basis of the residuals, orthogonal to the space; empty if nothing is left."""
        left, singular, _ = torch.linalg.svd(rest[:, : 2 * width], full_matrices=False)
        least = 10 * torch.finfo(rest.dtype).eps * self.values[0].clamp(min=0)
        found = left[:, singular > least][:, : min(width, len(rest) - self.vectors.shape[1])]
        for _ in range(2):
            found = found - self.vectors @ (self.vectors.mT @ found)
            found = torch.linalg.qr(found)[0] if found.shape[1] else found
        return found

    @property
    def converged(self) -> int:
        """How many of the leading pairs have converged."""
        return int((self.residuals[: self.rank] <= self.tolerance).sum())

    @property
    def residual(self) -> float:
        """The largest ‖H u − λ u‖ / λ₁ of the leading pairs."""
        return float(self.residuals[: self.rank].max())

    def leading(self) -> tuple[Tensor, Tensor]:
        return self.values[: self.rank].clamp(min=0), self.vectors[:, : self.rank]


def _from_rank_zero(ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Rank 0's tensors, bitwise equal on all ranks."""
    share = ranks.sharing()
    return tensors if share is None else tuple(share.exchange(0, tensors))


def _product(
    plan: Plan, batches: Passes, likelihood: Likelihood, options: FitOptions, basis: Tensor
) -> tuple[Tensor, FitRecord]:
    """H V for V [P, R], in one pass."""
    record, limits = RecordSums(likelihood), ChunkLimits()
    running = NamedSums(basis.device, {"product": torch.zeros_like(basis)})
    given = "" if batches.checkpoint is None else digest([basis])
    for batch in batches.passes(options.passes, options.progress, "products", [record, running], given):
        batch, rows = counted_examples(batch, likelihood.counts)
        if len(rows):
            sums = _ProductSums(plan, likelihood, options, basis, running.values["product"], record, limits)
            add_in_parts(Examples(batch, rows, [0]), sums.add, limits, _too_large)
    limits.notify("the fit", "direction")
    return running.values["product"], record.record


@dataclass
class _ProductSums:
    """Adds batches to H V; ``examples.columns`` counts the finished directions."""

    plan: Plan
    likelihood: Likelihood
    options: FitOptions
    basis: Tensor
    total: Tensor
    record: RecordSums
    limits: ChunkLimits

    def add(self, examples: Examples) -> None:
        network, batch = self.plan.network, examples.batch
        with differentiable(network):
            outputs = network(batch.inputs)
            targets = self.likelihood.check(outputs, batch.targets, batch.index)
            if not examples.recorded:
                self.record.add(outputs, targets, batch.index)
                examples.recorded = True
            if self.options.curvature is CurvatureKind.GGN:
                root = self.likelihood.root(outputs.detach(), targets)  # [N, M, C, K]
            else:
                root = self.likelihood.gradient(outputs.detach(), targets).unsqueeze(-1)
            with _clear_errors():
                self._add_directions(examples, outputs, Rooted(root))

    def _add_directions(self, examples: Examples, outputs: Tensor, output: Rooted) -> None:
        network, vector = self.plan.network, Vector(self.plan.network, self.plan.blocks)
        params = [network.params[n] for n in vector.names]
        while (start := examples.columns[0]) < self.basis.shape[1]:
            step = self.limits.under_way = self.limits.columns or sizes().directions
            which = slice(start, min(start + step, self.basis.shape[1]))
            _, moved = push(network, examples.batch.inputs, vector.split(self.basis[:, which].mT), outputs)
            flat = self.likelihood.flatten(moved.detach().flatten(0, 1)).unflatten(0, moved.shape[:2])
            columns = self.likelihood.unflatten(output.times(flat), outputs)  # [R, *outputs]
            back = gradients(network, outputs, params, columns, False)
            self.total[:, which] += vector.join(back, len(columns), self.total).mT
            examples.columns[0] = which.stop


def _too_large(examples: Examples) -> str:
    return (
        f"a single direction for a single example does not fit into the memory of {examples.rows.device}. Select fewer "
        "weights with layers=…, or use structure='kron' or 'diag'."
    )


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    """Raise our own error for an operation that cannot be differentiated twice."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        raise UnsupportedLayer(
            f"structure='lowrank' differentiates the backward pass, which one operation does not support ({error}). "
            "Use structure='kron' or 'diag'."
        ) from error
