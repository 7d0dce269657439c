"""Curvature as sums over the data, by structure. They can be merged, scaled, written and decomposed.

``spectral(ratio)`` decomposes D^{-1/2} H D^{-1/2} with D = diag(ratio), which is what a prior precision
δ · ratio asks for: (H + δ D)⁻¹ = D^{-1/2} (D^{-1/2} H D^{-1/2} + δ I)⁻¹ D^{-1/2}.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from whence.errors import BadOption, NotDefined
from whence.linalg.dense import Eigen, eigh_psd
from whence.linalg.spectral import (
    DenseSpectral,
    DiagonalSpectral,
    KroneckerSpectral,
    LowRankSpectral,
    Spectral,
)


class Structure(ABC):
    """A positive semi-definite H that is a sum over the data."""

    kind: ClassVar[str]
    additive: ClassVar[bool] = True  # whether two of them can be added without loss

    def spectral(self, ratio: Tensor | None, what: str) -> Spectral:
        """Decomposition of D^{-1/2} H D^{-1/2}; ``ratio`` is D's diagonal in the native shape, None for I."""
        found = [eigh_psd(matrix, name) for matrix, name in self.factors(ratio, what)]
        return self.assembled(ratio, found, what)

    def factors(self, ratio: Tensor | None, what: str) -> list[tuple[Tensor, str]]:
        """The matrices [..., n, n] whose eigenvectors it takes, each with its name."""
        return []

    def factor_shapes(self) -> list[torch.Size]:
        """Shapes of :meth:`factors`."""
        return []

    @abstractmethod
    def assembled(self, ratio: Tensor | None, found: list[Eigen], what: str) -> Spectral:
        """The decomposition, from those of its factors."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What it consists of, for saving and moving."""

    def merged(self, other: Structure) -> Structure:
        """H₁ + H₂."""
        if not self.additive or type(other) is not type(self):
            raise NotDefined(
                f"a {self.kind} curvature cannot be added to a {other.kind} one: its eigenvectors belong to the "
                "data they were computed from. Fit again on all the data, or use 'kron', 'diag', 'block' or 'full'."
            )
        theirs = other.tensors()
        return self.replaced({key: value + theirs[key] for key, value in self.tensors().items()})

    def scaled(self, factor: float) -> Structure:
        """factor · H."""
        return self.replaced({key: value * factor for key, value in self.tensors().items()})

    def reweighted(self, factor: float) -> Structure:
        """factor · H as a change of the loss, not of the number of examples; they differ where counts are kept."""
        return self.scaled(factor)

    def replaced(self, tensors: Mapping[str, Tensor]) -> Structure:
        """The same structure with other tensors."""
        return type(self)(**tensors)

    def to(self, *args: Any, **kwargs: Any) -> Structure:
        return self.replaced({key: value.to(*args, **kwargs) for key, value in self.tensors().items()})


@dataclass(frozen=True)
class Diagonal(Structure):
    """diag H."""

    kind: ClassVar[str] = "diag"
    values: Tensor  # [P]

    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values}

    def assembled(self, ratio: Tensor | None, found: list[Eigen], what: str) -> Spectral:
        return DiagonalSpectral(self.values if ratio is None else self.values / ratio)


@dataclass(frozen=True)
class Dense(Structure):
    """H itself."""

    kind: ClassVar[str] = "dense"
    matrix: Tensor  # [P, P]

    def tensors(self) -> dict[str, Tensor]:
        return {"matrix": self.matrix}

    def factors(self, ratio: Tensor | None, what: str) -> list[tuple[Tensor, str]]:
        if ratio is None:
            return [(self.matrix, what)]
        half = ratio.rsqrt()
        return [(half.unsqueeze(1) * self.matrix * half, what)]

    def factor_shapes(self) -> list[torch.Size]:
        return [self.matrix.shape]

    def assembled(self, ratio: Tensor | None, found: list[Eigen], what: str) -> Spectral:
        ((values, vectors),) = found
        return DenseSpectral(values, vectors)


@dataclass(frozen=True)
class Symmetric(Dense):
    """A Hessian, which may have negative eigenvalues; with its prior it must not."""

    kind: ClassVar[str] = "hessian"

    def factors(self, ratio: Tensor | None, what: str) -> list[tuple[Tensor, str]]:
        return []

    def factor_shapes(self) -> list[torch.Size]:
        return []

    def assembled(self, ratio: Tensor | None, found: list[Eigen], what: str) -> Spectral:
        matrix = self.matrix.double()
        if ratio is not None:
            half = ratio.rsqrt().to(matrix.dtype)
            matrix = half.unsqueeze(1) * matrix * half
        values, vectors = torch.linalg.eigh(matrix)
        return DenseSpectral(values.to(self.matrix.dtype), vectors.to(self.matrix.dtype).contiguous())


