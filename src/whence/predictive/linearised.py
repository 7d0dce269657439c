"""The linearised (GLM) predictive: f(x) ~ N(f*(x), J Σ Jᵀ), one block at a time.

Where the outputs are those of the only Bayesian layer, J = I ⊗ aᵀ and no backward pass is needed
(:class:`LastLayer`): V = B_G diag(v) B_Gᵀ with v_o = Σ_d ã_d² / (λ_od + δ), C² work for a variance instead of C³.

Index legend: N examples, C outputs, B blocks, D inputs of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from whence.curvature.columns import identity_columns
from whence.curvature.jvp import tangents
from whence.engine.batches import Inputs, check_finite, cut, is_inputs, size_of, take
from whence.engine.follow import is_followed
from whence.engine.graphs import FEW_CALLS, WARM, Replayed
from whence.engine.memory import GIB, MIB, ChunkLimits, available, in_parts_that_fit, readable, sizes
from whence.engine.progress import over_inputs
from whence.errors import NotDefined, TooLarge
from whence.linalg import gram_kernel
from whence.linalg.dense import widened
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.spectral import DiagonalSpectral, KroneckerSpectral, times_basis
from whence.linalg.structures import BlockStructure
from whence.predictive.gaussian_weights import GaussianWeights
from whence.predictive.predictions import JointPrediction
from whence.predictive.project import project
from whence.recording.blocks import Block, GradientSource
from whence.recording.calls import Recording
from whence.recording.gradients import Gradients

T = TypeVar("T")
Weighted = tuple[BlockGaussian, Sequence[Block], Tensor, Tensor]
ColumnCount = Callable[[Recording, int], int]  # of one recorded input among so many
KEEP, CUDA_KEEP = 64 * MIB, 2 * GIB  # bytes of variances that are kept from piece to piece
FEW, CUDA_FEW = 64, 128  # inputs that are more, where memory allows
FREE, LARGEST = 3, 48 * GIB  # a piece takes this part of a GPU's free memory at most, and not more than so much


@dataclass(frozen=True)
class Moments:
    """Mean [N, C] and covariance [N, C, C] of the outputs for one piece of the inputs; [N, C] if only its diagonal."""

    mean: Tensor
    cov: Tensor
    by_block: list[Tensor] | None = None


def pieces(
    posterior: GaussianWeights,
    x: Any,
    diagonal: bool = False,
    columns: ColumnCount | None = None,
    label: str | None = "predict",
) -> Iterator[Inputs]:
    """The inputs in pieces whose gradients fit the memory budget; with a ``label`` and a bar if it takes long.

    ``columns`` says how many are sent backward for the outputs of one input; by default one for each output.
    """
    found = _pieces(posterior, x, diagonal, columns)
    return found if label is None else over_inputs(found, x, label)


def _pieces(posterior: GaussianWeights, x: Any, diagonal: bool, columns: ColumnCount | None) -> Iterator[Inputs]:
    plan, all_there = posterior.plan, is_inputs(x)
    step: int | None = None
    for piece in plan.network.pieces(x, 2**31):
        if step is None:
            plan.confirm(piece, thoroughly=True)
            inputs = size_of(piece) * (1 if all_there else len(x) if isinstance(x, Sized) else 1)
            count = None if columns is None else columns(plan.record(take(piece, slice(0, 1)), 1), inputs)
            step = piece_size(posterior, piece, diagonal, all_there, count)
        start, total = 0, size_of(piece)
        while start < total:
            stop = start + min(step, plan.network.runtime.inputs_together or step)  # fewer after memory ran out
            yield take(piece, slice(start, stop))
            start = stop


def fitting(
    posterior: GaussianWeights, compute: Callable[[Inputs], T], piece: Inputs, what: str = "the prediction"
) -> Iterator[T]:
    """``compute`` of a piece, which is halved whenever memory runs out."""
    limits, network = ChunkLimits(), posterior.network
    yield from in_parts_that_fit(
        piece,
        compute,
        limits=limits,
        size=size_of,
        split=lambda some, size: list(cut(some, size)),
        device=network.device,
        too_large=lambda _: (
            f"{what} of one input does not fit into the memory of {network.device}. Select fewer weights with "
            "layers=…, or use structure='diag' or method='sampled'."
        ),
    )
    network.runtime.inputs_together = limits.examples or network.runtime.inputs_together
    limits.notify(what)


def piece_size(
    posterior: GaussianWeights,
    inputs: Inputs,
    diagonal: bool = False,
    all_there: bool = True,
    columns: int | None = None,
) -> int:
    """How many examples go through together; ``all_there`` if no other inputs follow."""
    one = posterior.plan.record(take(inputs, slice(0, 1)), 1)
    each, device = bytes_of_one(posterior, one, diagonal, columns), one.outputs.device
    cpu = device.type == "cpu"
    _refuse_too_large(each, device, columns or one.outputs.shape[1])
    room = sizes().one_tensor(device)
    if not cpu:
        room = max(room, min((available(device) or 0) // FREE, LARGEST))
    most = int(room // max(each, 1))
    target, few = (sizes().prediction, FEW) if cpu else (sizes().cuda_prediction, CUDA_FEW)
    step = max(target // max(each, 1), few)
    if not cpu and all_there and size_of(inputs) < step * (WARM + FEW_CALLS):
        step = step * 3 // 2  # too few pieces for a graph, so that every piece costs its launches
    return max(1, min(most, step))


def bytes_of_one(posterior: GaussianWeights, one: Recording, diagonal: bool = False, columns: int | None = None) -> int:
    """Memory that one recorded input takes while its columns (by default one for each output) are projected."""
    plan, outputs = posterior.plan, one.outputs
    if columns is None:
        require_flat(outputs)
    classes = columns or outputs.shape[1]
    few = columns is None and direct(posterior, one) is not None
    activations = one.bytes_per_column() * (1 if few else classes)
    shared = [b.size for b in plan.blocks if _needs_rows(b, one)]
    rows = sum(b.size for b in plan.blocks) if posterior.joint else max(shared, default=0)
    squares = 3 * classes * (1 if diagonal else classes)
    copies = 5 if outputs.is_cuda and classes > gram_kernel.MOST else 3  # torch's products need some of the rows
    return activations + (copies * rows * classes + squares) * outputs.element_size()


def row_weights(posterior: GaussianWeights, one: Recording) -> int:
    """Number of weights whose Jacobian is formed example by example."""
    return sum(b.size for b in posterior.plan.blocks if posterior.joint or _needs_rows(b, one))


def fits(bytes_each: int, device: torch.device) -> bool:
    """Whether one input can be computed at all. A GPU says so when it is tried; a CPU's process is killed instead."""
    free = available(device) if device.type == "cpu" else None
    return free is None or bytes_each <= free


