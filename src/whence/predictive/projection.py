"""J Σ_b Jᵀ of a block without forming J: rotate into the eigenbasis once, then weight for every prior.

Index legend: K outputs (rows of J), N examples, T positions, E Kronecker pairs, O outputs, D inputs of a layer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.errors import NotPositiveDefinite
from whence.linalg import gram_kernel
from whence.linalg.dense import long_product, matmul
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.gram_kernel import two_diagonals, weighted_gram
from whence.linalg.ratios import Separable
from whence.linalg.spectral import (
    DenseSpectral,
    KroneckerSpectral,
    Spectral,
    basis_times,
)
from whence.predictive.lattice_rows import FEW_OUTPUTS
from whence.predictive.separable import Priors, weighted_linear, weighted_rows
from whence.recording.blocks import Block
from whence.recording.gradients import MatrixCall
from whence.recording.layer_input import times
from whence.recording.units import Units

MANY = 6  # number of priors from which weighting them together pays off


class Projection(ABC):
    """One block's Jacobian rows in the eigenbasis B of its curvature.

    They are weighted by :meth:`BlockGaussian.weights`; for a diagonal structure, whose rows are not rotated,
    these include D⁻¹, and ``prior`` is then one value per weight.
    """

    @abstractmethod
    def weighted(self, w: Tensor, prior: Tensor) -> Tensor:
        """J B diag(w) Bᵀ Jᵀ, [N, K, K]."""

    def weighted_many(self, weights: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """:meth:`weighted` for several (w, prior); not differentiable."""
        with torch.no_grad():
            return [self.weighted(w, prior) for w, prior in weights]

    def weighted_priors(self, priors: Priors) -> Tensor:
        """J Σ Jᵀ under R Gaussians that differ only in their prior precision, [R, N, K, K]."""
        return torch.stack(self.weighted_many(weights_of(gaussian) for gaussian in priors.gaussians))

    @abstractmethod
    def diagonals(self, w: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Only the diagonal, and that of ``prior`` · J D⁻¹ Jᵀ, [N, K] each."""

    @abstractmethod
    def extended(self, others: Sequence[Any]) -> Projection:
        """Of the inputs of ``others`` too, which are of the same block."""

    @abstractmethod
    def centred(self) -> Projection:
        """The same of the outputs minus their mean."""

    @abstractmethod
    def units(self, w: Tensor, prior: Tensor, units: Units, each: bool) -> Tensor:
        """tr[J_u (B diag(w) Bᵀ Jᵀ)_u] of each input and unit, and of ``prior`` · J D⁻¹ Jᵀ, [1, 2, N, U].

        The units of a block add up to its trace. With ``each`` output by itself, [K, 2, N, U].
        """


