"""The leading eigenpairs of the curvature, from products with it only (randomised subspace iteration).

Halko, Martinsson, Tropp (2011): Q spans H Ω; two more products turn it towards the leading eigenvectors, and
the last one gives the Rayleigh–Ritz values Qᵀ H Q.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.curvature.accumulate import accumulation_dtype
from whence.curvature.blocks import Block
from whence.curvature.capture import gradients
from whence.curvature.distributed import summed
from whence.curvature.jacobian import Plan
from whence.curvature.passes import Passes
from whence.curvature.record import FitRecord, Recorder
from whence.errors import BadOption, UnsupportedLayer
from whence.functional import Network, differentiable
from whence.likelihoods import Likelihood
from whence.linalg.structures import LowRank, Structure

if TYPE_CHECKING:
    from whence.curvature.options import Options

OVERSAMPLE = 10
ITERATIONS = 3  # products with H, so passes over the data
CHUNK = 16  # directions that go through the network together


def compute(
    plan: Plan, batches: Passes, likelihood: Likelihood, options: Options, group: Any
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
            basis = torch.linalg.qr(product)[0]
        try:
            product, record = _product(plan, batches, likelihood, options, basis)
        except (RuntimeError, NotImplementedError) as error:
            if "out of memory" in str(error):
                raise
            raise UnsupportedLayer(
                f"structure='lowrank' differentiates the backward pass, which an operation here does not allow "
                f"({error}). Use structure='kron' or 'diag'."
            ) from error
        product = summed(product, group)
        batches.same_data(record.loss, "lowrank")
    small = basis.mT @ product
    values, vectors = torch.linalg.eigh((small + small.mT).double() / 2)
    top = values.argsort(descending=True)[:rank]
    values = values[top].clamp(min=0).to(basis.dtype)
    return [LowRank(values, basis @ vectors[:, top].to(basis.dtype))], record


def _product(
    plan: Plan, batches: Passes, likelihood: Likelihood, options: Options, basis: Tensor
) -> tuple[Tensor, FitRecord]:
    """H V for V [P, R], in one pass."""
    network, recorder = plan.network, Recorder(likelihood)
    total = torch.zeros_like(basis)
    for batch in batches.passes(options.passes, options.progress, "products"):
        with differentiable(network):
            outputs = network(batch.inputs)
            targets = likelihood.check(outputs, batch.targets, batch.index)
            recorder.add(outputs, targets, batch.index)
            if options.curvature == "ggn":
                root = likelihood.root(outputs.detach(), targets)  # [N, M, C, K]
            else:
                root = likelihood.gradient(outputs.detach(), targets).unsqueeze(-1)
            for start in range(0, basis.shape[1], CHUNK):
                v = basis[:, start : start + CHUNK].to(outputs.dtype)
                moved = _forward_products(network, plan.blocks, outputs, v)  # [R, *outputs]
                flat = torch.stack([likelihood.flatten(m) for m in moved])  # [R, N, M, C]
                weighted = (root @ (root.mT @ flat.unsqueeze(-1))).squeeze(-1)
                columns = likelihood.unflatten(weighted, outputs)
                params = [network.params[p.name] for b in plan.blocks for p in b.params]
                back = gradients(network, outputs, params, columns, False)
                rows = [
                    columns.new_zeros(len(columns), p.numel()) if g is None else g.reshape(len(columns), -1)
                    for p, g in zip(params, back, strict=True)
                ]
                total[:, start : start + CHUNK] += torch.cat(rows, dim=1).mT.to(total.dtype)
    return total, recorder.record


def _forward_products(network: Network, blocks: list[Block], outputs: Tensor, v: Tensor) -> Tensor:
    """J V by differentiating the (linear) backward pass: [R, *outputs]."""
    params = [network.params[p.name] for b in blocks for p in b.params]
    dummy = torch.zeros_like(outputs, requires_grad=True)
    first = torch.autograd.grad(outputs, params, dummy, create_graph=True, allow_unused=True, materialize_grads=True)
    pieces = v.mT.split([p.numel() for p in params], dim=1)
    linear = torch.cat([g.reshape(-1) for g in first])
    if not linear.requires_grad:
        return outputs.new_zeros(v.shape[1], *outputs.shape)
    (found,) = gradients(network, linear, [dummy], torch.cat(pieces, dim=1), False)
    assert found is not None
    return found
