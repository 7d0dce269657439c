"""Mass matrices M by their inverse, one for each chain; M⁻¹ is to be the posterior covariance.

Index legend: K chains, P parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

MassKind = Literal["identity", "diag", "dense"]
MASSES = ("identity", "diag", "dense")


class Mass(ABC):
    """Kinetic energy ½ rᵀ M⁻¹ r."""

    @abstractmethod
    def velocity(self, momentum: Tensor) -> Tensor:
        """M⁻¹ r, [K, P]."""

    @abstractmethod
    def momentum(self, noise: Tensor) -> Tensor:
        """White noise [K, P] → draws from N(0, M)."""

    @abstractmethod
    def tensor(self) -> Tensor:
        """M⁻¹: [K, P] its diagonal, or [K, P, P]."""

    def kinetic(self, momentum: Tensor) -> Tensor:
        """[K]."""
        return 0.5 * (momentum * self.velocity(momentum)).sum(1)


@dataclass(frozen=True)
class Diagonal(Mass):
    """M⁻¹ = diag(inverse)."""

    inverse: Tensor  # [K, P]

    def velocity(self, momentum: Tensor) -> Tensor:
        return self.inverse * momentum

    def momentum(self, noise: Tensor) -> Tensor:
        return noise * self.inverse.rsqrt()

    def tensor(self) -> Tensor:
        return self.inverse


@dataclass(frozen=True)
class Dense(Mass):
    """M⁻¹ = L Lᵀ."""

    inverse: Tensor  # [K, P, P]
    root: Tensor  # L, lower triangular

    @classmethod
    def of(cls, inverse: Tensor) -> Dense:
        return cls(inverse, torch.linalg.cholesky(inverse))

    def velocity(self, momentum: Tensor) -> Tensor:
        return torch.bmm(self.inverse, momentum.unsqueeze(2)).squeeze(2)

    def momentum(self, noise: Tensor) -> Tensor:
        """L⁻ᵀ z has covariance (L Lᵀ)⁻¹ = M."""
        return torch.linalg.solve_triangular(self.root.mT, noise.unsqueeze(2), upper=True).squeeze(2)

    def tensor(self) -> Tensor:
        return self.inverse


def mass_from(tensor: Tensor) -> Mass:
    """The inverse of :meth:`Mass.tensor`."""
    return Diagonal(tensor) if tensor.dim() == 2 else Dense.of(tensor)


def unit_mass(kind: MassKind, scale: Tensor) -> Mass:
    """M⁻¹ = diag(scale) [K, P], in the form that ``kind`` adapts."""
    return Dense.of(torch.diag_embed(scale)) if kind == "dense" else Diagonal(scale)


@dataclass(frozen=True)
class Moments:
    """Mean and centred sums of squares of the positions so far, by Welford's update."""

    count: int
    mean: Tensor  # [K, P]
    squares: Tensor  # [K, P], or [K, P, P] for a dense mass

    @classmethod
    def empty(cls, kind: MassKind, like: Tensor) -> Moments:
        shape = (*like.shape, like.shape[1]) if kind == "dense" else tuple(like.shape)
        return cls(0, torch.zeros_like(like), like.new_zeros(shape))

    def add(self, position: Tensor) -> Moments:
        count = self.count + 1
        before = position - self.mean
        mean = self.mean + before / count
        after = position - mean
        if self.squares.dim() == 3:
            return Moments(count, mean, torch.baddbmm(self.squares, before.unsqueeze(2), after.unsqueeze(1)))
        return Moments(count, mean, self.squares + before * after)

    def mass(self) -> Mass:
        """Covariance, shrunk towards 10⁻³ I as in Stan: n/(n+5) Σ + 10⁻³ · 5/(n+5) I."""
        n = self.count
        covariance = self.squares / max(n - 1, 1) * (n / (n + 5.0))
        floor = 1e-3 * 5.0 / (n + 5.0)
        if covariance.dim() == 3:
            eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
            return Dense.of((covariance + covariance.mT) / 2 + floor * eye)
        return Diagonal(covariance + floor)
