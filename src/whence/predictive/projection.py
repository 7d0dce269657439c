"""J Σ_b Jᵀ of a block without J: turned once into the eigenbasis, then weighed for every prior.

Index legend: K outputs (rows of J), N examples, T positions, E Kronecker pairs, O outputs, D inputs of a layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whence.curvature.accumulate import is_unshared
from whence.curvature.affine import Affine, times
from whence.curvature.blocks import Block
from whence.curvature.jacobian import Gradients, MatrixPart
from whence.linalg.spectral import DenseSpectral, DiagonalSpectral, KroneckerSpectral, LowRankSpectral, Spectral
from whence.posteriors.block import BlockGaussian


class Projection(ABC):
    """What one block's Jacobian rows are in the eigenbasis of its curvature."""

    @abstractmethod
    def weigh(self, w: Tensor, rest: Tensor) -> Tensor:
        """J Q diag(w) Qᵀ Jᵀ, [N, K, K]."""


@dataclass(frozen=True)
class Unshared(Projection):
    """One position for each example: V = g̃ diag(w ã²) g̃ᵀ."""

    a2: Tensor  # ã², [E, N, D]
    g: Tensor  # g̃, [E, N, K, O]
    block: Block | None = None  # where weights come flat (a diagonal structure)

    def weigh(self, w: Tensor, rest: Tensor) -> Tensor:
        if self.block is not None:
            assert self.block.form is not None
            w = self.block.form.pack(w)
        weights = self.a2 @ w.mT  # [E, N, O]
        return ((self.g * weights.unsqueeze(2)) @ self.g.mT).sum(0)


@dataclass(frozen=True)
class Rows(Projection):
    """Turned rows [N, K, P]; ``outside`` [N, K, K] is what lies off an incomplete basis, times its transpose."""

    turned: Tensor
    outside: Tensor | None = None

    def weigh(self, w: Tensor, rest: Tensor) -> Tensor:
        inside = (self.turned * w.reshape(-1)) @ self.turned.mT
        return inside if self.outside is None else inside + rest * self.outside


@dataclass(frozen=True)
class Table(Projection):
    """Rows of an embedding that were looked up, with a diagonal structure."""

    ids: Tensor  # [N, T]
    g: Tensor  # [N, K, T, F]

    def weigh(self, w: Tensor, rest: Tensor) -> Tensor:
        looked_up = w.reshape(-1, self.g.shape[-1])[self.ids]  # [N, T, F]
        return (self.g * looked_up.unsqueeze(1)).flatten(2) @ self.g.flatten(2).mT


def project(gaussian: BlockGaussian, blocks: Sequence[Block], grads: Gradients, keep: Tensor | None) -> Projection:
    """The projection of a gaussian over one block, or over several jointly."""
    spectral = gaussian.spectral
    if len(blocks) == 1 and keep is None:
        block = blocks[0]
        if isinstance(spectral, KroneckerSpectral) or (isinstance(spectral, DiagonalSpectral) and block.form):
            return _project_matrix(gaussian, block, grads)
        if isinstance(spectral, DiagonalSpectral) and block.source == "table":
            ids, g = grads.table(block)
            if gaussian.ratio is not None:
                scale = gaussian.ratio.rsqrt().reshape(-1, g.shape[-1])[ids]
                g = g * scale
            return Table(ids, g.movedim(0, 1))
    rows = torch.cat([grads.rows(b, slice(0, grads.recording.size)) for b in blocks], dim=-1).transpose(0, 1)
    rows = rows if keep is None else rows[..., keep]
    return _project_rows(spectral, gaussian.whiten(rows))


def _project_rows(spectral: Spectral, rows: Tensor) -> Projection:
    """Rows [N, K, P] of a dense, diagonal or low-rank structure."""
    if isinstance(spectral, DiagonalSpectral):
        return Rows(rows)
    if isinstance(spectral, LowRankSpectral):
        left = spectral.outside(rows)
        return Rows(rows @ spectral.vectors, left @ left.mT)
    assert isinstance(spectral, DenseSpectral)
    return Rows(rows @ spectral.vectors)


def _project_matrix(gaussian: BlockGaussian, block: Block, grads: Gradients) -> Projection:
    form = block.form
    assert form is not None
    spectral = gaussian.spectral
    turning = spectral if isinstance(spectral, KroneckerSpectral) else None
    parts = grads.parts(block)
    half = _ratio_columns(gaussian, block)
    if is_unshared(parts, form.pairs) and (half is None or half.dim() == 1):
        (part,) = parts
        a, g = part.a.dense().squeeze(2), part.g.squeeze(3).permute(1, 2, 0, 3)  # [E, N, D], [E, N, K, O]
        a = a if half is None else a * half
        if turning is not None:
            a, g = a @ turning.right, times(g, turning.left)
        return Unshared(a.square(), g, None if turning is not None else block)
    native = _shared_rows(parts, form.native, grads, turning, half)  # [N, K, E, O, D]
    return Rows(native.flatten(2) if turning is not None else form.unpack(native))


def _ratio_columns(gaussian: BlockGaussian, block: Block) -> Tensor | None:
    """ratio^{-1/2} in matrix form: [D] for Kronecker structures, [E, O, D] for diagonal ones."""
    if gaussian.ratio is None:
        return None
    assert block.form is not None
    if isinstance(gaussian.spectral, KroneckerSpectral):
        return gaussian.ratio[0, 0].rsqrt()
    return block.form.pack(gaussian.ratio).rsqrt()


def _shared_rows(
    parts: list[MatrixPart],
    native: tuple[int, int, int],
    grads: Gradients,
    turning: KroneckerSpectral | None,
    half: Tensor | None,
) -> Tensor:
    """Σ_calls Σ_t g aᵀ in the eigenbasis, [N, K, E, O, D].

    Inputs are turned before or rows after the sum over positions, whichever are fewer; outputs after it.
    """
    positions = sum(p.a.positions for p in parts)
    early = turning is not None and half is None and positions < grads.count * native[1]
    if early:
        assert turning is not None
        parts = [replace(p, a=Affine(p.a.turned(turning.right[p.pairs]))) for p in parts]
    every = slice(0, grads.recording.size)
    if len(parts) == 1 and parts[0].pairs == slice(0, native[0]):
        rows = parts[0].rows(every)
    else:
        like = parts[0].g if parts else grads.columns
        rows = like.new_zeros(grads.count, grads.recording.size, *native)
        for p in parts:
            rows[:, :, p.pairs] = rows[:, :, p.pairs] + p.rows(every)
    rows = rows.transpose(0, 1)  # [N, K, E, O, D]
    if half is not None:
        rows = rows * half
    if turning is None:
        return rows
    if not early:
        rows = times(rows.movedim(2, 0), turning.right).movedim(0, 2)
    return turning.left.mT @ rows
