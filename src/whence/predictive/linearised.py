"""The linearised (GLM) predictive: f(x) ~ N(f*(x), J Σ Jᵀ), one block at a time.

Index legend: N examples, C outputs, B blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.batches import Inputs, as_inputs, check_finite, cut, size_of, take, tensors_in
from whence.curvature.columns import identity_columns
from whence.curvature.jacobian import Gradients, budget, widened
from whence.errors import NotDefined, TooLarge
from whence.predictive.predictions import JointPrediction
from whence.predictive.projection import project

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

JOINT_LIMIT = 4 * 2**30  # bytes


@dataclass(frozen=True)
class Moments:
    """Mean [N, C] and covariance [N, C, C] of the outputs for one piece of the inputs."""

    mean: Tensor
    cov: Tensor
    by_block: list[Tensor] | None = None


def pieces(posterior: Laplace, x: Any) -> Iterator[Inputs]:
    """The inputs in pieces whose gradients fit the memory budget."""
    plan = posterior.plan
    step: int | None = None
    for piece in as_inputs(x, plan.network.device, plan.network.dtype, 2**31):
        if step is None:
            step = piece_size(posterior, piece)
        yield from cut(piece, step)


def piece_size(posterior: Laplace, inputs: Inputs) -> int:
    """How many examples go through together."""
    plan = posterior.plan
    one = plan.record(take(inputs, slice(0, 1)), 1)
    outputs = one.outputs
    require_flat(outputs)
    classes = outputs.shape[1]
    activations = one.bytes_per_column() * classes
    shared = [b.size for b in plan.blocks if _needs_rows(b, one)]
    rows = sum(b.size for b in plan.blocks) if posterior.curvature.joint else max(shared, default=0)
    each = activations + 3 * rows * classes * outputs.element_size() + 3 * classes**2 * outputs.element_size()
    return max(1, int(budget(outputs.device) // max(each, 1)))


def _needs_rows(block: Any, recording: Any) -> bool:
    """Whether a block's Jacobian is formed example by example."""
    if block.source != "matrix" or block.structure == "dense":
        return block.source != "table"
    return any(a.positions > 1 for _, a in recording.block_inputs(block))


def require_flat(outputs: Tensor) -> None:
    if outputs.dim() != 2:
        raise NotDefined(
            f"the linearised predictive is for outputs [N, C]; this network gives {list(outputs.shape)}. Use "
            "method='sampled'."
        )


def differentiate(posterior: Laplace, inputs: Inputs) -> tuple[Tensor, Gradients]:
    """Outputs [N, C], and gradients of each of them at every layer."""
    plan = posterior.plan
    wanted = any(t.requires_grad for t in tensors_in(inputs))
    recording = plan.record(inputs, size_of(inputs), keep_graph=wanted)
    require_flat(recording.outputs)
    check_finite(recording.outputs, "the outputs of the network", 0)
    grads = recording.differentiate(identity_columns(recording.outputs), create_graph=wanted)
    outputs = recording.outputs if wanted else recording.outputs.detach()
    return widened(outputs), grads


def moments(posterior: Laplace, inputs: Inputs, by_block: bool = False) -> Moments:
    """Mean and covariance of the outputs; with ``by_block`` also each block's part of it."""
    outputs, grads = differentiate(posterior, inputs)
    parts = []
    total = None
    for gaussian, blocks in posterior.gaussians():
        projection = project(gaussian, blocks, grads, posterior.curvature.keep)
        part = projection.weigh(1 / gaussian.precision, 1 / gaussian.rest)
        total = part if total is None else total + part
        if by_block:
            parts.append(part)
    assert total is not None
    return Moments(outputs, total, parts if by_block else None)


def joint(posterior: Laplace, x: Any) -> JointPrediction:
    """One Gaussian over the outputs of all inputs, with their correlations."""
    means: list[Tensor] = []
    rows: list[list[Tensor]] = []
    for piece in pieces(posterior, x):
        outputs, grads = differentiate(posterior, piece)
        means.append(outputs)
        size = sum(len(m) for m in means) * outputs.shape[1]
        total = sum(b.size for b in posterior.plan.blocks)
        needed = (size * total + 2 * size**2) * outputs.element_size()
        if needed > JOINT_LIMIT:
            raise TooLarge(
                f"a joint prediction of so many inputs needs more than {needed / 2**30:.1f} GiB (limit "
                f"{JOINT_LIMIT / 2**30:.0f} GiB): it keeps the Jacobian of all of them. Predict fewer together."
            )
        rows.append([_coloured_rows(g, b, grads, posterior.curvature.keep) for g, b in posterior.gaussians()])
    mean = torch.cat(means)
    cov = mean.new_zeros(mean.numel(), mean.numel())
    for block_rows in zip(*rows, strict=True):
        stacked = torch.cat(block_rows)  # [N · C, P_b]
        cov = cov + stacked @ stacked.mT
    return JointPrediction(mean, cov)


def _coloured_rows(gaussian: Any, blocks: list[Any], grads: Gradients, keep: Tensor | None) -> Tensor:
    """J Σ^{1/2}, [N · C, P_b]."""
    every = slice(0, grads.recording.size)
    rows = torch.cat([grads.rows(b, every) for b in blocks], dim=-1).transpose(0, 1)  # [N, C, P]
    rows = rows if keep is None else rows[..., keep]
    native = blocks[0].to_native(rows) if len(blocks) == 1 and keep is None else rows
    rooted = gaussian.spectral.apply(gaussian.precision.rsqrt(), gaussian.whiten(native), gaussian.rest.rsqrt())
    return rooted.reshape(rows.shape[0] * rows.shape[1], -1)
