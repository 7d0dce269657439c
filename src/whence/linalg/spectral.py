"""Symmetric matrices by their eigenvectors, and functions of them.

A ``Spectral`` is H = Q diag(λ) Qᵀ. Each method takes w = f(λ) in the shape of ``values`` and works with
f(H) = Q diag(w) Qᵀ; ``rest`` is f(0), used where H has a kernel that is not stored.
Vectors have the ``native`` shape: [P], or [E, O, D] for E Kronecker pairs side by side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

TURNED = 8  # draws that are turned at a time on the CPU


class Spectral(ABC):
    """An eigendecomposition; see the module's text."""

    values: Tensor

    def to(self, device: torch.device) -> Spectral:
        """A copy on another device; pinned, where it waits in main memory for a GPU."""
        moved = {f.name: _moved(getattr(self, f.name), device) for f in fields(self)}  # type: ignore[arg-type]
        return replace(self, **moved)  # type: ignore[type-var]

    @cached_property
    def lowest(self) -> float:
        """The smallest of ``values``."""
        return float(self.values.min())

    @property
    @abstractmethod
    def native(self) -> tuple[int, ...]:
        """Shape of the vectors it acts on."""

    @property
    def size(self) -> int:
        return math.prod(self.native)

    @property
    def kernel(self) -> int:
        """Number of zero eigenvalues that ``values`` leaves out."""
        return 0

    @abstractmethod
    def apply(self, w: Tensor, v: Tensor, rest: Tensor) -> Tensor:
        """f(H) v for v [..., *native]."""

    @abstractmethod
    def colour(self, w: Tensor, noise: Tensor, rest: Tensor) -> Tensor:
        """A vector with covariance f(H)² if the noise is white; no more work than needed. The noise is used up."""

    @abstractmethod
    def diagonal(self, w: Tensor, rest: Tensor) -> Tensor:
        """diag f(H), [*native]."""

    @abstractmethod
    def quadratic(self, w: Tensor, rows: Tensor, rest: Tensor) -> Tensor:
        """rows f(H) rowsᵀ for rows [..., K, *native] → [..., K, K]."""

    def trace(self, w: Tensor, rest: Tensor) -> Tensor:
        return w.sum() + self.kernel * rest


