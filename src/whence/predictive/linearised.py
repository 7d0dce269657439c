"""The linearised (GLM) predictive: f(x) ~ N(f*(x), J Σ Jᵀ), one block at a time.

Index legend: N examples, C outputs, B blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from whence.batches import Inputs, check_finite, is_inputs, size_of, take, tensors_in
from whence.curvature.columns import identity_columns
from whence.curvature.jacobian import Gradients, Recording, budget, widened
from whence.curvature.memory import Room, attempt, release
from whence.errors import NotDefined, TooLarge
from whence.predictive.direct import direct
from whence.predictive.predictions import JointPrediction
from whence.predictive.projection import project
from whence.replay import FEW_CALLS, WARM, Replayed

if TYPE_CHECKING:
    from whence.curvature.blocks import Block
    from whence.posteriors.block import BlockGaussian
    from whence.posteriors.laplace import Laplace

T = TypeVar("T")
Weighted = tuple["BlockGaussian", list["Block"], Tensor, Tensor]
JOINT_LIMIT = 4 * 2**30  # bytes
CPU_PIECE, CUDA_PIECE = 32 * 2**20, 72 * 2**20  # bytes of gradients that go through together: more is hardly faster
KEEP = 64 * 2**20  # bytes of variances that are kept from piece to piece
FEW = 64  # inputs that are more, where memory allows


@dataclass(frozen=True)
class Moments:
    """Mean [N, C] and covariance [N, C, C] of the outputs for one piece of the inputs; [N, C] if only its diagonal."""

    mean: Tensor
    cov: Tensor
    by_block: list[Tensor] | None = None


def pieces(posterior: Laplace, x: Any, diagonal: bool = False) -> Iterator[Inputs]:
    """The inputs in pieces whose gradients fit the memory budget."""
    plan, all_there = posterior.plan, is_inputs(x)
    step: int | None = None
    for piece in plan.network.pieces(x, 2**31):
        if step is None:
            plan.confirm(piece, thoroughly=True)
            step = piece_size(posterior, piece, diagonal, all_there)
        start, total = 0, size_of(piece)
        while start < total:
            stop = start + min(step, plan.together or step)  # less, once memory ran out
            yield take(piece, slice(start, stop))
            start = stop


def fitting(
    posterior: Laplace, compute: Callable[[Inputs], T], piece: Inputs, what: str = "the prediction"
) -> Iterator[T]:
    """``compute`` of a piece; of halves of it, as often as needed, where memory runs out."""
    waiting, room = [piece], Room()
    while waiting:
        now = waiting.pop()
        found = attempt(partial(compute, now))
        if found is not None:
            yield found
            continue
        release(posterior.network.device)
        size = size_of(now)
        if not room.shrink(size, 0):
            raise TooLarge(
                f"{what} of one input does not fit into the memory of {posterior.network.device}. Select fewer weights "
                "with layers=…, or use structure='diag' or method='sampled'."
            )
        posterior.plan.together = size // 2
        waiting += [take(now, slice(size // 2, size)), take(now, slice(0, size // 2))]
    room.say(what)


def piece_size(posterior: Laplace, inputs: Inputs, diagonal: bool = False, all_there: bool = True) -> int:
    """How many examples go through together; ``all_there`` if no other inputs follow."""
    plan = posterior.plan
    one = plan.record(take(inputs, slice(0, 1)), 1)
    outputs = one.outputs
    require_flat(outputs)
    classes = outputs.shape[1]
    activations = one.bytes_per_column() * (1 if direct(posterior, one) else classes)
    shared = [b.size for b in plan.blocks if _needs_rows(b, one)]
    rows = sum(b.size for b in plan.blocks) if posterior.curvature.joint else max(shared, default=0)
    squares = 3 * classes * (1 if diagonal else classes)
    each = activations + (3 * rows * classes + squares) * outputs.element_size()
    most = int(budget(outputs.device) // max(each, 1))
    cpu = outputs.device.type == "cpu"
    step = max((CPU_PIECE if cpu else CUDA_PIECE) // max(each, 1), FEW)
    if not cpu and all_there and size_of(inputs) < step * (WARM + FEW_CALLS):
        step = step * 3 // 2  # too few for a graph, so that every piece costs its launches
    return max(1, min(most, step))


def _needs_rows(block: Any, recording: Any) -> bool:
    """Whether a block's Jacobian is formed example by example."""
    if block.source != "matrix" or block.structure == "dense":
        return block.source != "table"
    return any(a.positions > 1 for _, a in recording.block_inputs(block))


