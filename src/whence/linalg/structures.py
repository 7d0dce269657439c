"""Curvature as sums over the data, by structure, which can be merged, scaled, saved and decomposed.

``spectral(ratio)`` decomposes D^{-1/2} H D^{-1/2} = Q diag(λ) Qᵀ, as needed for a prior precision δ D:
(H + δ D)⁻¹ = B diag(1 / (λ + δ)) Bᵀ with B = D^{-1/2} Q.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from whence.engine.options import Option
from whence.errors import BadOption, NotDefined
from whence.linalg.dense import Eigen, eigh_psd
from whence.linalg.ratios import Ratio, as_separable
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
    additive: ClassVar[bool] = True  # whether two of them can be added exactly

    def spectral(self, ratio: Ratio | None, what: str) -> Spectral:
        """Decomposition of D^{-1/2} H D^{-1/2}; ``ratio`` is D in the native shape, None for I."""
        found = [eigh_psd(matrix, name) for matrix, name in self.factors(ratio, what)]
        return self.assembled(ratio, found, what)

    def factors(self, ratio: Ratio | None, what: str) -> list[tuple[Tensor, str]]:
        """The matrices [..., n, n] to decompose, each with its name."""
        return []

    def factor_shapes(self) -> list[torch.Size]:
        """Shapes of :meth:`factors`."""
        return []

    @abstractmethod
    def assembled(self, ratio: Ratio | None, found: list[Eigen], what: str) -> Spectral:
        """The decomposition, assembled from those of its factors."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors, for saving and moving."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """diag H, in the native shape."""

    def merged(self, other: Structure) -> Structure:
        """H₁ + H₂."""
        if not self.additive or type(other) is not type(self):
            raise NotDefined(
                f"a {self.kind} curvature cannot be added to a {other.kind} one: its eigenvectors depend on the "
                "data they were computed from. Fit again on all the data, or use 'kron', 'diag', 'block' or 'full'."
            )
        theirs = other.tensors()
        return self.replaced({key: value + theirs[key] for key, value in self.tensors().items()})

    def map_sums(self, function: Callable[[Tensor], Tensor]) -> Structure:
        """Apply a function to each of its sums over the data."""
        return self.replaced({key: function(value) for key, value in self.tensors().items()})

    def scaled(self, factor: float) -> Structure:
        """factor · H."""
        return self.map_sums(lambda value: value * factor)

    def reweighted(self, factor: float) -> Structure:
        """factor · H by scaling the loss, not the number of examples; these differ where counts are stored."""
        return self.scaled(factor)

    def replaced(self, tensors: Mapping[str, Tensor]) -> Structure:
        """A copy with other tensors."""
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

    def assembled(self, ratio: Ratio | None, found: list[Eigen], what: str) -> Spectral:
        if ratio is None:
            return DiagonalSpectral(self.values)
        inverse = ratio.dense().reciprocal()
        return DiagonalSpectral(self.values * inverse, ratio, inverse)

    def diagonal(self) -> Tensor:
        return self.values


@dataclass(frozen=True)
class Dense(Structure):
    """H itself."""

    kind: ClassVar[str] = "dense"
    matrix: Tensor  # [P, P]

    def tensors(self) -> dict[str, Tensor]:
        return {"matrix": self.matrix}

    def factors(self, ratio: Ratio | None, what: str) -> list[tuple[Tensor, str]]:
        return [(_whitened(self.matrix, None if ratio is None else ratio.root()), what)]

    def factor_shapes(self) -> list[torch.Size]:
        return [self.matrix.shape]

    def assembled(self, ratio: Ratio | None, found: list[Eigen], what: str) -> Spectral:
        ((values, vectors),) = found
        return DenseSpectral(values, _unwhitened(vectors, None if ratio is None else ratio.root()), ratio)

    def diagonal(self) -> Tensor:
        return self.matrix.diagonal()


@dataclass(frozen=True)
class Symmetric(Dense):
    """A Hessian, which may have negative eigenvalues, unlike its sum with the prior."""

    kind: ClassVar[str] = "hessian"

    def factors(self, ratio: Ratio | None, what: str) -> list[tuple[Tensor, str]]:
        return []

    def factor_shapes(self) -> list[torch.Size]:
        return []

    def assembled(self, ratio: Ratio | None, found: list[Eigen], what: str) -> Spectral:
        root = None if ratio is None else ratio.root().double()
        values, vectors = torch.linalg.eigh(_whitened(self.matrix.double(), root))
        vectors = _unwhitened(vectors, root).to(self.matrix.dtype).contiguous()
        return DenseSpectral(values.to(self.matrix.dtype), vectors, ratio)


@dataclass(frozen=True)
class Kronecker(Structure):
    """G ⊗ A, once for each of E pairs: A = ``inputs`` / ``count``, G = ``grads``; large factors as diagonals."""

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

    def factors(self, ratio: Ratio | None, what: str) -> list[tuple[Tensor, str]]:
        named = zip(self._sides(ratio, what), ("input", "gradient"), strict=True)
        return [(_whitened(m, root), f"{what}, {name} factor") for (m, root), name in named if m.dim() == 3]

    def factor_shapes(self) -> list[torch.Size]:
        return [t.shape for t in (self.inputs, self.grads) if t.dim() == 3]

    def assembled(self, ratio: Ratio | None, found: list[Eigen], what: str) -> Spectral:
        left, sides = list(found), list[tuple[Tensor, Tensor | None]]()
        for matrix, root in self._sides(ratio, what):
            if matrix.dim() == 3:
                values, vectors = left.pop(0)
                sides.append((values, _unwhitened(vectors, root)))
            else:
                sides.append((matrix if root is None else matrix * root.square(), root))
        (a_values, a_vectors), (g_values, g_vectors) = sides
        table = g_values.unsqueeze(-1) * a_values.unsqueeze(-2)
        split = None if ratio is None else as_separable(ratio, what)
        return KroneckerSpectral(table, g_vectors, a_vectors, g_values, a_values, split)

    def _sides(self, ratio: Ratio | None, what: str) -> list[tuple[Tensor, Tensor | None]]:
        """A and G, each with its factor of D^{-1/2}, [E, n]."""
        if ratio is None:
            return [(self.mean_input, None), (self.grads, None)]
        split = as_separable(ratio, what)
        return [(self.mean_input, split.columns.rsqrt()), (self.grads, split.rows.rsqrt())]

    def diagonal(self) -> Tensor:
        a, g = (t if t.dim() == 2 else t.diagonal(dim1=-2, dim2=-1) for t in (self.mean_input, self.grads))
        return g.unsqueeze(-1) * a.unsqueeze(-2)