@dataclass(frozen=True)
class DiagonalSpectral(Spectral):
    """Q = I."""

    values: Tensor  # [P]

    @property
    def native(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def apply(self, w: Tensor, v: Tensor, rest: Tensor) -> Tensor:
        return v * w

    def colour(self, w: Tensor, noise: Tensor, rest: Tensor) -> Tensor:
        return noise * w

    def diagonal(self, w: Tensor, rest: Tensor) -> Tensor:
        return w

    def quadratic(self, w: Tensor, rows: Tensor, rest: Tensor) -> Tensor:
        return (rows * w) @ rows.mT


@dataclass(frozen=True)
class DenseSpectral(Spectral):
    """Q stored as [P, P]."""

    values: Tensor  # [P]
    vectors: Tensor  # [P, P]

    @property
    def native(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def apply(self, w: Tensor, v: Tensor, rest: Tensor) -> Tensor:
        return ((v @ self.vectors) * w) @ self.vectors.mT

    def colour(self, w: Tensor, noise: Tensor, rest: Tensor) -> Tensor:
        return (noise * w) @ self.vectors.mT

    def diagonal(self, w: Tensor, rest: Tensor) -> Tensor:
        return self.vectors.square() @ w

    def quadratic(self, w: Tensor, rows: Tensor, rest: Tensor) -> Tensor:
        turned = rows @ self.vectors
        return (turned * w) @ turned.mT


@dataclass(frozen=True)
class KroneckerSpectral(Spectral):
    """Q = Q_G ⊗ Q_A, once for each of E pairs; λ is λ_G λ_Aᵀ, or EKFAC's own table.

    A factor that is too large for eigenvectors is diagonal, and its Q is I, held as None.
    """

    values: Tensor  # [E, O, D]
    left: Tensor | None = None  # Q_G, [E, O, O]
    right: Tensor | None = None  # Q_A, [E, D, D]
    left_values: Tensor | None = None  # λ_G, [E, O]; None where λ is not a product
    right_values: Tensor | None = None  # λ_A, [E, D]

    @property
    def native(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def rotate(self, v: Tensor) -> Tensor:
        """Q_Gᵀ v Q_A."""
        v = v if self.left is None else self.left.mT @ v
        return v if self.right is None else v @ self.right

    def back(self, v: Tensor) -> Tensor:
        """Q_G v Q_Aᵀ."""
        v = v if self.left is None else self.left @ v
        return v if self.right is None else v @ self.right.mT

    def apply(self, w: Tensor, v: Tensor, rest: Tensor) -> Tensor:
        return self.back(self.rotate(v) * w)

    def colour(self, w: Tensor, noise: Tensor, rest: Tensor) -> Tensor:
        noise *= w
        if self.left is None or self.right is None:
            return self.back(noise)
        draws = noise.view(-1, *self.native)
        some_draws = draws.split(TURNED if draws.device.type == "cpu" else len(draws))
        turned = torch.empty_like(some_draws[0])
        for some in some_draws:  # fresh memory for all of them takes a CPU as long as a tenth of the products
            torch.matmul(self.left, some, out=turned[: len(some)])
            torch.matmul(turned[: len(some)], self.right.mT, out=some)
        return noise

    def diagonal(self, w: Tensor, rest: Tensor) -> Tensor:
        w = w if self.left is None else self.left.square() @ w
        return w if self.right is None else w @ self.right.square().mT

    def quadratic(self, w: Tensor, rows: Tensor, rest: Tensor) -> Tensor:
        turned = self.rotate(rows)
        return (turned * w).flatten(-3) @ turned.flatten(-3).mT


@dataclass(frozen=True)
class LowRankSpectral(Spectral):
    """R leading eigenpairs; the rest of the space has eigenvalue zero."""

    values: Tensor  # [R]
    vectors: Tensor  # [P, R]

    @property
    def native(self) -> tuple[int, ...]:
        return (self.vectors.shape[0],)

    @property
    def kernel(self) -> int:
        return self.vectors.shape[0] - self.vectors.shape[1]

    def outside(self, v: Tensor) -> Tensor:
        """The part of v that is orthogonal to the stored eigenvectors (taken out twice, against rounding)."""
        for _ in range(2):
            v = v - (v @ self.vectors) @ self.vectors.mT
        return v

    def apply(self, w: Tensor, v: Tensor, rest: Tensor) -> Tensor:
        return rest * self.outside(v) + ((v @ self.vectors) * w) @ self.vectors.mT

    def colour(self, w: Tensor, noise: Tensor, rest: Tensor) -> Tensor:
        return self.apply(w, noise, rest)

    def diagonal(self, w: Tensor, rest: Tensor) -> Tensor:
        squares = self.vectors.square()
        return rest * (1 - squares.sum(1)).clamp(min=0) + squares @ w

    def quadratic(self, w: Tensor, rows: Tensor, rest: Tensor) -> Tensor:
        turned, left = rows @ self.vectors, self.outside(rows)
        return rest * (left @ left.mT) + (turned * w) @ turned.mT


def _moved(value: Any, device: torch.device) -> Any:
    if not isinstance(value, Tensor) or value.device == device:
        return value
    if value.is_cuda and device.type == "cpu":
        return torch.empty_like(value, device=device, pin_memory=True).copy_(value)
    return value.to(device, non_blocking=True)


def dense(spectral: Spectral, w: Tensor, rest: Tensor) -> Tensor:
    """f(H) as a matrix [P, P], in the row-major order of the native shape."""
    eye = torch.eye(spectral.size, device=w.device, dtype=w.dtype)
    rows = eye.reshape(spectral.size, *spectral.native)
    return spectral.apply(w, rows, rest).reshape(spectral.size, spectral.size)