def _refuse_too_large(bytes_each: int, device: torch.device, columns: int) -> None:
    if not fits(bytes_each, device):
        raise TooLarge(
            f"differentiating {columns:,} outputs or columns of one input takes {readable(bytes_each)}, and "
            f"{readable(available(device) or 0)} are free. Let probes= choose a few random ones ('auto', or a number)."
        )


def _needs_rows(block: Block, recording: Recording) -> bool:
    """Whether a block's Jacobian is formed example by example."""
    if block.source is not GradientSource.MATRIX or block.structure is BlockStructure.DENSE:
        return block.source is not GradientSource.TABLE
    return any(a.positions > 1 for _, a in recording.inputs_of(block))


def require_flat(outputs: Tensor) -> None:
    if outputs.dim() != 2:
        raise NotDefined(
            "the linearised predictive, and what is computed from it (where, novelty), needs outputs [N, C]; this "
            f"network returns [N, {', '.join(map(str, outputs.shape[1:]))}]. Predict with method='sampled'."
        )


def record(posterior: GaussianWeights, inputs: Inputs) -> tuple[Tensor, Recording, bool]:
    """Outputs [N, C], the recording, and whether it stays differentiable in the inputs."""
    wanted = is_followed(inputs)
    recording = posterior.plan.record(inputs, size_of(inputs), keep_graph=wanted)
    require_flat(recording.outputs)
    check_finite(recording.outputs, "the outputs of the network", 0)
    outputs = recording.outputs if wanted else recording.outputs.detach()
    return widened(outputs), recording, wanted