def require_flat(outputs: Tensor) -> None:
    if outputs.dim() != 2:
        raise NotDefined(
            "the linearised predictive, and what is computed from it (where, novelty), is for outputs [N, C]; this "
            f"network gives [N, {', '.join(map(str, outputs.shape[1:]))}]. Predict with method='sampled'."
        )


def record(posterior: Laplace, inputs: Inputs) -> tuple[Tensor, Recording, bool]:
    """Outputs [N, C], what was recorded on the way, and whether it stays differentiable in the inputs."""
    wanted = any(t.requires_grad for t in tensors_in(inputs))
    recording = posterior.plan.record(inputs, size_of(inputs), keep_graph=wanted)
    require_flat(recording.outputs)
    check_finite(recording.outputs, "the outputs of the network", 0)
    outputs = recording.outputs if wanted else recording.outputs.detach()
    return widened(outputs), recording, wanted


def differentiate(posterior: Laplace, inputs: Inputs) -> tuple[Tensor, Gradients]:
    """Outputs [N, C], and gradients of each of them at every layer."""
    outputs, recording, wanted = record(posterior, inputs)
    return outputs, recording.differentiate(identity_columns(recording.outputs), create_graph=wanted)


class Weights:
    """The Gaussian of each block with the variances of its eigendirections; kept from pass to pass where small."""

    def __init__(self, posterior: Laplace) -> None:
        self.posterior = posterior
        self._kept: list[Weighted] | None = None

    def __iter__(self) -> Iterator[Weighted]:
        posterior = self.posterior
        each = ((g, blocks, *g.weights()) for g, blocks in posterior.gaussians())
        if posterior.curvature.options.offload or posterior.parameters * posterior.network.dtype.itemsize > KEEP:
            return each
        if self._kept is None:
            self._kept = list(each)
        return iter(self._kept)


def moments(
    posterior: Laplace,
    inputs: Inputs,
    by_block: bool = False,
    diagonal: bool = False,
    weights: Weights | None = None,
) -> Moments:
    """Mean and covariance of the outputs, or its ``diagonal``; with ``by_block`` also each block's part of it."""
    outputs, recording, wanted = record(posterior, inputs)
    found = direct(posterior, recording)
    if found is not None:
        total = found.variance() if diagonal else found.covariance()
        return Moments(outputs, total, [total] if by_block else None)
    grads = recording.differentiate(identity_columns(recording.outputs), create_graph=wanted)
    return _summed(weights or Weights(posterior), outputs, grads, by_block, diagonal)


def _summed(weights: Weights, outputs: Tensor, grads: Gradients, by_block: bool, diagonal: bool) -> Moments:
    parts = []
    total = None
    for gaussian, blocks, inner, outer in weights:
        projection = project(gaussian, blocks, grads, weights.posterior.curvature.keep)
        part = projection.diagonals(inner, outer)[0] if diagonal else projection.weigh(inner, outer)
        total = part if total is None else total + part
        if by_block:
            parts.append(part)
    assert total is not None
    return Moments(outputs, total, parts if by_block else None)


def moments_of(posterior: Laplace, x: Any, diagonal: bool = False) -> Iterator[Moments]:
    """Mean and covariance (or its diagonal) of the outputs, piece by piece."""
    plainly = partial(moments, posterior, diagonal=diagonal, weights=Weights(posterior))
    compute: Callable[[Inputs], Moments] | None = None
    for piece in pieces(posterior, x, diagonal):
        if compute is None:
            total = math.ceil(size_of(x) / size_of(piece)) if is_inputs(x) else None
            compute = _replayed(posterior, plainly, total) if _replays(posterior, piece) else plainly
        yield from fitting(posterior, compute, piece)


def _replays(posterior: Laplace, piece: Inputs) -> bool:
    """Whether graphs are tried at all."""
    options, plan = posterior.curvature.options, posterior.plan
    able = plan.network.device.type == "cuda" and not plan.example_blocks and not options.offload
    return able and options.cuda_graphs and not any(t.requires_grad for t in tensors_in(piece))


def _replayed(
    posterior: Laplace, plainly: Callable[[Inputs], Moments], total: int | None
) -> Callable[[Inputs], Moments]:
    def computed(inputs: Inputs) -> tuple[Tensor, Tensor]:
        found = plainly(inputs)
        return found.mean.detach(), found.cov.detach()

    by_graph = Replayed(computed, total, holds=posterior.network.tensors)

    def compute(inputs: Inputs) -> Moments:
        mean, cov = by_graph(inputs)
        return Moments(mean, cov)

    return compute


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
    rooted = gaussian.rooted(native)
    return rooted.reshape(rows.shape[0] * rows.shape[1], -1)
