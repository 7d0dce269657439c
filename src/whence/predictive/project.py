"""From the gradients of a batch to the projection of each block.

Index legend: K outputs (rows of J), N examples, T positions, E Kronecker pairs, O outputs, D inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from whence.curvature.diagonals import is_unshared
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.ratios import Separable
from whence.linalg.spectral import (
    DenseSpectral,
    DiagonalSpectral,
    KroneckerSpectral,
    LowRankSpectral,
    Spectral,
    basis_times,
    times_basis,
)
from whence.linalg.split import with_aligned_columns
from whence.predictive.projection import FewPositions, LookedUp, Projection, Rows, Unshared, transposed
from whence.recording.blocks import Block, GradientSource
from whence.recording.gradients import Gradients, MatrixCall
from whence.recording.layer_input import LayerInput, times


def project(gaussian: BlockGaussian, blocks: Sequence[Block], grads: Gradients, keep: Tensor | None) -> Projection:
    """The projection of a Gaussian over one block, or over several jointly."""
    spectral = gaussian.spectral
    if len(blocks) == 1 and keep is None:
        block = blocks[0]
        if isinstance(spectral, KroneckerSpectral) or (isinstance(spectral, DiagonalSpectral) and block.form):
            return _project_matrix(gaussian, block, grads)
        if isinstance(spectral, DiagonalSpectral) and block.source is GradientSource.TABLE:
            ids, g = grads.table(block)
            return LookedUp(ids, g.movedim(0, 1))
    rows = torch.cat([grads.rows(b, slice(0, grads.recording.size)) for b in blocks], dim=-1).transpose(0, 1)
    rows = rows if keep is None else rows[..., keep]
    return _project_rows(spectral, rows)


def _project_rows(spectral: Spectral, rows: Tensor) -> Projection:
    """Rows [N, K, P] of a dense, diagonal or low-rank structure."""
    if isinstance(spectral, DiagonalSpectral):
        return Rows(rows)
    if isinstance(spectral, LowRankSpectral):
        rows = spectral.whiten(rows)
        left = spectral.outside(rows)
        return Rows(rows @ spectral.vectors, left @ left.mT, spectral)
    assert isinstance(spectral, DenseSpectral)
    return Rows(rows @ spectral.vectors, basis=spectral)


def _project_matrix(gaussian: BlockGaussian, block: Block, grads: Gradients) -> Projection:
    form = block.form
    assert form is not None
    spectral = gaussian.spectral
    kronecker = spectral if isinstance(spectral, KroneckerSpectral) else None
    parts = grads.matrix_calls(block)
    if is_unshared(parts, form.pairs):
        (part,) = parts
        a, g = part.a.dense().squeeze(2), part.g.squeeze(3).permute(1, 2, 0, 3)  # [E, N, D], [E, N, K, O]
        if kronecker is not None:
            left, a = kronecker.left, times_basis(a, kronecker.right)
            gammas, alphas = kronecker.left_values, kronecker.right_values
            spectrum = None if gammas is None or alphas is None else (gammas, alphas)
            rotated, unrotated = (g, None) if left is None else (times(g, left), g)
            rows = kronecker.ratio.rows if isinstance(kronecker.ratio, Separable) else None
            return Unshared(a.square(), rotated, None, left, unrotated, rows, spectrum)
        return Unshared(a.square(), g, block)
    if kronecker is None:
        return Rows(form.unpack(shared_rows(parts, form.native, grads, None)))
    right = None if kronecker.right is None else aligned_columns(kronecker.right)
    few = FewPositions.of(parts, kronecker, right, form.pairs)
    if few is not None:  # its inputs are rotated already
        parts = [replace(parts[0], a=LayerInput(few.a))]
    native = shared_rows(parts, form.native, grads, kronecker.left, None if few else right)  # [N, K, E, O, D + zeros]
    return Rows(native.flatten(2), basis=kronecker, few=few, zeros=native.shape[-1] - kronecker.native[2])


def aligned_columns(basis: Tensor) -> Tensor:
    """B_A [E, D, D] with zero columns where a GPU gains from them, or its diagonal."""
    return basis if basis.dim() == 2 else with_aligned_columns(basis)


def shared_rows(
    parts: list[MatrixCall],
    native: tuple[int, int, int],
    grads: Gradients,
    left: Tensor | None,
    right: Tensor | None = None,
) -> Tensor:
    """Σ_calls Σ_t g aᵀ in the bases of both sides, [N, K, E, O, D], where these are given.

    Rotate the inputs before the sum over positions or the rows after it, whichever are fewer; outputs likewise.
    """
    positions = sum(p.a.positions for p in parts)
    early = right is not None and positions < grads.count * native[1]
    if early:
        assert right is not None
        parts = [replace(p, a=LayerInput(p.a.in_basis(right[p.pairs]))) for p in parts]
    if left is not None and positions < native[2]:
        parts, left = [replace(p, g=p.outputs_in_basis(left)) for p in parts], None
    every = slice(0, grads.recording.size)
    if len(parts) == 1 and parts[0].pairs == slice(0, native[0]):
        rows = parts[0].rows(every)
    else:
        like = parts[0].g if parts else grads.columns
        width = parts[0].a.x.shape[-1] if early and parts else native[2]
        rows = like.new_zeros(grads.count, grads.recording.size, *native[:2], width)
        for p in parts:
            rows[:, :, p.pairs] = rows[:, :, p.pairs] + p.rows(every)
    rows = rows.transpose(0, 1)  # [N, K, E, O, D]
    if right is not None and not early:
        rows = times(rows.movedim(2, 0), right).movedim(0, 2)
    return rows if left is None else basis_times(rows, transposed(left))