@dataclass(frozen=True)
class Unshared(Projection):
    """One position per example: V = g̃ diag(w ã²) g̃ᵀ."""

    a2: Tensor  # ã², [E, N, D]
    g: Tensor  # g̃, [E, N, K, O]
    block: Block | None = None  # if weights are flat (a diagonal structure)
    left: Tensor | None = None  # B_G, [E, O, O] or [E, O]; None if not rotated
    unrotated: Tensor | None = None  # g before rotation
    rows: Tensor | None = None  # d, [E, O], of the prior's ratio d_o e_i; None for I
    spectrum: tuple[Tensor, Tensor] | None = None  # λ_G [E, O] and λ_A [E, D], where weights are functions of λ_G λ_A

    def weighted(self, w: Tensor, prior: Tensor) -> Tensor:
        return ((self.g * self._weights(w)) @ self.g.mT).sum(0)

    @torch.no_grad()
    def weighted_priors(self, priors: Priors) -> Tensor:
        if self.spectrum is None or self.g.dtype != torch.float32 or not _together(priors, self.g.shape[2]):
            return super().weighted_priors(priors)  # interpolation is less exact than float64
        each = enumerate(zip(self.a2, self.g, *self.spectrum, strict=True))
        found = [
            weighted_linear(a2, g, priors.lattice(i, gamma, alpha), priors.pairs) for i, (a2, g, gamma, alpha) in each
        ]
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)

    @torch.no_grad()
    def weighted_many(self, weights: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
        scratch = torch.empty_like(self.g)  # allocating new memory would cost as much as the product
        return [(torch.mul(self.g, self._weights(w), out=scratch) @ self.g.mT).sum(0) for w, _ in weights]

    def diagonals(self, w: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        squares = self.g.square()
        own = (squares @ self._weights(w).mT).squeeze(-1).sum(0)
        if prior.dim():
            return own, (squares @ self._weights(prior).mT).squeeze(-1).sum(0)
        return own, prior * (squares.sum(-1) * self.a2.sum(-1, keepdim=True)).sum(0)

    def extended(self, others: Sequence[Unshared]) -> Unshared:
        every = [self, *others]
        unrotated = None if self.unrotated is None else torch.cat([o.unrotated for o in every], 1)  # type: ignore[misc]
        return replace(
            self, a2=torch.cat([o.a2 for o in every], 1), g=torch.cat([o.g for o in every], 1), unrotated=unrotated
        )

    def centred(self) -> Projection:
        unrotated = None if self.unrotated is None else _minus_mean(self.unrotated, 2)
        return replace(self, g=_minus_mean(self.g, 2), unrotated=unrotated)

    def units(self, w: Tensor, prior: Tensor, units: Units, each: bool) -> Tensor:
        g, moved = self.g, self.g * self._weights(w)
        if self.left is not None:
            assert self.unrotated is not None
            g, moved = self.unrotated, times(moved, transposed(self.left))
        if prior.dim():
            alone = g.square() * self._weights(prior)  # [E, N, K, O]
        else:
            alone = prior * g.square() * self.a2.sum(-1)[:, :, None, None]
            alone = alone if self.rows is None else alone / self.rows[:, None, None]  # B_G B_Gᵀ = D_G⁻¹
        parts = (_by_output(v.permute(2, 1, 0, 3), each) for v in (g * moved, alone))
        return torch.stack([units.total_of_rows(part.double()) for part in parts], 1)

    def _weights(self, w: Tensor) -> Tensor:
        """[E, N, 1, O]."""
        if self.block is not None:
            assert self.block.form is not None
            w = self.block.form.pack(w)
        return (self.a2 @ w.mT).unsqueeze(2)


@dataclass(frozen=True)
class FewPositions:
    """The only call of a Kronecker block, where units are cheaper from its T positions than from rows [O, D]."""

    a: Tensor  # ã = B_Aᵀ a, [E, N, T, D + zeros]
    g: Tensor  # not rotated, [E, N, K, T, O]

    @classmethod
    def of(
        cls, parts: Sequence[MatrixCall], kronecker: KroneckerSpectral, right: Tensor | None, pairs: int
    ) -> FewPositions | None:
        """None if there are several calls, or many positions."""
        if len(parts) != 1 or parts[0].pairs != slice(0, pairs):
            return None
        (part,), (_, outputs, inputs) = parts, kronecker.native
        positions = part.a.positions
        if positions * (inputs + outputs + positions) >= 2 * outputs * inputs:  # multiplications of each, over K O
            return None
        a = part.a.dense() if right is None else part.a.in_basis(right)
        return cls(a, part.g.permute(1, 2, 0, 3, 4))

    def units(self, moved: Tensor, prior: Tensor, kronecker: KroneckerSpectral) -> list[Tensor]:
        """By output and row, [K, N, E, O], from w ∘ (B_Gᵀ J B_A) [N, K, E, O, D] and the variance of the prior.

        Σ_d J_od (Σ J)_od = Σ_t g_to [B_G (w ∘ …) ã_t]_o;  Σ_d J_od² / (d_o e_d) = Σ_tt' g_to g_t'o (ã_t · ã_t') / d_o
        """
        _, columns, pairs, outputs, inputs = moved.shape
        across = moved.permute(2, 0, 1, 3, 4).reshape(-1, columns * outputs, inputs)  # [E · N, K · O, D]
        turned = matmul(self.a.flatten(0, 1), across.mT)  # [E · N, T, K · O]
        turned = turned.unflatten(2, (columns, outputs)).unflatten(0, (pairs, -1))  # [E, N, T, K, O]
        turned = turned if kronecker.left is None else times(turned, transposed(kronecker.left))
        own = (self.g.transpose(2, 3) * turned).sum(2).permute(2, 1, 0, 3)
        gram = (self.a @ self.a.mT).unsqueeze(2)  # [E, N, 1, T, T]
        alone = prior * (self.g * (gram @ self.g)).sum(3).permute(2, 1, 0, 3)
        return [own, alone / kronecker.ratio.rows if isinstance(kronecker.ratio, Separable) else alone]


@dataclass(frozen=True)
class Rows(Projection):
    """Rotated rows [N, K, P]; ``outside`` [N, K, K] is the Gram matrix of the part outside an incomplete basis."""

    rotated: Tensor
    outside: Tensor | None = None
    basis: Spectral | None = None  # the basis of the rows; None if not rotated
    few: FewPositions | None = None
    uncentred: bool = False  # whether the mean over outputs is still to be subtracted; not of ``outside`` and ``few``
    zeros: int = 0  # columns of zeros at the end of a matrix [O, D + zeros] of a row, which products gain from

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the matrices of a row, [E, O, D + zeros]."""
        assert isinstance(self.basis, KroneckerSpectral)
        return *self.basis.native[:2], self.basis.native[2] + self.zeros

    @property
    def plain(self) -> Tensor:
        """The rows without zeros, [N, K, P]."""
        if not self.zeros:
            return self.rotated
        return self.rotated.unflatten(-1, self.shape)[..., : -self.zeros].flatten(2)

    def _with_zeros(self, w: Tensor) -> Tensor:
        """Weights in the order of the rows."""
        if not self.zeros:
            return w.reshape(-1)
        assert isinstance(self.basis, KroneckerSpectral)
        return F.pad(w.reshape(self.basis.native), (0, self.zeros)).flatten()

    def weighted(self, w: Tensor, prior: Tensor) -> Tensor:
        inside = weighted_gram(self.rotated, self._with_zeros(w))
        inside = _centred_on_both_sides(inside) if self.uncentred else inside
        return inside if self.outside is None else inside + prior * self.outside

    @torch.no_grad()
    def weighted_many(self, weights: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
        if gram_kernel.applies(self.rotated):
            return super().weighted_many(weights)
        scratch, found = torch.empty_like(self.rotated), []
        for w, prior in weights:
            inside = long_product(torch.mul(self.rotated, self._with_zeros(w), out=scratch), self.rotated)
            found.append(inside if self.outside is None else inside + prior * self.outside)
        return found

    @torch.no_grad()
    def weighted_priors(self, priors: Priors) -> Tensor:
        if not _together(priors, self.rotated.shape[1]) or self.uncentred:
            return super().weighted_priors(priors)
        inside = weighted_rows(self.plain, priors)
        if self.outside is None:
            return inside
        return inside + self.outside / priors.deltas.to(inside.dtype)[:, None, None, None]

    def diagonals(self, w: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        others = prior if prior.dim() else None
        own, alone = two_diagonals(self.rotated, self._with_zeros(w), others, self.uncentred)
        alone = alone if prior.dim() else prior * alone
        if self.outside is not None:
            beyond = prior * self.outside.diagonal(dim1=-2, dim2=-1)
            own, alone = own + beyond, alone + beyond
        return own, alone

    def extended(self, others: Sequence[Rows]) -> Rows:
        every = [self, *others]
        outside = None if self.outside is None else torch.cat([o.outside for o in every])  # type: ignore[misc]
        return replace(self, rotated=torch.cat([o.rotated for o in every]), outside=outside, few=None)

    def centred(self) -> Projection:
        outside = None if self.outside is None else _centred_on_both_sides(self.outside)
        few = None if self.few is None else replace(self.few, g=_minus_mean(self.few.g, 2))
        if gram_kernel.applies(self.rotated):  # its results are far smaller than the rows
            return replace(self, outside=outside, few=few, uncentred=True)
        return replace(self, rotated=_minus_mean(self.rotated, 1), outside=outside, few=few)

    def units(self, w: Tensor, prior: Tensor, units: Units, each: bool) -> Tensor:
        basis = self.basis
        if isinstance(basis, KroneckerSpectral) and self.few is not None:
            # Σ_k (C g)_k · (C J)_k = Σ_k (C g)_k · J_k for the projection C on outputs without their mean
            assert not (each and self.uncentred), "random columns are centred before they are sent backward"
            moved = (self.rotated * self._with_zeros(w)).unflatten(-1, self.shape)
            parts = [_by_output(part, each) for part in self.few.units(moved, prior, basis)]
            return torch.stack([units.total_of_rows(part.double()) for part in parts], 1)
        rows = _minus_mean(self.rotated, 1) if self.uncentred else self.rotated
        moved = rows * self._with_zeros(w)
        if isinstance(basis, KroneckerSpectral):
            rows, moved = (basis_times(r.unflatten(-1, self.shape), basis.left) for r in (rows, moved))
            parts = [_by_output((rows * v).sum(4).transpose(0, 1), each) for v in (moved, prior * rows)]  # [K, N, E, O]
            if isinstance(basis.ratio, Separable):
                parts = [part * basis.ratio.rows for part in parts]  # J = D_G B_G (rotated rows)
            return torch.stack([units.total_of_rows(part.double()) for part in parts], 1)
        others = (moved, prior * rows)
        if basis is not None:
            assert isinstance(basis, DenseSpectral), "units of correlated blocks are computed from the rows themselves"
            rows, *others = (r @ basis.vectors.mT for r in (rows, *others))  # type: ignore[assignment]
            rows = rows if basis.ratio is None else rows * basis.ratio.dense()  # J = D B (rotated rows)
        parts = [_by_output((rows * other).transpose(0, 1), each) for other in others]
        return torch.stack([units.total(part.double()) for part in parts], 1)


@dataclass(frozen=True)
class LookedUp(Projection):
    """Rows of an embedding that were looked up, with a diagonal structure."""

    ids: Tensor  # [N, T]
    g: Tensor  # [N, K, T, F]

    def weighted(self, w: Tensor, prior: Tensor) -> Tensor:
        return (self.g * self._looked_up(w)).flatten(2) @ self.g.flatten(2).mT

    def diagonals(self, w: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        own, alone = self._parts(w, prior)
        return own.sum((2, 3)), alone.sum((2, 3))

    def extended(self, others: Sequence[LookedUp]) -> LookedUp:
        every = [self, *others]
        return replace(self, ids=torch.cat([o.ids for o in every]), g=torch.cat([o.g for o in every]))

    def centred(self) -> Projection:
        return replace(self, g=_minus_mean(self.g, 1))

    def units(self, w: Tensor, prior: Tensor, units: Units, each: bool) -> Tensor:
        both = torch.stack(self._parts(w, prior), 1).double().sum(4)  # [N, 2, K, T]
        parts = _by_output(both.permute(2, 1, 0, 3), each)  # [K, 2, N, T]
        found = parts.new_zeros(*parts.shape[:3], units.count)
        return found.scatter_add(3, self.ids.expand_as(parts), parts)

    def _parts(self, w: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        squares = self.g.square()  # [N, K, T, F]
        return squares * self._looked_up(w), squares * self._looked_up(prior)

    def _looked_up(self, w: Tensor) -> Tensor:
        """[N, 1, T, F]; [] where w is one number."""
        return w.reshape(-1, self.g.shape[-1])[self.ids].unsqueeze(1) if w.dim() else w


def _minus_mean(values: Tensor, dim: int) -> Tensor:
    return values - values.mean(dim, keepdim=True)


def _centred_on_both_sides(gram: Tensor) -> Tensor:
    """The Gram matrix [N, K, K] of rows minus their mean."""
    return _minus_mean(_minus_mean(gram, 1), 2)


def _by_output(values: Tensor, each: bool) -> Tensor:
    """Values of every output, [K, …], or their sum, [1, …]."""
    return values if each else values.sum(0, keepdim=True)


def transposed(basis: Tensor) -> Tensor:
    return basis.mT if basis.dim() == 3 else basis


def _together(priors: Priors, outputs: int) -> bool:
    """Whether products of all pairs of outputs pay off."""
    return len(priors) >= MANY and priors.first.factored_size is None and outputs <= FEW_OUTPUTS


def weights_of(gaussian: BlockGaussian) -> tuple[Tensor, Tensor]:
    """The weights of projections; NaN where the precision is not positive definite (the prior is too small)."""
    try:
        return gaussian.weights()
    except NotPositiveDefinite:
        return torch.full_like(gaussian.spectral.values, math.nan), gaussian.null_precision
