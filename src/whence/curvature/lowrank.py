"""The leading eigenpairs of the curvature, from products with it only.

A block Krylov space with restarts (Musco, Musco 2015; Stewart 2002): every pass over the data multiplies H by a block
of directions, the residuals of the Ritz pairs so far; it ends when the leading pairs have small residuals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.curvature.accumulate import accumulation_dtype
from whence.curvature.capture import gradients
from whence.curvature.checkpoint import Sums
from whence.curvature.distributed import Ranks
from whence.curvature.memory import Room, within
from whence.curvature.passes import Passes
from whence.curvature.plan import Plan
from whence.curvature.products import Rooted, Vector, push
from whence.curvature.record import FitRecord, Recorder
from whence.curvature.sweep import Piece, relevant
from whence.engine.files import digest
from whence.errors import UnsupportedLayer, is_out_of_memory, notice
from whence.functional import differentiable
from whence.likelihoods import Likelihood
from whence.linalg.ratios import Ratio
from whence.linalg.structures import LowRank, Structure

if TYPE_CHECKING:
    from whence.curvature.options import Options

OVERSAMPLE = 10
PASSES = 40  # over the data, at most
BLOCKS = 6  # of directions that are kept before the space starts again from the leading ones
WHOLE = 4096  # weights up to which it never does
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}  # of ‖H u − λ u‖ / λ₁
CHUNK = 16  # directions that go through the network together


def compute(
    plan: Plan,
    batches: Passes,
    likelihood: Likelihood,
    options: Options,
    ranks: Ranks,
    ratio: Ratio | None,
) -> tuple[list[Structure], FitRecord]:
    """U diag(λ) Uᵀ ≈ D^{-1/2} H D^{-1/2} over all blocks jointly; ``ratio`` is D, None for I."""
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
    for _ in range(PASSES):
        (block,) = _same(ranks, space.block)
        product, record = _product(plan, batches, likelihood, options, block if root is None else root * block)
        ranks.meet("adding up products")
        product = ranks.summed(product)
        batches.same_data(record.loss, "lowrank")
        space.add(block, product if root is None else root * product)
        if space.done:
            break
    if not space.done:
        _say_how_far(space, rank)
    values, vectors = _same(ranks, *space.leading())
    return [LowRank(values, vectors, ratio=ratio)], record


def _say_how_far(space: Krylov, rank: int) -> None:
    notice(
        f"of the leading {rank} eigenpairs {space.converged} have converged after {PASSES} passes over the data; the "
        f"residual of the worst is {space.residual:.2g} of the largest eigenvalue. The spectrum is flat there: a rank "
        "at which it falls, or structure='kron', describes the curvature better."
    )


class Krylov:
    """A growing space of directions V with their products H V, and the eigenpairs of H as seen in it (Ritz pairs)."""

    def __init__(self, start: Tensor, rank: int, size: int) -> None:
        self.block = start  # directions whose products are wanted next, orthonormal and orthogonal to the others
        self.rank, self.most = rank, size if size <= WHOLE else BLOCKS * start.shape[1]
        self.tolerance = TOLERANCE[start.dtype]
        self.vectors, self.products = start[:, :0], start[:, :0]
        self.values = start.new_zeros(0)
        self.residuals = start.new_zeros(0)
        self.done = False

    def add(self, block: Tensor, product: Tensor) -> None:
        """Take in a block and its products; turn to Ritz pairs, and choose the next block."""
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
        if self.block.shape[1] and self.vectors.shape[1] > room:  # start again from the leading ones
            kept = max(room, self.rank)
            self.vectors, self.products = self.vectors[:, :kept], self.products[:, :kept]
            self.values, self.residuals = self.values[:kept], self.residuals[:kept]
        self.done = not self.block.shape[1] or float(self.residuals[: self.rank].max()) <= self.tolerance

    def _next(self, rest: Tensor, width: int) -> Tensor:
        """An orthonormal basis of the residuals, the part inside the space taken out; empty where none is left."""
        left, singular, _ = torch.linalg.svd(rest[:, : 2 * width], full_matrices=False)
        least = 10 * torch.finfo(rest.dtype).eps * self.values[0].clamp(min=0)
        found = left[:, singular > least][:, : min(width, len(rest) - self.vectors.shape[1])]
        for _ in range(2):
            found = found - self.vectors @ (self.vectors.mT @ found)
            found = torch.linalg.qr(found)[0] if found.shape[1] else found
        return found

    @property
    def converged(self) -> int:
        """How many of the leading pairs have."""
        return int((self.residuals[: self.rank] <= self.tolerance).sum())

    @property
    def residual(self) -> float:
        """The largest ‖H u − λ u‖ / λ₁ of the leading pairs."""
        return float(self.residuals[: self.rank].max())

    def leading(self) -> tuple[Tensor, Tensor]:
        return self.values[: self.rank].clamp(min=0), self.vectors[:, : self.rank]


def _same(ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Rank 0's on all ranks, bit for bit."""
    share = ranks.share()
    return tensors if share is None else tuple(share.exchange(0, tensors))


