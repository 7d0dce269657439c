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
from whence.curvature.units import Units
from whence.linalg.spectral import DenseSpectral, DiagonalSpectral, KroneckerSpectral, LowRankSpectral, Spectral
from whence.posteriors.block import BlockGaussian


class Projection(ABC):
    """What one block's Jacobian rows are in the eigenbasis of its curvature."""

    @abstractmethod
    def weigh(self, w: Tensor, rest: Tensor) -> Tensor:
        """J Q diag(w) Qᵀ Jᵀ, [N, K, K]."""

    @abstractmethod
    def diagonal(self, w: Tensor, rest: Tensor) -> Tensor:
        """Its diagonal alone, [N, K]."""

    @abstractmethod
    def units(self, w: Tensor, rest: Tensor, units: Units) -> Tensor:
        """Σₙ tr[J_u (Q diag(w) Qᵀ Jᵀ)_u] for each unit, [U]; they add up to Σₙ tr of the whole."""


@dataclass(frozen=True)
class Unshared(Projection):
    """One position for each example: V = g̃ diag(w ã²) g̃ᵀ."""

    a2: Tensor  # ã², [E, N, D]
    g: Tensor  # g̃, [E, N, K, O]
    block: Block | None = None  # where weights come flat (a diagonal structure)
    left: Tensor | None = None  # Q_G, [E, O, O]; None where nothing was turned

    def weigh(self, w: Tensor, rest: Tensor) -> Tensor:
        return ((self.g * self._weights(w)) @ self.g.mT).sum(0)

    def diagonal(self, w: Tensor, rest: Tensor) -> Tensor:
        return (self.g.square() @ self._weights(w).mT).squeeze(-1).sum(0)

    def units(self, w: Tensor, rest: Tensor, units: Units) -> Tensor:
        moved = self.g * self._weights(w)
        g = self.g
        if self.left is not None:
            g, moved = times(g, self.left.mT), times(moved, self.left.mT)
        return _by_row((g * moved).sum((1, 2)), units)

    def _weights(self, w: Tensor) -> Tensor:
        """[E, N, 1, O]."""
        if self.block is not None:
            assert self.block.form is not None
            w = self.block.form.pack(w)
        return (self.a2 @ w.mT).unsqueeze(2)


@dataclass(frozen=True)
class Rows(Projection):
    """Turned rows [N, K, P]; ``outside`` [N, K, K] is what lies off an incomplete basis, times its transpose."""

    turned: Tensor
    outside: Tensor | None = None
    basis: Spectral | None = None  # in whose eigenvectors the rows are; None where they were not turned

    def weigh(self, w: Tensor, rest: Tensor) -> Tensor:
        inside = (self.turned * w.reshape(-1)) @ self.turned.mT
        return inside if self.outside is None else inside + rest * self.outside

    def diagonal(self, w: Tensor, rest: Tensor) -> Tensor:
        inside = self.turned.square() @ w.reshape(-1)
        return inside if self.outside is None else inside + rest * self.outside.diagonal(dim1=-2, dim2=-1)

    def units(self, w: Tensor, rest: Tensor, units: Units) -> Tensor:
        rows, moved = self.turned, self.turned * w.reshape(-1)
        if isinstance(self.basis, KroneckerSpectral):
            left, native = self.basis.left, self.basis.native
            back = [
                left @ r.unflatten(-1, native) for r in (rows, moved)
            ]  # [N, K, E, O, D]; a turn of D changes no sum
            return _by_row((back[0] * back[1]).sum((0, 1, 4)), units)
        if self.basis is not None:
            assert isinstance(self.basis, DenseSpectral), "units of correlated blocks are had from the rows themselves"
            rows, moved = rows @ self.basis.vectors.mT, moved @ self.basis.vectors.mT
        return units.total((rows * moved).double().sum((0, 1)))


@dataclass(frozen=True)
class Table(Projection):
    """Rows of an embedding that were looked up, with a diagonal structure."""

    ids: Tensor  # [N, T]
    g: Tensor  # [N, K, T, F]

    def weigh(self, w: Tensor, rest: Tensor) -> Tensor:
        looked_up = w.reshape(-1, self.g.shape[-1])[self.ids]  # [N, T, F]
        return (self.g * looked_up.unsqueeze(1)).flatten(2) @ self.g.flatten(2).mT

    def diagonal(self, w: Tensor, rest: Tensor) -> Tensor:
        looked_up = w.reshape(-1, self.g.shape[-1])[self.ids]
        return (self.g.square() * looked_up.unsqueeze(1)).sum((2, 3))

    def units(self, w: Tensor, rest: Tensor, units: Units) -> Tensor:
        looked_up = w.reshape(-1, self.g.shape[-1])[self.ids]
        parts = (self.g.square() * looked_up.unsqueeze(1)).double().sum((1, 3))  # [N, T]
        return parts.new_zeros(units.count).index_add(0, self.ids.flatten(), parts.flatten())


def _by_row(values: Tensor, units: Units) -> Tensor:
    """Values of rows [E, O] by unit, [U]."""
    assert units.of_row is not None
    index = units.of_row.to(values.device)
    return torch.zeros(units.count, dtype=torch.float64, device=values.device).index_add(
        0, index, values.double().flatten()
    )


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
        return Rows(rows @ spectral.vectors, left @ left.mT, spectral)
    assert isinstance(spectral, DenseSpectral)
    return Rows(rows @ spectral.vectors, basis=spectral)


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
        if turning is not None:
            return Unshared(a.square(), g, None, turning.left)
        return Unshared(a.square(), g, block)
    native = _shared_rows(parts, form.native, grads, turning, half)  # [N, K, E, O, D]
    return Rows(native.flatten(2), basis=turning) if turning is not None else Rows(form.unpack(native))


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