@dataclass(frozen=True)
class Kronecker(Structure):
    """G ⊗ A, once for each of E pairs: A = ``inputs`` / ``count``, G = ``grads``; of a large one the diagonal alone."""

    kind: ClassVar[str] = "kron"
    inputs: Tensor  # Σ a aᵀ, [E, D, D]; or Σ a², [E, D]
    grads: Tensor  # Σ g gᵀ, [E, O, O]; or Σ g², [E, O]
    count: Tensor  # number of terms in ``inputs``, [E]

    def tensors(self) -> dict[str, Tensor]:
        return {"inputs": self.inputs, "grads": self.grads, "count": self.count}

    @property
    def mean_input(self) -> Tensor:
        """A, [E, D, D] or [E, D]."""
        count = torch.where(self.count > 0, self.count, 1.0).to(self.inputs.dtype)
        return self.inputs / count.reshape(-1, *(1,) * (self.inputs.dim() - 1))

    def reweighted(self, factor: float) -> Structure:
        return Kronecker(self.inputs, self.grads * factor, self.count)

    def factors(self, ratio: Tensor | None, what: str) -> list[tuple[Tensor, str]]:
        named = ((self._mean_input(ratio, what), "input"), (self.grads, "gradient"))
        return [(matrix, f"{what}, {name} factor") for matrix, name in named if matrix.dim() == 3]

    def factor_shapes(self) -> list[torch.Size]:
        return [t.shape for t in (self.inputs, self.grads) if t.dim() == 3]

    def assembled(self, ratio: Tensor | None, found: list[Eigen], what: str) -> Spectral:
        left = list(found)
        a_values, a_vectors = left.pop(0) if self.inputs.dim() == 3 else (self._mean_input(ratio, what), None)
        g_values, g_vectors = left.pop(0) if self.grads.dim() == 3 else (self.grads, None)
        table = g_values.unsqueeze(-1) * a_values.unsqueeze(-2)
        return KroneckerSpectral(table, g_vectors, a_vectors, g_values, a_values)

    def _mean_input(self, ratio: Tensor | None, what: str) -> Tensor:
        """D^{-1/2} A D^{-1/2}."""
        a = self.mean_input
        if ratio is None:
            return a
        column = column_ratio(ratio, what)  # [D]
        if a.dim() == 2:
            return a / column
        half = column.rsqrt()
        return half.unsqueeze(1) * a * half


@dataclass(frozen=True)
class Ekfac(Structure):
    """Kronecker eigenvectors with the exact diagonal of H in their basis."""

    kind: ClassVar[str] = "ekfac"
    additive: ClassVar[bool] = False
    values: Tensor  # [E, O, D]
    left: Tensor  # Q_G
    right: Tensor  # Q_A

    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values, "left": self.left, "right": self.right}

    def scaled(self, factor: float) -> Structure:
        return Ekfac(self.values * factor, self.left, self.right)

    def assembled(self, ratio: Tensor | None, found: list[Eigen], what: str) -> Spectral:
        if ratio is not None:
            column_ratio(ratio, what)
            raise BadOption(
                f"{what}: an 'ekfac' block takes one prior precision. A second one for biases would turn its "
                "eigenvectors, and the values in them need another pass over the data; use structure='kron'."
            )
        return KroneckerSpectral(self.values, self.left, self.right)


@dataclass(frozen=True)
class LowRank(Structure):
    """The leading R eigenpairs of H."""

    kind: ClassVar[str] = "lowrank"
    additive: ClassVar[bool] = False
    values: Tensor  # [R]
    vectors: Tensor  # [P, R]

    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values, "vectors": self.vectors}

    def scaled(self, factor: float) -> Structure:
        return LowRank(self.values * factor, self.vectors)

    def assembled(self, ratio: Tensor | None, found: list[Eigen], what: str) -> Spectral:
        if ratio is None:
            return LowRankSpectral(self.values, self.vectors)
        thin = self.vectors * self.values.sqrt() * ratio.rsqrt().unsqueeze(1)  # [P, R]
        left, singular, _ = torch.linalg.svd(thin, full_matrices=False)
        return LowRankSpectral(singular.square(), left)


KINDS: dict[str, type[Structure]] = {s.kind: s for s in (Diagonal, Dense, Symmetric, Kronecker, Ekfac, LowRank)}


def column_ratio(ratio: Tensor, what: str) -> Tensor:
    """The one row that a ratio [E, O, D] repeats; a Kronecker block can carry no other."""
    row = ratio[0, 0]
    if not bool((ratio == row).all()):
        raise BadOption(
            f"{what}: a Kronecker block takes one prior precision for its weights and one for its bias, not one "
            "per weight. Use structure='diag', 'block' or 'full' for that."
        )
    return row