def _product(
    plan: Plan, batches: Passes, likelihood: Likelihood, options: Options, basis: Tensor
) -> tuple[Tensor, FitRecord]:
    """H V for V [P, R], in one pass."""
    recorder, room = Recorder(likelihood), Room()
    kept = Sums(basis.device, {"product": torch.zeros_like(basis)})
    given = "" if batches.checkpoint is None else digest([basis])
    for batch in batches.passes(options.passes, options.progress, "products", [recorder, kept], given):
        batch, rows = relevant(batch, likelihood)
        if len(rows):
            sums = _Sums(plan, likelihood, options, basis, kept.values["product"], recorder, room)
            within(room, Piece(batch, rows, [0]), sums.add, _too_large)
    room.say("the fit", "direction")
    return kept.values["product"], recorder.record


@dataclass
class _Sums:
    """What a batch adds to H V; a piece's column counts the directions that it has."""

    plan: Plan
    likelihood: Likelihood
    options: Options
    basis: Tensor
    total: Tensor
    recorder: Recorder
    room: Room

    def add(self, piece: Piece) -> None:
        network, batch, piece.trying = self.plan.network, piece.batch, 0
        with differentiable(network):
            outputs = network(batch.inputs)
            targets = self.likelihood.check(outputs, batch.targets, batch.index)
            if not piece.recorded:
                self.recorder.add(outputs, targets, batch.index)
                piece.recorded = True
            if self.options.curvature == "ggn":
                root = self.likelihood.root(outputs.detach(), targets)  # [N, M, C, K]
            else:
                root = self.likelihood.gradient(outputs.detach(), targets).unsqueeze(-1)
            with _explained():
                self._add_directions(piece, outputs, Rooted(root))

    def _add_directions(self, piece: Piece, outputs: Tensor, output: Rooted) -> None:
        network, vector = self.plan.network, Vector(self.plan.network, self.plan.blocks)
        params = [network.params[n] for n in vector.names]
        while (start := piece.columns[0]) < self.basis.shape[1]:
            piece.trying = self.room.columns or CHUNK
            which = slice(start, min(start + piece.trying, self.basis.shape[1]))
            _, moved = push(network, piece.batch.inputs, vector.split(self.basis[:, which].mT), outputs)
            flat = self.likelihood.flatten(moved.detach().flatten(0, 1)).unflatten(0, moved.shape[:2])
            columns = self.likelihood.unflatten(output.times(flat), outputs)  # [R, *outputs]
            back = gradients(network, outputs, params, columns, False)
            self.total[:, which] += vector.join(back, len(columns), self.total).mT
            piece.columns[0] = which.stop


def _too_large(piece: Piece) -> str:
    return (
        f"one direction through one example does not fit into the memory of {piece.rows.device}. Select fewer weights "
        "with layers=…, or use structure='kron' or 'diag'."
    )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """An operation that cannot be differentiated so is called by its name."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        raise UnsupportedLayer(
            f"structure='lowrank' differentiates the backward pass, which an operation here does not allow ({error}). "
            "Use structure='kron' or 'diag'."
        ) from error
