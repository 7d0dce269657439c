"""The exact Hessian of the negative log likelihood, for small networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.curvature.accumulate import accumulation_dtype
from whence.curvature.blocks import Block
from whence.curvature.capture import gradients
from whence.curvature.checkpoint import Sums
from whence.curvature.jacobian import Plan, widened
from whence.curvature.passes import Passes
from whence.curvature.record import FitRecord, Recorder
from whence.curvature.sweep import relevant
from whence.errors import TooLarge, UnsupportedLayer
from whence.functional import differentiable
from whence.likelihoods import Likelihood
from whence.linalg.structures import Diagonal, Structure, Symmetric

if TYPE_CHECKING:
    from whence.curvature.options import Options

LIMIT = 20_000  # parameters; a Hessian takes one backward pass for each


def compute(
    plan: Plan, batches: Passes, likelihood: Likelihood, options: Options, keep: Tensor | None
) -> tuple[list[Structure], FitRecord]:
    """Σ ∇² NLL: jointly, by block, or its diagonal."""
    size = sum(b.size for b in plan.blocks)
    if size > LIMIT:
        raise TooLarge(
            f"curvature='hessian' takes a backward pass for each of {size:,} parameters (limit {LIMIT:,}). Use "
            "curvature='ggn', or select fewer weights."
        )
    groups = [plan.blocks] if options.structure == "full" or keep is not None else [[b] for b in plan.blocks]
    network, recorder = plan.network, Recorder(likelihood)
    like = next(iter(network.params.values()))
    dtype = accumulation_dtype(like.dtype)
    sums = [_empty(group, options.structure == "diag" and keep is None, dtype, like) for group in groups]
    kept = Sums(like.device, {str(i): total for i, total in enumerate(sums)})
    for batch in batches.passes(options.passes, options.progress, "hessian", [recorder, kept]):
        batch, numbers = relevant(batch, likelihood)
        if not len(numbers):
            continue
        with differentiable(network):
            outputs = widened(network(batch.inputs))
            targets = likelihood.check(outputs, batch.targets, batch.index)
            recorder.add(outputs, targets, batch.index)
            loss = likelihood.nll(outputs, targets).sum()
            for group, total in zip(groups, kept.values.values(), strict=True):
                for start, rows in _rows(plan, group, loss):
                    if total.dim() == 1:
                        total[start : start + len(rows)] += rows[:, start : start + len(rows)].diagonal()
                    else:
                        total[start : start + len(rows)] += rows
    totals = kept.values.values()
    return [_structure(total, group, keep) for total, group in zip(totals, groups, strict=True)], recorder.record


def _empty(group: list[Block], diagonal: bool, dtype: torch.dtype, like: Tensor) -> Tensor:
    size = sum(b.size for b in group)
    return torch.zeros((size,) if diagonal else (size, size), dtype=dtype, device=like.device)


def _rows(plan: Plan, group: list[Block], loss: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Pieces of the Hessian over the group's parameters: (first row, rows)."""
    params = [plan.network.params[p.name] for b in group for p in b.params]
    first = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True, materialize_grads=True)
    flat = torch.cat([g.reshape(-1) for g in first])
    step = 64
    for start in range(0, len(flat), step):
        eye = torch.zeros(min(step, len(flat) - start), len(flat), dtype=flat.dtype, device=flat.device)
        eye[torch.arange(len(eye)), start + torch.arange(len(eye))] = 1
        if not flat.requires_grad:
            yield start, eye * 0
            continue
        found = gradients(plan.network, flat, params, eye, False)
        pieces = [
            eye.new_zeros(len(eye), p.numel()) if g is None else g.reshape(len(eye), -1)
            for p, g in zip(params, found, strict=True)
        ]
        yield start, torch.cat(pieces, dim=1)


def _structure(total: Tensor, group: list[Block], keep: Tensor | None) -> Structure:
    if total.dim() == 1:
        return Diagonal(total)
    skew = float((total - total.mT).norm() / total.norm().clamp(min=1e-30))
    if skew > (1e-6 if total.dtype == torch.float64 else 1e-2):
        names = ", ".join(b.name for b in group[:3])
        raise UnsupportedLayer(
            f"the second derivatives of {names} are not symmetric (by {skew:.2g}): an operation there has a wrong "
            "double backward (torch's fused weight norm is one). Use curvature='ggn', which needs no second derivative."
        )
    total = (total + total.mT) / 2
    return Symmetric(total if keep is None else total[keep][:, keep])
