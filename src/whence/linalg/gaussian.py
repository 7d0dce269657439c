"""The Gaussian over one block: covariance (s H + δ D)⁻¹ = B diag(1 / (s λ + δ)) Bᵀ.

B and λ are the decomposition of the curvature H relative to the shape D of the prior: :mod:`whence.linalg.spectral`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.engine.memory import none_if_out_of_memory, readable
from whence.engine.options import Option
from whence.errors import BadOption, NotDefined, NotPositiveDefinite, TooLarge
from whence.linalg.spectral import KroneckerSpectral, Spectral
from whence.linalg.structures import StructureKind


class Damping(Option):
    """How the prior enters a Kronecker block: exactly, or added to each factor (Ritter et al. 2018, eq. 9)."""

    EXACT = "exact"
    FACTORED = "factored"

    @classmethod
    def checked(cls, damping: str, structure: StructureKind) -> Damping:
        chosen = cls.parse(damping, "damping")
        if chosen is cls.FACTORED and structure is not StructureKind.KRON:
            raise BadOption(f"damping='factored' (eq. 9) applies only to structure='kron', not to {structure!r}.")
        return chosen


@dataclass(frozen=True)
class BlockGaussian:
    """Σ of a block (or of several jointly), in the native shape of its structure."""

    name: str
    spectral: Spectral
    delta: float
    scale: float  # s: factor of the curvature
    factored_size: float | None = None  # N of eq. 9, where damping is factored

    @property
    def precision(self) -> Tensor:
        """Eigenvalues of the precision in the decomposition's basis, in the shape of ``spectral.values``."""
        values = self.spectral.values
        if self.factored_size is not None and isinstance(self.spectral, KroneckerSpectral):
            return self._factored(self.spectral)
        lowest = self.spectral.lowest
        if not self.scale * lowest + self.delta > 0:
            raise NotPositiveDefinite(
                f"{self.name}: the precision is not positive definite (curvature eigenvalue {lowest:.3g}, prior "
                f"{self.delta:.3g}). The network is not at a minimum: use curvature='ggn', a prior precision above "
                f"{-lowest * self.scale:.3g}, or train longer."
            )
        return self.scale * values + self.delta

    def _factored(self, spectral: KroneckerSpectral) -> Tensor:
        """Ritter et al. (2018), eq. 9: (√N E[A] + √τ I) ⊗ (√N E[G] + √τ I), with N counted s times."""
        if spectral.left_values is None or spectral.right_values is None:
            raise NotDefined("factored damping needs Kronecker factors; use structure='kron'.")
        assert self.factored_size is not None
        root_n, root_tau = (self.scale * self.factored_size) ** 0.5, self.delta**0.5
        a = root_n * spectral.right_values + root_tau  # [E, D]
        g = root_n * spectral.left_values / self.factored_size + root_tau  # [E, O]
        return g.unsqueeze(-1) * a.unsqueeze(-2)

    @property
    def null_precision(self) -> Tensor:
        """The precision where the curvature is zero, outside the stored eigenpairs."""
        values = self.spectral.values
        return torch.full((), self.delta, dtype=values.dtype, device=values.device)  # avoids a copy from the host

    def weights(self) -> tuple[Tensor, Tensor]:
        """Weights of rows in the eigenbasis, under the posterior and under the prior alone."""
        return self.spectral.weights(1 / self.precision, 1 / self.null_precision)

    def from_noise(self, noise: Tensor) -> Tensor:
        """White noise [..., *native] → draws with covariance Σ. Overwrites ``noise``."""
        return self.spectral.from_noise(self.precision.rsqrt(), noise, self.null_precision.rsqrt())

    def rooted(self, rows: Tensor) -> Tensor:
        """R with R Rᵀ = rows Σ rowsᵀ, for rows [..., *native]."""
        return self.spectral.rooted(self.precision.rsqrt(), rows, self.null_precision.rsqrt())

    def draw(self, num_samples: int, generator: torch.Generator | None) -> Tensor:
        """Draws with covariance Σ, [S, *native]."""
        values, shape = self.spectral.values, (num_samples, *self.spectral.native)

        def drawn() -> Tensor:
            device = values.device if generator is None else generator.device
            noise = torch.randn(shape, generator=generator, device=device, dtype=values.dtype)
            return self.from_noise(noise.to(values.device))

        found = none_if_out_of_memory(drawn)
        if found is None:
            needed = readable(num_samples * self.spectral.size * values.element_size())
            raise TooLarge(
                f"{self.name}: {num_samples} draws of its {self.spectral.size:,} weights need {needed}, more than the "
                f"memory of {values.device}. Draw fewer at a time (num_samples=…)."
            )
        return found

    def solve(self, native: Tensor) -> Tensor:
        """Σ v."""
        return self.spectral.apply(1 / self.precision, native, 1 / self.null_precision)

    def variance(self) -> Tensor:
        """Marginal variances, in the native shape."""
        return self.spectral.diagonal(1 / self.precision, 1 / self.null_precision)

    def identified(self) -> Tensor:
        """1 − posterior variance / prior variance, native: diag[s H (s H + Δ)⁻¹], which avoids cancellation."""
        precision = self.precision
        gained = precision - self.delta if self.factored_size is not None else self.scale * self.spectral.values
        found = self.spectral.diagonal(gained / precision, torch.zeros_like(self.null_precision))
        return found if self.spectral.ratio is None else found * self.spectral.ratio.dense()

    def prior_variance(self) -> Tensor:
        """Prior variances 1/Δ, in the native shape."""
        if self.spectral.ratio is None:
            values = self.spectral.values
            return torch.full(self.spectral.native, 1 / self.delta, dtype=values.dtype, device=values.device)
        return 1 / (self.delta * self.spectral.ratio.dense())

    def quadratic(self, rows: Tensor) -> Tensor:
        """rows Σ rowsᵀ for rows [..., K, *native]."""
        return self.spectral.quadratic(1 / self.precision, rows, 1 / self.null_precision)

    def log_det_ratio(self) -> Tensor:
        """log det(s H + Δ) − log det Δ, in float64."""
        if self.factored_size is not None:
            raise NotDefined("the evidence is not defined for damping='factored'; use damping='exact'.")
        return torch.log1p((self.precision.double() - self.delta) / self.delta).sum()

    def effective_parameters(self) -> Tensor:
        """γ = tr[s H (s H + Δ)⁻¹], MacKay's number of well-determined parameters, in float64."""
        if self.factored_size is not None:
            return (1 - self.variance().double() / self.prior_variance().double()).sum()
        return (1 - self.delta / self.precision.double()).sum()
