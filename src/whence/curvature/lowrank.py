"""The leading eigenpairs of the curvature, from products with it only (randomised subspace iteration).

Halko, Martinsson, Tropp (2011): Q spans H Ω; two more products turn it towards the leading eigenvectors, and
the last one gives the Rayleigh–Ritz values Qᵀ H Q.
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
from whence.curvature.checkpoint import Sums, digest
from whence.curvature.distributed import Ranks
from whence.curvature.jacobian import Plan
from whence.curvature.memory import Room, within
from whence.curvature.passes import Passes
from whence.curvature.products import Rooted, Vector, push
from whence.curvature.record import FitRecord, Recorder
from whence.curvature.sweep import Piece, relevant
from whence.errors import BadOption, UnsupportedLayer, is_out_of_memory
from whence.functional import differentiable
from whence.likelihoods import Likelihood
from whence.linalg.structures import LowRank, Structure

if TYPE_CHECKING:
    from whence.curvature.options import Options

OVERSAMPLE = 10
ITERATIONS = 3  # products with H, so passes over the data
CHUNK = 16  # directions that go through the network together


def compute(
    plan: Plan, batches: Passes, likelihood: Likelihood, options: Options, ranks: Ranks
) -> tuple[list[Structure], FitRecord]:
    """U diag(λ) Uᵀ ≈ H over all blocks jointly."""
    size = sum(b.size for b in plan.blocks)
    if options.rank < 1:
        raise BadOption(f"rank={options.rank} is not positive.")
    rank = min(options.rank, size)
    width = min(rank + OVERSAMPLE, size)
    like = next(iter(plan.network.params.values()))
    generator = torch.Generator().manual_seed(2011)
    basis = torch.randn(size, width, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(basis.to(like.device, accumulation_dtype(like.dtype)))[0]
    record = FitRecord()
    product = basis
    for step in range(ITERATIONS):
        if step:
            (basis,) = _same(ranks, torch.linalg.qr(product)[0])
        product, record = _product(plan, batches, likelihood, options, basis)
        ranks.meet("adding up products")
        product = ranks.summed(product)
        batches.same_data(record.loss, "lowrank")
    small = basis.mT @ product
    values, vectors = torch.linalg.eigh((small + small.mT).double() / 2)
    top = values.argsort(descending=True)[:rank]
    values = values[top].clamp(min=0).to(basis.dtype)
    values, vectors = _same(ranks, values, basis @ vectors[:, top].to(basis.dtype))
    return [LowRank(values, vectors)], record


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