def differentiate(posterior: GaussianWeights, inputs: Inputs) -> tuple[Tensor, Gradients]:
    """Outputs [N, C], and the gradients of each output at every layer."""
    outputs, recording, wanted = record(posterior, inputs)
    return outputs, recording.differentiate(identity_columns(recording.outputs), create_graph=wanted)


class Weights:
    """The Gaussian of each block with the variances of its eigendirections; cached between passes if small."""

    def __init__(self, posterior: GaussianWeights) -> None:
        self.posterior = posterior
        self._kept: list[Weighted] | None = None

    def __iter__(self) -> Iterator[Weighted]:
        posterior = self.posterior
        each = ((g, blocks, *g.weights()) for g, blocks in posterior.gaussians())
        most = KEEP if posterior.network.device.type == "cpu" else CUDA_KEEP
        if posterior.execution.offload or posterior.parameters * posterior.network.dtype.itemsize > most:
            return each
        if self._kept is None:
            self._kept = list(each)
        return iter(self._kept)


def moments(
    posterior: GaussianWeights,
    inputs: Inputs,
    by_block: bool = False,
    diagonal: bool = False,
    weights: Weights | None = None,
) -> Moments:
    """Mean and covariance of the outputs, or its ``diagonal``; with ``by_block`` also each block's contribution."""
    outputs, recording, wanted = record(posterior, inputs)
    found = direct(posterior, recording)
    if found is not None:
        total = found.variance() if diagonal else found.covariance()
        blockwise = Moments(outputs, total, [total] if by_block else None)
    else:
        grads = recording.differentiate(identity_columns(recording.outputs), create_graph=wanted)
        blockwise = _summed(weights or Weights(posterior), outputs, grads, by_block, diagonal)
    return _with_columns(posterior, inputs, blockwise, diagonal) if posterior.columns else blockwise


def _with_columns(posterior: GaussianWeights, inputs: Inputs, found: Moments, diagonal: bool) -> Moments:
    """Add J C Cᵀ Jᵀ."""
    moved = tangents(posterior.network, inputs, posterior.columns)[1]  # [R, N, C]
    part = moved.square().sum(0) if diagonal else torch.einsum("rnc,rnd->ncd", moved, moved)
    return replace(found, cov=found.cov + part)


def _summed(weights: Weights, outputs: Tensor, grads: Gradients, by_block: bool, diagonal: bool) -> Moments:
    parts = []
    total = None
    for gaussian, blocks, inner, outer in weights:
        projection = project(gaussian, blocks, grads, weights.posterior.keep)
        part = projection.diagonals(inner, outer)[0] if diagonal else projection.weighted(inner, outer)
        total = part if total is None else total + part
        if by_block:
            parts.append(part)
    assert total is not None
    return Moments(outputs, total, parts if by_block else None)


def moments_of(posterior: GaussianWeights, x: Any, diagonal: bool = False) -> Iterator[Moments]:
    """Mean and covariance (or its diagonal) of the outputs, piece by piece."""
    eagerly = partial(moments, posterior, diagonal=diagonal, weights=Weights(posterior))
    compute: Callable[[Inputs], Moments] | None = None
    for piece in pieces(posterior, x, diagonal):
        if compute is None:
            total = math.ceil(size_of(x) / size_of(piece)) if is_inputs(x) else None
            compute = _replayed(posterior, eagerly, total) if _replays(posterior, piece) else eagerly
        yield from fitting(posterior, compute, piece)


def _replays(posterior: GaussianWeights, piece: Inputs) -> bool:
    """Whether CUDA graphs should be tried."""
    plan = posterior.plan
    able = plan.network.device.type == "cuda" and not plan.example_blocks and not posterior.execution.offload
    return able and posterior.execution.cuda_graphs and not is_followed(piece)


def _replayed(
    posterior: GaussianWeights, eagerly: Callable[[Inputs], Moments], total: int | None
) -> Callable[[Inputs], Moments]:
    def computed(inputs: Inputs) -> tuple[Tensor, Tensor]:
        found = eagerly(inputs)
        return found.mean.detach(), found.cov.detach()

    by_graph = Replayed(computed, total, holds=posterior.network.tensors)

    def compute(inputs: Inputs) -> Moments:
        mean, cov = by_graph(inputs)
        return Moments(mean, cov)

    return compute


