"""All weights together: Σ = diag(σ²) + B Bᵀ.

Index legend: S draws, P weights, K rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from whence.curvature.blocks import Param
from whence.posteriors.variational.blocks import OnePass, VariationalBlock, inverse_softplus, normal, softplus
from whence.posteriors.variational.priors import HALF_LOG_2PI, precision_of
from whence.priors import PriorPrecision


class LowRankPass(OnePass):
    """Given the K shared numbers of the pass, the weights are independent."""

    def __init__(self, block: LowRank, generator: torch.Generator | None) -> None:
        self.block, self.generator = block, generator
        shared = block.factor @ normal((block.factor.shape[1],), block.factor, generator)
        moved = block.scatter(shared)
        self.means = {n: loc + moved[n] for n, loc in block.mean().items()}
        self.stds = block.scatter(block.std())
        self._drawn: dict[str, Tensor] = {}

    def weight(self, name: str) -> Tensor:
        if name not in self._drawn:
            noise = normal(self.means[name].shape, self.means[name], self.generator)
            self._drawn[name] = self.means[name] + self.stds[name] * noise
        return self._drawn[name]

    def moments(self, name: str) -> tuple[Tensor, Tensor]:
        return self.means[name], self.stds[name]


class LowRank(VariationalBlock):
    """Every Bayesian weight in one block."""

    structure = "low_rank"

    def __init__(
        self,
        params: Sequence[Param],
        values: Mapping[str, Tensor],
        rank: int,
        initial: float,
        free: Mapping[str, Tensor],
        generator: torch.Generator | None,
    ) -> None:
        super().__init__(params, values)
        like = self.locs[0]
        self.scale = nn.Parameter(torch.full((self.size,), inverse_softplus(initial), dtype=like.dtype).to(like.device))
        start = normal((self.size, rank), like, generator) * (0.1 * initial / rank**0.5)
        self.raw = nn.Parameter(start)
        self.mask: Tensor | None
        masks = {p.name: free.get(p.name, torch.ones(p.shape, dtype=torch.bool, device=like.device)) for p in params}
        self.register_buffer("mask", self.gather(masks) if free else None)

    @property
    def factor(self) -> Tensor:
        """B, [P, K]."""
        return self.raw if self.mask is None else self.raw * self.mask.unsqueeze(-1)

    def std(self) -> Tensor:
        """The independent part, [P]; 0 at fixed entries."""
        std = softplus(self.scale)
        return std if self.mask is None else std * self.mask

    def _safe_std(self) -> Tensor:
        return self.std() if self.mask is None else torch.where(self.mask, self.std(), 1.0)

    def _inner(self, std: Tensor) -> Tensor:
        """Cholesky factor of I + Bᵀ D⁻¹ B, [K, K]; NaN where rounding leaves it none, as after a divergence."""
        scaled = self.factor / std.unsqueeze(-1)
        inner = torch.eye(scaled.shape[1], dtype=std.dtype, device=std.device) + scaled.mT @ scaled
        factor, info = torch.linalg.cholesky_ex(inner)
        return torch.where(info == 0, factor, torch.nan)

    def _half_log_det(self, std: Tensor, inner: Tensor) -> Tensor:
        """½ log det Σ = Σ log σ + ½ log det(I + Bᵀ D⁻¹ B)."""
        return std.log().sum() + inner.diagonal().log().sum()

    def variance(self) -> dict[str, Tensor]:
        return self.scatter(self.std().square() + self.factor.square().sum(-1))

    def begin(self, generator: torch.Generator | None) -> OnePass:
        return LowRankPass(self, generator)

    def sample(self, count: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        std, factor = self.std(), self.factor
        flat = std * normal((count, self.size), std, generator)
        flat = flat + normal((count, factor.shape[1]), std, generator) @ factor.mT
        moved = self.scatter(flat)
        return {n: loc + moved[n] for n, loc in self.mean().items()}

    def free(self, name: str, values: Tensor) -> Tensor:
        return values if self.mask is None else values * self.scatter(self.mask)[name]

    def _count(self) -> int:
        return self.size if self.mask is None else int(self.mask.sum())

    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        """By Woodbury: (w − μ)ᵀ Σ⁻¹ (w − μ) = ‖v‖² − ‖L⁻¹ (B/σ)ᵀ v‖², v = (w − μ) / σ."""
        std = self._safe_std()
        inner = self._inner(std)
        white = self.gather({n: self.free(n, values[n] - self.loc(n)) for n in self.names}) / std  # [S, P]
        along = torch.linalg.solve_triangular(inner, (white @ (self.factor / std.unsqueeze(-1))).mT, upper=False)
        squares = white.square().sum(1) - along.square().sum(0)
        return -0.5 * squares - self._half_log_det(std, inner) - self._count() * HALF_LOG_2PI

    def kl(self, prior: PriorPrecision) -> Tensor:
        """½ [Σ δ (Σ_ii + μ²) − P − Σ log δ] − ½ log det Σ."""
        std = self._safe_std()
        given = {p.name: torch.as_tensor(precision_of(prior, p.name, std), dtype=std.dtype) for p in self.params}
        precision = self.gather({p.name: given[p.name].to(std.device).expand(p.shape) for p in self.params})
        second = std.square() + self.factor.square().sum(-1) + self.gather(self.mean()).square()
        each = precision * second - 1 - precision.log()
        each = each if self.mask is None else each * self.mask
        return 0.5 * each.sum() - self._half_log_det(std, self._inner(std))

    def covariance(self) -> Tensor:
        return torch.diag(self.std().square()) + self.factor @ self.factor.mT
