"""J Σ_b Jᵀ of a block without J: turned once into the eigenbasis, then weighed for every prior.

Index legend: K outputs (rows of J), N examples, T positions, E Kronecker pairs, O outputs, D inputs of a layer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whence.curvature.affine import Affine, times
from whence.curvature.blocks import Block
from whence.curvature.jacobian import Gradients, MatrixPart
from whence.curvature.squares import is_unshared
from whence.curvature.units import Units
from whence.errors import NotPositiveDefinite
from whence.linalg.ratios import Separable
from whence.linalg.spectral import (
    DenseSpectral,
    DiagonalSpectral,
    KroneckerSpectral,
    LowRankSpectral,
    Spectral,
    turn,
    turn_left,
)
from whence.posteriors.block import BlockGaussian
from whence.predictive.separable import Priors, weigh_linear, weigh_rows

MANY = 6  # priors from which on it pays to weigh them together
FEW_OUTPUTS = 32  # up to which the products of all pairs are formed


class Projection(ABC):
    """What one block's Jacobian rows are in the eigenbasis B of its curvature.

    They are weighed with what :meth:`BlockGaussian.weights` gives; for a diagonal structure, whose rows are not turned,
    that holds D⁻¹, and ``rest`` is then a number for each weight.
    """

    @abstractmethod
    def weigh(self, w: Tensor, rest: Tensor) -> Tensor:
        """J B diag(w) Bᵀ Jᵀ, [N, K, K]."""

    def weigh_many(self, weights: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """:meth:`weigh` for several (w, rest); nothing of it is differentiable."""
        with torch.no_grad():
            return [self.weigh(w, rest) for w, rest in weights]

    def weigh_priors(self, priors: Priors) -> Tensor:
        """J Σ Jᵀ under R Gaussians that differ in their prior precision only, [R, N, K, K]."""
        return torch.stack(self.weigh_many(weights_of(gaussian) for gaussian in priors.gaussians))

    @abstractmethod
    def diagonals(self, w: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """The diagonal alone, and that of ``rest`` · J D⁻¹ Jᵀ, [N, K] each."""

    @abstractmethod
    def units(self, w: Tensor, rest: Tensor, units: Units) -> Tensor:
        """Σₙ tr[J_u (B diag(w) Bᵀ Jᵀ)_u] for each unit, and the same of ``rest`` · J D⁻¹ Jᵀ, [2, U]; they add up."""


@dataclass(frozen=True)
class Unshared(Projection):
    """One position for each example: V = g̃ diag(w ã²) g̃ᵀ."""

    a2: Tensor  # ã², [E, N, D]
    g: Tensor  # g̃, [E, N, K, O]
    block: Block | None = None  # where weights come flat (a diagonal structure)
    left: Tensor | None = None  # B_G, [E, O, O] or [E, O]; None where nothing was turned
    plain: Tensor | None = None  # g before it was turned
    rows: Tensor | None = None  # d, [E, O], of the prior's ratio d_o e_i; None for I
    spectrum: tuple[Tensor, Tensor] | None = None  # λ_G [E, O] and λ_A [E, D], where weights are functions of λ_G λ_A

    def weigh(self, w: Tensor, rest: Tensor) -> Tensor:
        return ((self.g * self._weights(w)) @ self.g.mT).sum(0)

    @torch.no_grad()
    def weigh_priors(self, priors: Priors) -> Tensor:
        if self.spectrum is None or self.g.dtype != torch.float32 or not _together(priors, self.g.shape[2]):
            return super().weigh_priors(priors)  # in float64 interpolation would not be as exact as the numbers
        each = enumerate(zip(self.a2, self.g, *self.spectrum, strict=True))
        found = [
            weigh_linear(a2, g, priors.lattice(i, gamma, alpha), priors.pairs) for i, (a2, g, gamma, alpha) in each
        ]
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)

    @torch.no_grad()
    def weigh_many(self, weights: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
        scratch = torch.empty_like(self.g)  # memory fresh from the system would cost as much as the product
        return [(torch.mul(self.g, self._weights(w), out=scratch) @ self.g.mT).sum(0) for w, _ in weights]

    def diagonals(self, w: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        squares = self.g.square()
        own = (squares @ self._weights(w).mT).squeeze(-1).sum(0)
        if rest.dim():
            return own, (squares @ self._weights(rest).mT).squeeze(-1).sum(0)
        return own, rest * (squares.sum(-1) * self.a2.sum(-1, keepdim=True)).sum(0)

    def units(self, w: Tensor, rest: Tensor, units: Units) -> Tensor:
        g, moved = self.g, self.g * self._weights(w)
        if self.left is not None:
            assert self.plain is not None
            g, moved = self.plain, times(moved, _transposed(self.left))
        if rest.dim():
            alone = (g.square() * self._weights(rest)).sum((1, 2))
        else:
            alone = rest * (g.square().sum(2) * self.a2.sum(-1, keepdim=True)).sum(1)  # [E, O]
            alone = alone if self.rows is None else alone / self.rows  # B_G B_Gᵀ = D_G⁻¹
        return torch.stack([_by_row((g * moved).sum((1, 2)), units), _by_row(alone, units)])

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

    @torch.no_grad()
    def weigh_many(self, weights: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
        scratch, found = torch.empty_like(self.turned), []
        for w, rest in weights:
            inside = torch.mul(self.turned, w.reshape(-1), out=scratch) @ self.turned.mT
            found.append(inside if self.outside is None else inside + rest * self.outside)
        return found

    @torch.no_grad()
    def weigh_priors(self, priors: Priors) -> Tensor:
        if not _together(priors, self.turned.shape[1]):
            return super().weigh_priors(priors)
        inside = weigh_rows(self.turned, priors)
        if self.outside is None:
            return inside
        return inside + self.outside / priors.deltas.to(inside.dtype)[:, None, None, None]

    def diagonals(self, w: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        squares = self.turned.square()
        own = squares @ w.reshape(-1)
        alone = squares @ rest if rest.dim() else rest * squares.sum(-1)
        if self.outside is not None:
            beyond = rest * self.outside.diagonal(dim1=-2, dim2=-1)
            own, alone = own + beyond, alone + beyond
        return own, alone

    def units(self, w: Tensor, rest: Tensor, units: Units) -> Tensor:
        rows, moved, basis = self.turned, self.turned * w.reshape(-1), self.basis
        if isinstance(basis, KroneckerSpectral):
            rows, moved = (turn_left(r.unflatten(-1, basis.native), basis.left) for r in (rows, moved))
            parts = [(rows * other).sum((0, 1, 4)) for other in (moved, rest * rows)]  # turning D back changes no sum
            if isinstance(basis.ratio, Separable):
                parts = [part * basis.ratio.rows for part in parts]  # J = D_G B_G (turned rows)
            return torch.stack([_by_row(part, units) for part in parts])
        others = (moved, rest * rows)
        if basis is not None:
            assert isinstance(basis, DenseSpectral), "units of correlated blocks are had from the rows themselves"
            rows, *others = (r @ basis.vectors.mT for r in (rows, *others))  # type: ignore[assignment]
            rows = rows if basis.ratio is None else rows * basis.ratio.dense()  # J = D B (turned rows)
        return torch.stack([units.total((rows * other).double().sum((0, 1))) for other in others])


@dataclass(frozen=True)
class Table(Projection):
    """Rows of an embedding that were looked up, with a diagonal structure."""

    ids: Tensor  # [N, T]
    g: Tensor  # [N, K, T, F]

    def weigh(self, w: Tensor, rest: Tensor) -> Tensor:
        return (self.g * self._looked_up(w)).flatten(2) @ self.g.flatten(2).mT

    def diagonals(self, w: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        own, alone = self._parts(w, rest)
        return own.sum((2, 3)), alone.sum((2, 3))

    def units(self, w: Tensor, rest: Tensor, units: Units) -> Tensor:
        parts = torch.stack(self._parts(w, rest)).double().sum((2, 4)).flatten(1)  # [2, N · T]
        return parts.new_zeros(2, units.count).index_add(1, self.ids.flatten(), parts)

    def _parts(self, w: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        squares = self.g.square()  # [N, K, T, F]
        return squares * self._looked_up(w), squares * self._looked_up(rest)

    def _looked_up(self, w: Tensor) -> Tensor:
        """[N, 1, T, F]; [] where w is one number."""
        return w.reshape(-1, self.g.shape[-1])[self.ids].unsqueeze(1) if w.dim() else w


def _by_row(values: Tensor, units: Units) -> Tensor:
    """Values of rows [E, O] by unit, [U]."""
    assert units.of_row is not None
    index = units.of_row.to(values.device)
    return torch.zeros(units.count, dtype=torch.float64, device=values.device).index_add(
        0, index, values.double().flatten()
    )


def _transposed(basis: Tensor) -> Tensor:
    return basis.mT if basis.dim() == 3 else basis


def _together(priors: Priors, outputs: int) -> bool:
    """Whether products of all pairs of outputs pay."""
    return len(priors) >= MANY and priors.first.factored_size is None and outputs <= FEW_OUTPUTS


def weights_of(gaussian: BlockGaussian) -> tuple[Tensor, Tensor]:
    """What projections are weighed with; NaN where the precision is not positive definite (too small a prior)."""
    try:
        return gaussian.weights()
    except NotPositiveDefinite:
        return torch.full_like(gaussian.spectral.values, math.nan), gaussian.rest


def project(gaussian: BlockGaussian, blocks: Sequence[Block], grads: Gradients, keep: Tensor | None) -> Projection:
    """The projection of a gaussian over one block, or over several jointly."""
    spectral = gaussian.spectral
    if len(blocks) == 1 and keep is None:
        block = blocks[0]
        if isinstance(spectral, KroneckerSpectral) or (isinstance(spectral, DiagonalSpectral) and block.form):
            return _project_matrix(gaussian, block, grads)
        if isinstance(spectral, DiagonalSpectral) and block.source == "table":
            ids, g = grads.table(block)
            return Table(ids, g.movedim(0, 1))
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
    turning = spectral if isinstance(spectral, KroneckerSpectral) else None
    parts = grads.parts(block)
    if is_unshared(parts, form.pairs):
        (part,) = parts
        a, g = part.a.dense().squeeze(2), part.g.squeeze(3).permute(1, 2, 0, 3)  # [E, N, D], [E, N, K, O]
        if turning is not None:
            left, a = turning.left, turn(a, turning.right)
            gammas, alphas = turning.left_values, turning.right_values
            spectrum = None if gammas is None or alphas is None else (gammas, alphas)
            turned, plain = (g, None) if left is None else (times(g, left), g)
            rows = turning.ratio.rows if isinstance(turning.ratio, Separable) else None
            return Unshared(a.square(), turned, None, left, plain, rows, spectrum)
        return Unshared(a.square(), g, block)
    native = shared_rows(parts, form.native, grads, turning)  # [N, K, E, O, D]
    return Rows(native.flatten(2), basis=turning) if turning is not None else Rows(form.unpack(native))


def shared_rows(
    parts: list[MatrixPart],
    native: tuple[int, int, int],
    grads: Gradients,
    turning: KroneckerSpectral | None,
) -> Tensor:
    """Σ_calls Σ_t g aᵀ in the eigenbasis, [N, K, E, O, D].

    Inputs are turned before or rows after the sum over positions, whichever are fewer; outputs likewise.
    """
    positions = sum(p.a.positions for p in parts)
    left, right = (None, None) if turning is None else (turning.left, turning.right)
    early = right is not None and positions < grads.count * native[1]
    if early:
        assert right is not None
        parts = [replace(p, a=Affine(p.a.turned(right[p.pairs]))) for p in parts]
    if left is not None and positions < native[2]:
        parts, left = [replace(p, g=p.turned_outputs(left)) for p in parts], None
    every = slice(0, grads.recording.size)
    if len(parts) == 1 and parts[0].pairs == slice(0, native[0]):
        rows = parts[0].rows(every)
    else:
        like = parts[0].g if parts else grads.columns
        rows = like.new_zeros(grads.count, grads.recording.size, *native)
        for p in parts:
            rows[:, :, p.pairs] = rows[:, :, p.pairs] + p.rows(every)
    rows = rows.transpose(0, 1)  # [N, K, E, O, D]
    if turning is None:
        return rows
    if right is not None and not early:
        rows = times(rows.movedim(2, 0), right).movedim(0, 2)
    return rows if left is None else turn_left(rows, _transposed(left))