@dataclass(frozen=True)
class InBasis(Structure):
    """Eigenvalues in a basis relative to the ratio D of a fit; they cannot be added."""

    additive: ClassVar[bool] = False
    ratio: Ratio | None = field(default=None, kw_only=True)

    def map_sums(self, function: Callable[[Tensor], Tensor]) -> Structure:
        return self.replaced(self.tensors() | {"values": function(self.tensors()["values"])})

    def replaced(self, tensors: Mapping[str, Tensor]) -> Structure:
        return type(self)(**tensors, ratio=self.ratio)

    def to(self, *args: Any, **kwargs: Any) -> Structure:
        moved = {key: value.to(*args, **kwargs) for key, value in self.tensors().items()}
        return type(self)(**moved, ratio=None if self.ratio is None else self.ratio.to(*args, **kwargs))

    def refuse_other(self, asked: Ratio | None, what: str) -> None:
        """Refuse a prior other than the one that the eigenvalues are relative to."""
        if (None if self.ratio is None else self.ratio.key) != (None if asked is None else asked.key):
            raise BadOption(
                f"{what}: structure={self.kind!r} was computed relative to the prior of the fit. Its precision may be "
                "multiplied by a number, but its shape cannot change: fit again with the new prior, or use "
                "structure='kron', which supports any prior."
            )


@dataclass(frozen=True)
class Ekfac(InBasis):
    """The basis B of Kronecker factors with the exact diagonal of Bᵀ H B."""

    kind: ClassVar[str] = "ekfac"
    values: Tensor  # [E, O, D]
    left: Tensor  # B_G, [E, O, O]
    right: Tensor  # B_A, [E, D, D]

    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values, "left": self.left, "right": self.right}

    def assembled(self, ratio: Ratio | None, found: list[Eigen], what: str) -> Spectral:
        self.refuse_other(ratio, what)
        split = None if ratio is None else as_separable(ratio, what)
        return KroneckerSpectral(self.values, self.left, self.right, ratio=split)

    def diagonal(self) -> Tensor:
        """diag(D B diag(λ) Bᵀ D)."""
        found = KroneckerSpectral(self.values, self.left, self.right).diagonal(self.values, self.values.new_zeros(()))
        return found if self.ratio is None else found * self.ratio.dense().square()


@dataclass(frozen=True)
class LowRank(InBasis):
    """The leading R eigenpairs of D^{-1/2} H D^{-1/2}."""

    kind: ClassVar[str] = "lowrank"
    values: Tensor  # [R]
    vectors: Tensor  # [P, R]

    def tensors(self) -> dict[str, Tensor]:
        return {"values": self.values, "vectors": self.vectors}

    def assembled(self, ratio: Ratio | None, found: list[Eigen], what: str) -> Spectral:
        self.refuse_other(ratio, what)
        return LowRankSpectral(self.values, self.vectors, ratio, None if ratio is None else ratio.root())

    def diagonal(self) -> Tensor:
        found = self.vectors.square() @ self.values
        return found if self.ratio is None else found * self.ratio.dense()


KINDS: dict[str, type[Structure]] = {s.kind: s for s in (Diagonal, Dense, Symmetric, Kronecker, Ekfac, LowRank)}


def _whitened(matrix: Tensor, root: Tensor | None) -> Tensor:
    """D^{-1/2} M D^{-1/2}."""
    return matrix if root is None else root.unsqueeze(-1) * matrix * root.unsqueeze(-2)


def _unwhitened(vectors: Tensor, root: Tensor | None) -> Tensor:
    """D^{-1/2} Q."""
    return vectors if root is None else root.unsqueeze(-1) * vectors


class StructureKind(Option):
    """The structure that a fit is asked for."""

    FULL = "full"
    BLOCK = "block"
    KRON = "kron"
    EKFAC = "ekfac"
    DIAG = "diag"
    LOWRANK = "lowrank"

    @property
    def factored(self) -> bool:
        """Whether matrix layers have Kronecker factors."""
        return self in (StructureKind.KRON, StructureKind.EKFAC)

    @property
    def joint(self) -> bool:
        """Whether all layers share one structure."""
        return self in (StructureKind.FULL, StructureKind.LOWRANK)

    @property
    def passes(self) -> int:
        """Number of passes over the data."""
        return 2 if self in (StructureKind.EKFAC, StructureKind.LOWRANK) else 1


class BlockStructure(Option):
    """The structure that a block has."""

    KRON = "kron"
    EKFAC = "ekfac"
    DENSE = "dense"
    DIAG = "diag"
    FULL = "full"  # part of one dense matrix over all blocks
    LOWRANK = "lowrank"  # part of one low-rank matrix over all blocks
