"""The leading eigenpairs of the curvature, from products with it only (randomised subspace iteration).

Halko, Martinsson, Tropp (2011): Q spans H Ω; two more products turn it towards the leading eigenvectors, and
the last one gives the Rayleigh–Ritz values Qᵀ H Q.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.curvature.accumulate import accumulation_dtype
from whence.curvature.capture import gradients
from whence.curvature.checkpoint import Sums, digest
from whence.curvature.distributed import Ranks
from whence.curvature.jacobian import Plan
from whence.curvature.passes import Passes
from whence.curvature.products import Rooted, Vector, push
from whence.curvature.record import FitRecord, Recorder
from whence.curvature.sweep import relevant
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
    network, recorder, vector = plan.network, Recorder(likelihood), Vector(plan.network, plan.blocks)
    kept = Sums(basis.device, {"product": torch.zeros_like(basis)})
    given = "" if batches.checkpoint is None else digest([basis])
    for batch in batches.passes(options.passes, options.progress, "products", [recorder, kept], given):
        total = kept.values["product"]
        batch, rows = relevant(batch, likelihood)
        if not len(rows):
            continue
        with differentiable(network):
            outputs = network(batch.inputs)
            targets = likelihood.check(outputs, batch.targets, batch.index)
            recorder.add(outputs, targets, batch.index)
            if options.curvature == "ggn":
                root = likelihood.root(outputs.detach(), targets)  # [N, M, C, K]
            else:
                root = likelihood.gradient(outputs.detach(), targets).unsqueeze(-1)
            output = Rooted(root)
            with _explained():
                for start in range(0, basis.shape[1], CHUNK):
                    which = slice(start, start + CHUNK)
                    _, moved = push(network, batch.inputs, vector.split(basis[:, which].mT), outputs)  # [R, *outputs]
                    flat = likelihood.flatten(moved.detach().flatten(0, 1)).unflatten(0, moved.shape[:2])
                    columns = likelihood.unflatten(output.times(flat), outputs)
                    back = gradients(network, outputs, [network.params[n] for n in vector.names], columns, False)
                    total[:, which] += vector.join(back, len(columns), total).mT
    return kept.values["product"], recorder.record


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