def joint(posterior: GaussianWeights, x: Any) -> JointPrediction:
    """One Gaussian over the outputs of all inputs, with their correlations."""
    means: list[Tensor] = []
    rows: list[list[Tensor]] = []
    for piece in pieces(posterior, x):
        outputs, grads = differentiate(posterior, piece)
        means.append(outputs)
        size = sum(len(m) for m in means) * outputs.shape[1]
        total = sum(b.size for b in posterior.plan.blocks)
        needed = (size * total + 2 * size**2) * outputs.element_size()
        if needed > sizes().joint:
            raise TooLarge(
                f"a joint prediction of these inputs needs more than {readable(needed)} (limit "
                f"{readable(sizes().joint)}): it keeps the Jacobian of all inputs. Predict fewer inputs together."
            )
        rows.append([_rooted_rows(g, b, grads, posterior.keep) for g, b in posterior.gaussians()])
        if posterior.columns:
            moved = tangents(posterior.network, piece, posterior.columns)[1]
            rows[-1].append(moved.permute(1, 2, 0).flatten(0, 1))  # J C, [N · C, R]
    mean = torch.cat(means)
    cov = mean.new_zeros(mean.numel(), mean.numel())
    for block_rows in zip(*rows, strict=True):
        stacked = torch.cat(block_rows)  # [N · C, P_b]
        cov = cov + stacked @ stacked.mT
    return JointPrediction(mean, cov)


def _rooted_rows(gaussian: BlockGaussian, blocks: Sequence[Block], grads: Gradients, keep: Tensor | None) -> Tensor:
    """J Σ^{1/2}, [N · C, P_b]."""
    every = slice(0, grads.recording.size)
    rows = torch.cat([grads.rows(b, every) for b in blocks], dim=-1).transpose(0, 1)  # [N, C, P]
    rows = rows if keep is None else rows[..., keep]
    native = blocks[0].to_native(rows) if len(blocks) == 1 and keep is None else rows
    rooted = gaussian.rooted(native)
    return rooted.reshape(rows.shape[0] * rows.shape[1], -1)


@dataclass(frozen=True)
class LastLayer:
    """V by its eigenvalues in the basis of the output factor."""

    values: Tensor  # v, [N, C]
    basis: Tensor | None  # B_G, [C, C]; None for the identity

    def covariance(self) -> Tensor:
        """[N, C, C]."""
        if self.basis is None:
            return torch.diag_embed(self.values)
        return (self.basis * self.values.unsqueeze(1)) @ self.basis.mT

    def variance(self) -> Tensor:
        """Its diagonal, [N, C]."""
        return self.values if self.basis is None else self.values @ self.basis.square().mT


def direct(posterior: GaussianWeights, recording: Recording) -> LastLayer | None:
    """V of a recorded batch; None where this does not apply."""
    if len(posterior.blocks) != 1 or posterior.joint or not recording.is_last_layer:
        return None
    ((gaussian, (block,)),) = posterior.gaussians()
    if block.form is None:
        return None
    ((_, a),) = recording.inputs_of(block)
    return _kronecker(gaussian, a.dense()[0, :, 0]) or _diagonal(gaussian, block.form.pack, a.dense()[0, :, 0])


def _kronecker(gaussian: BlockGaussian, a: Tensor) -> LastLayer | None:
    spectral = gaussian.spectral
    if not isinstance(spectral, KroneckerSpectral):
        return None
    rotated = times_basis(a, spectral.right)[0] if spectral.right is not None else a  # [N, D]
    values = rotated.square() @ (1 / gaussian.precision)[0].mT
    left = spectral.left
    if left is not None and left.dim() == 2:
        return LastLayer(values * left[0].square(), None)
    return LastLayer(values, None if left is None else left[0])


def _diagonal(gaussian: BlockGaussian, pack: Callable[[Tensor], Tensor], a: Tensor) -> LastLayer | None:
    if not isinstance(gaussian.spectral, DiagonalSpectral):
        return None
    return LastLayer(a.square() @ pack(gaussian.variance())[0].mT, None)
