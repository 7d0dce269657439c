"""Families with correlations.

    low rank        all weights together, Σ = diag(σ²) + B Bᵀ
    matrix normal   W = M + L_U Z L_Vᵀ, so that Cov(W) = U ⊗ V, as the Laplace posterior's Kronecker blocks

Index legend: S draws, P weights, K rank, E pairs (groups), O outputs, D inputs, and one more for the bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.engine.randomness import normal
from whence.errors import TooLarge
from whence.posteriors.gaussian import Covariance, Pair
from whence.posteriors.variational.blocks import BlockPass, VariationalBlock, inverse_softplus
from whence.posteriors.variational.priors import HALF_LOG_2PI
from whence.priors import PriorPrecision
from whence.recording.blocks import MatrixForm, Param


class LowRankPass(BlockPass):
    """The weights are independent given the K shared numbers of the pass."""

    def __init__(self, block: LowRank, generator: torch.Generator | None) -> None:
        self.block, self.generator = block, generator
        shared = block.factor @ normal((block.factor.shape[1],), block.factor, generator)
        self.means, self.stds = block.around_mean(shared), block.vector.scatter(block.std())
        self._drawn: dict[str, Tensor] = {}

    def weight(self, name: str) -> Tensor:
        if name not in self._drawn:
            noise = normal(self.means[name].shape, self.means[name], self.generator)
            self._drawn[name] = self.means[name] + self.stds[name] * noise
        return self._drawn[name]

    def moments(self, name: str) -> tuple[Tensor, Tensor]:
        return self.means[name], self.stds[name]


class LowRank(VariationalBlock):
    """All Bayesian weights in one block."""

    structure = "low_rank"
    layer = "all layers together"

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
        self.register_buffer("mask", self.vector.gather(masks) if free else None)

    @property
    def factor(self) -> Tensor:
        """B, [P, K]."""
        return self.raw if self.mask is None else self.raw * self.mask.unsqueeze(-1)

    def std(self) -> Tensor:
        """Standard deviation of the independent part, [P]; 0 at fixed entries."""
        std = F.softplus(self.scale)
        return std if self.mask is None else std * self.mask

    def _safe_std(self) -> Tensor:
        return self.std() if self.mask is None else torch.where(self.mask, self.std(), 1.0)

    def _inner(self, std: Tensor) -> Tensor:
        """Cholesky factor of I + Bᵀ D⁻¹ B, [K, K]; NaN if it does not exist numerically, as after a divergence."""
        scaled = self.factor / std.unsqueeze(-1)
        inner = torch.eye(scaled.shape[1], dtype=std.dtype, device=std.device) + scaled.mT @ scaled
        factor, info = torch.linalg.cholesky_ex(inner)
        return torch.where(info == 0, factor, torch.nan)

    def _half_log_det(self, std: Tensor, inner: Tensor) -> Tensor:
        """½ log det Σ = Σ log σ + ½ log det(I + Bᵀ D⁻¹ B)."""
        return std.log().sum() + inner.diagonal().log().sum()

    def variance(self) -> dict[str, Tensor]:
        return self.vector.scatter(self.std().square() + self.factor.square().sum(-1))

    def parts_of_covariance(self) -> Covariance:
        return Covariance(self.vector.scatter(self.std().square()), columns=self.vector.scatter(self.factor.mT))

    def begin(self, generator: torch.Generator | None) -> BlockPass:
        return LowRankPass(self, generator)

    def sample(self, count: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        std, factor = self.std(), self.factor
        flat = std * normal((count, self.size), std, generator)
        flat = flat + normal((count, factor.shape[1]), std, generator) @ factor.mT
        return self.around_mean(flat)

    def free(self, name: str, values: Tensor) -> Tensor:
        return values if self.mask is None else values * self.vector.scatter(self.mask)[name]

    def _count(self) -> int:
        return self.size if self.mask is None else int(self.mask.sum())

    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        """By Woodbury: (w − μ)ᵀ Σ⁻¹ (w − μ) = ‖v‖² − ‖L⁻¹ (B/σ)ᵀ v‖², v = (w − μ) / σ."""
        std = self._safe_std()
        inner = self._inner(std)
        white = self.vector.gather({n: self.free(n, values[n] - self.loc(n)) for n in self.names}) / std  # [S, P]
        along = torch.linalg.solve_triangular(inner, (white @ (self.factor / std.unsqueeze(-1))).mT, upper=False)
        squares = white.square().sum(1) - along.square().sum(0)
        return -0.5 * squares - self._half_log_det(std, inner) - self._count() * HALF_LOG_2PI

    def kl(self, prior: PriorPrecision) -> Tensor:
        """½ [Σ δ (Σ_ii + μ²) − P − Σ log δ] − ½ log det Σ."""
        std = self._safe_std()
        precision = self.flat_precision(prior, std)
        second = std.square() + self.factor.square().sum(-1) + self.vector.gather(self.mean()).square()
        each = precision * second - 1 - precision.log()
        each = each if self.mask is None else each * self.mask
        return 0.5 * each.sum() - self._half_log_det(std, self._inner(std))

    def covariance(self) -> Tensor:
        return torch.diag(self.std().square()) + self.factor @ self.factor.mT


FACTOR_LIMIT = 2**30  # bytes of one factor


class MatrixPass(BlockPass):
    """Both factors, computed once."""

    def __init__(self, block: MatrixNormal, generator: torch.Generator | None) -> None:
        self.block, self.generator = block, generator
        self.left, self.right = block.factors()
        self._drawn: dict[str, Tensor] | None = None

    def weight(self, name: str) -> Tensor:
        if self._drawn is None:
            noise = normal(self.block.form.native, self.left, self.generator)
            self._drawn = self.block.around_mean(self.block.form.unpack(self.left @ noise @ self.right.mT))
        return self._drawn[name]

    def linear(self, name: str, x: Tensor, bias: str | None) -> Tensor | None:
        """x ↦ M x̃ + ‖L_Vᵀ x̃‖ L_U ε: given x, W x̃ is Gaussian with covariance (x̃ᵀ V x̃) U."""
        block = self.block
        if block.form.pairs != 1 or name != block.names[0] or bias not in (None, *block.names[1:]):
            return None
        mean = F.linear(x, block.loc(name), None if bias is None else block.loc(bias))
        right = self.right[0]
        spread = x @ right[: x.shape[-1]]  # L_Vᵀ x̃, row by row
        spread = spread if bias is None else spread + right[-1]
        length = spread.square().sum(-1, keepdim=True).clamp_min(1e-20).sqrt()
        return mean + length * (normal(mean.shape, mean, self.generator) @ self.left[0].mT)


class MatrixNormal(VariationalBlock):
    """A weight matrix with its bias."""

    structure = "matrix_normal"

    def __init__(self, params: Sequence[Param], values: Mapping[str, Tensor], form: MatrixForm, initial: float) -> None:
        super().__init__(params, values)
        self.form = form
        pairs, outputs, inputs = form.native
        like = self.locs[0]
        needed = pairs * max(outputs, inputs) ** 2 * like.element_size()
        if needed > FACTOR_LIMIT:
            raise TooLarge(
                f"a factor of {params[0].name!r} has {max(outputs, inputs):,} rows and needs {needed / 2**30:.1f} GiB "
                f"(limit {FACTOR_LIMIT / 2**30:.0f} GiB). Use family='mean_field', or exclude the layer with layers=."
            )
        self.left = nn.Parameter(self._eye(pairs, outputs, like, inverse_softplus(1.0)))
        self.right = nn.Parameter(self._eye(pairs, inputs, like, inverse_softplus(initial)))

    @staticmethod
    def _eye(pairs: int, size: int, like: Tensor, value: float) -> Tensor:
        return value * torch.eye(size, dtype=like.dtype, device=like.device).expand(pairs, size, size).clone()

    def factors(self) -> tuple[Tensor, Tensor]:
        """L_U [E, O, O] and L_V [E, D, D]: lower triangles with softplus on the diagonal."""
        left, right = (
            raw.tril(-1) + torch.diag_embed(F.softplus(raw.diagonal(dim1=-2, dim2=-1)))
            for raw in (self.left, self.right)
        )
        return left, right

    def _native(self, values: Mapping[str, Tensor]) -> Tensor:
        return self.form.pack(self.vector.gather(values))

    def _native_variance(self, left: Tensor, right: Tensor) -> Tensor:
        """U_ii V_jj, [E, O, D]."""
        return left.square().sum(-1).unsqueeze(-1) * right.square().sum(-1).unsqueeze(-2)

    def _half_log_det(self, left: Tensor, right: Tensor) -> Tensor:
        """½ log det(U ⊗ V) = D log det L_U + O log det L_V."""
        logs = [f.diagonal(dim1=-2, dim2=-1).log().sum() for f in (left, right)]
        return right.shape[-1] * logs[0] + left.shape[-1] * logs[1]

    def variance(self) -> dict[str, Tensor]:
        return self.vector.scatter(self.form.unpack(self._native_variance(*self.factors())))

    def begin(self, generator: torch.Generator | None) -> BlockPass:
        return MatrixPass(self, generator)

    def sample(self, count: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        left, right = self.factors()
        noise = normal((count, *self.form.native), left, generator)
        return self.around_mean(self.form.unpack(left @ noise @ right.mT))

    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        left, right = self.factors()
        away = self._native({n: values[n] - self.loc(n) for n in self.names})  # [S, E, O, D]
        half = torch.linalg.solve_triangular(left, away, upper=False)
        white = torch.linalg.solve_triangular(right, half.mT, upper=False)
        squares = white.square().flatten(1).sum(1)
        return -0.5 * squares - self._half_log_det(left, right) - self.size * HALF_LOG_2PI

    def kl(self, prior: PriorPrecision) -> Tensor:
        """½ [Σ δ (U_ii V_jj + M²) − P − Σ log δ] − ½ log det(U ⊗ V)."""
        left, right = self.factors()
        precision = self.form.pack(self.flat_precision(prior, left))
        second = self._native_variance(left, right) + self._native(self.mean()).square()
        each = precision * second - 1 - precision.log()
        return 0.5 * each.sum() - self._half_log_det(left, right)

    def parts_of_covariance(self) -> Covariance:
        return Covariance({}, (Pair(tuple(self.names), self.form, *self.factors()),))

    def covariance(self) -> Tensor:
        left, right = self.factors()
        blocks = [torch.kron(u @ u.mT, v @ v.mT) for u, v in zip(left, right, strict=True)]
        order = self.form.unpack(torch.arange(self.size, device=left.device).reshape(self.form.native))
        return torch.block_diag(*blocks)[order][:, order]
