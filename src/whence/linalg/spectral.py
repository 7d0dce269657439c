"""Eigendecompositions of symmetric matrices relative to a diagonal D, and functions of them.

A ``Spectral`` is a matrix B with Bᵀ H B = diag(λ) and Bᵀ D B = I, so that (s H + δ D)⁻¹ = B diag(1 / (s λ + δ)) Bᵀ;
D is ``ratio``, the identity where that is None. Each method takes w = f(λ) in the shape of ``values`` and works with
B diag(w) Bᵀ; ``at_zero`` is f(0), used where H has a kernel that is not stored.
Vectors have the ``native`` shape: [P], or [E, O, D] for E Kronecker pairs side by side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from whence.engine.memory import remembered
from whence.linalg.dense import matmul
from whence.linalg.ratios import Ratio, Separable

DRAWS = 8  # draws that are multiplied by a basis at a time on the CPU


class Spectral(ABC):
    """An eigendecomposition; see the module's text."""

    values: Tensor
    ratio: Ratio | None

    def to(self, device: torch.device) -> Spectral:
        """A copy on another device; pinned if it is kept in main memory for a GPU."""
        moved = {f.name: _on_device(getattr(self, f.name), device) for f in fields(self)}  # type: ignore[arg-type]
        return replace(self, **moved)  # type: ignore[type-var]

    @property
    def lowest(self) -> float:
        """The smallest of ``values``."""
        return _lowest(self)

    @property
    @abstractmethod
    def native(self) -> tuple[int, ...]:
        """Shape of the vectors it acts on."""

    @property
    def size(self) -> int:
        return math.prod(self.native)

    @property
    def kernel(self) -> int:
        """Number of zero eigenvalues that are not in ``values``."""
        return 0

    def weights(self, w: Tensor, at_zero: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of rows in the basis B: w, and ``at_zero`` for B Bᵀ = D⁻¹, [] or in the shape of w."""
        return w, at_zero

    @abstractmethod
    def apply(self, w: Tensor, v: Tensor, at_zero: Tensor) -> Tensor:
        """B diag(w) Bᵀ v for v [..., *native]."""

    def apply_whitened(self, w: Tensor, v: Tensor, at_zero: Tensor) -> Tensor:
        """f(D^{-1/2} H D^{-1/2}) v = D^{1/2} B diag(w) Bᵀ D^{1/2} v."""
        if self.ratio is None:
            return self.apply(w, v, at_zero)
        half = self.ratio.dense().sqrt()
        return half * self.apply(w, half * v, at_zero)

    @abstractmethod
    def from_noise(self, w: Tensor, noise: Tensor, at_zero: Tensor) -> Tensor:
        """B diag(w) ``noise``: a vector with covariance B diag(w²) Bᵀ if the noise is white. Overwrites ``noise``."""

    @abstractmethod
    def rooted(self, w: Tensor, rows: Tensor, at_zero: Tensor) -> Tensor:
        """rows B diag(w) for rows [..., *native]: R with R Rᵀ = rows B diag(w²) Bᵀ rowsᵀ."""

    @abstractmethod
    def combined(self, z: Tensor) -> Tensor:
        """B z for coefficients z in the shape of ``values``: [*native]."""

    @abstractmethod
    def diagonal(self, w: Tensor, at_zero: Tensor) -> Tensor:
        """diag(B diag(w) Bᵀ), [*native]."""

    @abstractmethod
    def quadratic(self, w: Tensor, rows: Tensor, at_zero: Tensor) -> Tensor:
        """rows B diag(w) Bᵀ rowsᵀ for rows [..., K, *native] → [..., K, K]."""


@remembered
def _lowest(spectral: Spectral) -> float:
    return float(spectral.values.min())


@dataclass(frozen=True, eq=False)
class DiagonalSpectral(Spectral):
    """B = D^{-1/2}."""

    values: Tensor  # [P]
    ratio: Ratio | None = None
    inverse: Tensor | None = None  # D⁻¹, [P]

    @property
    def native(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def weights(self, w: Tensor, at_zero: Tensor) -> tuple[Tensor, Tensor]:
        return (w, at_zero) if self.inverse is None else (w * self.inverse, at_zero * self.inverse)

    def apply(self, w: Tensor, v: Tensor, at_zero: Tensor) -> Tensor:
        return v * self.weights(w, at_zero)[0]

    def from_noise(self, w: Tensor, noise: Tensor, at_zero: Tensor) -> Tensor:
        return noise * (w if self.inverse is None else w * self.inverse.sqrt())

    def rooted(self, w: Tensor, rows: Tensor, at_zero: Tensor) -> Tensor:
        return self.from_noise(w, rows, at_zero)

    def combined(self, z: Tensor) -> Tensor:
        return z if self.inverse is None else z * self.inverse.sqrt()

    def diagonal(self, w: Tensor, at_zero: Tensor) -> Tensor:
        return self.weights(w, at_zero)[0]

    def quadratic(self, w: Tensor, rows: Tensor, at_zero: Tensor) -> Tensor:
        return (rows * self.weights(w, at_zero)[0]) @ rows.mT


@dataclass(frozen=True, eq=False)
class DenseSpectral(Spectral):
    """B stored as [P, P]."""

    values: Tensor  # [P]
    vectors: Tensor  # [P, P]
    ratio: Ratio | None = None

    @property
    def native(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def apply(self, w: Tensor, v: Tensor, at_zero: Tensor) -> Tensor:
        return ((v @ self.vectors) * w) @ self.vectors.mT

    def from_noise(self, w: Tensor, noise: Tensor, at_zero: Tensor) -> Tensor:
        return (noise * w) @ self.vectors.mT

    def rooted(self, w: Tensor, rows: Tensor, at_zero: Tensor) -> Tensor:
        return (rows @ self.vectors) * w

    def combined(self, z: Tensor) -> Tensor:
        return self.vectors @ z

    def diagonal(self, w: Tensor, at_zero: Tensor) -> Tensor:
        return self.vectors.square() @ w

    def quadratic(self, w: Tensor, rows: Tensor, at_zero: Tensor) -> Tensor:
        rotated = rows @ self.vectors
        return (rotated * w) @ rotated.mT


@dataclass(frozen=True, eq=False)
class KroneckerSpectral(Spectral):
    """B = B_G ⊗ B_A, once for each of E pairs; λ is λ_G λ_Aᵀ, or EKFAC's own table.

    A factor that is too large for eigenvectors is diagonal: its B is stored as [E, n], or None for I.
    """

    values: Tensor  # [E, O, D]
    left: Tensor | None = None  # B_G, [E, O, O]
    right: Tensor | None = None  # B_A, [E, D, D]
    left_values: Tensor | None = None  # λ_G, [E, O]; None where λ is not a product
    right_values: Tensor | None = None  # λ_A, [E, D]
    ratio: Separable | None = None  # type: ignore[assignment]

    @property
    def native(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def rotate(self, v: Tensor) -> Tensor:
        """B_Gᵀ v B_A."""
        if self.left is not None:
            v = v * self.left.unsqueeze(-1) if self.left.dim() == 2 else self.left.mT @ v
        return times_basis(v, self.right)

    def back(self, v: Tensor) -> Tensor:
        """B_G v B_Aᵀ."""
        return times_transposed(basis_times(v, self.left), self.right)

    def apply(self, w: Tensor, v: Tensor, at_zero: Tensor) -> Tensor:
        return self.back(self.rotate(v) * w)

    def from_noise(self, w: Tensor, noise: Tensor, at_zero: Tensor) -> Tensor:
        noise *= w
        if self.left is None or self.right is None or self.left.dim() == 2 or self.right.dim() == 2:
            return self.back(noise)
        draws = noise.view(-1, *self.native)
        some_draws = draws.split(DRAWS if draws.device.type == "cpu" else len(draws))
        rotated = torch.empty_like(some_draws[0])
        for some in some_draws:  # allocating memory for all draws costs a CPU a tenth of the products
            torch.matmul(self.left, some, out=rotated[: len(some)])
            torch.matmul(rotated[: len(some)], self.right.mT, out=some)
        return noise

    def rooted(self, w: Tensor, rows: Tensor, at_zero: Tensor) -> Tensor:
        return self.rotate(rows) * w

    def combined(self, z: Tensor) -> Tensor:
        return self.back(z)

    def diagonal(self, w: Tensor, at_zero: Tensor) -> Tensor:
        left, right = (None if b is None else b.square() for b in (self.left, self.right))
        return times_transposed(basis_times(w, left), right)

    def quadratic(self, w: Tensor, rows: Tensor, at_zero: Tensor) -> Tensor:
        rotated = self.rotate(rows)
        return (rotated * w).flatten(-3) @ rotated.flatten(-3).mT


@dataclass(frozen=True, eq=False)
class LowRankSpectral(Spectral):
    """R leading eigenpairs of D^{-1/2} H D^{-1/2}; all other eigenvalues are zero."""

    values: Tensor  # [R]
    vectors: Tensor  # U, orthonormal, [P, R]
    ratio: Ratio | None = None
    root: Tensor | None = None  # D^{-1/2}, [P]

    @property
    def native(self) -> tuple[int, ...]:
        return (self.vectors.shape[0],)

    @property
    def kernel(self) -> int:
        return self.vectors.shape[0] - self.vectors.shape[1]

    def whiten(self, v: Tensor) -> Tensor:
        """D^{-1/2} v."""
        return v if self.root is None else v * self.root

    def outside(self, v: Tensor) -> Tensor:
        """The part of a whitened v that is orthogonal to U (projected twice, against rounding)."""
        for _ in range(2):
            v = v - (v @ self.vectors) @ self.vectors.mT
        return v

    def apply(self, w: Tensor, v: Tensor, at_zero: Tensor) -> Tensor:
        return self.whiten(self.rooted(w, v, at_zero))

    def from_noise(self, w: Tensor, noise: Tensor, at_zero: Tensor) -> Tensor:
        return self.whiten(self._inner(w, noise, at_zero))

    def rooted(self, w: Tensor, rows: Tensor, at_zero: Tensor) -> Tensor:
        return self._inner(w, self.whiten(rows), at_zero)

    def combined(self, z: Tensor) -> Tensor:
        return self.whiten(self.vectors @ z)

    def _inner(self, w: Tensor, v: Tensor, at_zero: Tensor) -> Tensor:
        """(U diag(w) Uᵀ + at_zero (I − U Uᵀ)) v."""
        return at_zero * self.outside(v) + ((v @ self.vectors) * w) @ self.vectors.mT

    def diagonal(self, w: Tensor, at_zero: Tensor) -> Tensor:
        squares = self.vectors.square()
        found = at_zero * (1 - squares.sum(1)).clamp(min=0) + squares @ w
        return self.whiten(self.whiten(found))

    def quadratic(self, w: Tensor, rows: Tensor, at_zero: Tensor) -> Tensor:
        rows = self.whiten(rows)
        rotated, left = rows @ self.vectors, self.outside(rows)
        return at_zero * (left @ left.mT) + (rotated * w) @ rotated.mT


def times_basis(v: Tensor, basis: Tensor | None) -> Tensor:
    """v B for v [..., E, m, n] and B [E, n, n], its diagonal [E, n], or None for I."""
    if basis is None:
        return v
    if basis.dim() == 2:
        return v * basis.unsqueeze(-2)
    if len(basis) > 1 or v.dim() < 3:
        return v @ basis
    return matmul(v.flatten(0, -2).unsqueeze(0), basis).reshape(*v.shape[:-1], -1)


def times_transposed(v: Tensor, basis: Tensor | None) -> Tensor:
    """v Bᵀ."""
    return times_basis(v, basis if basis is None or basis.dim() == 2 else basis.mT)


def basis_times(v: Tensor, basis: Tensor | None) -> Tensor:
    """B v for v [..., E, n, m]."""
    if basis is None:
        return v
    if basis.dim() == 2:
        return v * basis.unsqueeze(-1)
    return basis @ v if len(basis) > 1 or v.dim() < 3 else matmul(basis, v.flatten(0, -3)).reshape(v.shape)


def _on_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, Ratio):
        return value.to(device)
    if not isinstance(value, Tensor) or value.device == device:
        return value
    if value.is_cuda and device.type == "cpu":
        return torch.empty_like(value, device=device, pin_memory=True).copy_(value)
    return value.to(device, non_blocking=True)


def dense(spectral: Spectral, w: Tensor, at_zero: Tensor) -> Tensor:
    """B diag(w) Bᵀ as a matrix [P, P], in the row-major order of the native shape."""
    eye = torch.eye(spectral.size, device=w.device, dtype=w.dtype)
    rows = eye.reshape(spectral.size, *spectral.native)
    return spectral.apply(w, rows, at_zero).reshape(spectral.size, spectral.size)
