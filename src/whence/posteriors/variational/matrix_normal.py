"""Matrix-normal weights: W = M + L_U Z L_Vᵀ, so that Cov(W) = U ⊗ V, as the Laplace posterior's Kronecker blocks.

Index legend: S draws, E pairs (groups), O outputs, D inputs, and one more for the bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.curvature.blocks import MatrixForm, Param
from whence.errors import TooLarge
from whence.posteriors.variational.blocks import OnePass, VariationalBlock, inverse_softplus, normal, softplus
from whence.posteriors.variational.priors import HALF_LOG_2PI, precision_of
from whence.priors import PriorPrecision

FACTOR_LIMIT = 2**30  # bytes of one factor


class MatrixPass(OnePass):
    """Both factors, computed once."""

    def __init__(self, block: MatrixNormal, generator: torch.Generator | None) -> None:
        self.block, self.generator = block, generator
        self.left, self.right = block.factors()
        self._drawn: dict[str, Tensor] | None = None

    def weight(self, name: str) -> Tensor:
        if self._drawn is None:
            noise = normal(self.block.form.native, self.left, self.generator)
            moved = self.block.scatter(self.block.form.unpack(self.left @ noise @ self.right.mT))
            self._drawn = {n: self.block.loc(n) + moved[n] for n in self.block.names}
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
                f"(limit {FACTOR_LIMIT / 2**30:.0f} GiB). Use family='mean_field', or leave the layer out by layers=."
            )
        self.left = nn.Parameter(self._eye(pairs, outputs, like, inverse_softplus(1.0)))
        self.right = nn.Parameter(self._eye(pairs, inputs, like, inverse_softplus(initial)))

    @staticmethod
    def _eye(pairs: int, size: int, like: Tensor, value: float) -> Tensor:
        return value * torch.eye(size, dtype=like.dtype, device=like.device).expand(pairs, size, size).clone()

    def factors(self) -> tuple[Tensor, Tensor]:
        """L_U [E, O, O] and L_V [E, D, D]: lower triangles with softplus on the diagonal."""
        left, right = (
            raw.tril(-1) + torch.diag_embed(softplus(raw.diagonal(dim1=-2, dim2=-1))) for raw in (self.left, self.right)
        )
        return left, right

    def _native(self, values: Mapping[str, Tensor]) -> Tensor:
        return self.form.pack(self.gather(values))

    def _native_variance(self, left: Tensor, right: Tensor) -> Tensor:
        """U_ii V_jj, [E, O, D]."""
        return left.square().sum(-1).unsqueeze(-1) * right.square().sum(-1).unsqueeze(-2)

    def _half_log_det(self, left: Tensor, right: Tensor) -> Tensor:
        """½ log det(U ⊗ V) = D log det L_U + O log det L_V."""
        logs = [f.diagonal(dim1=-2, dim2=-1).log().sum() for f in (left, right)]
        return right.shape[-1] * logs[0] + left.shape[-1] * logs[1]

    def variance(self) -> dict[str, Tensor]:
        return self.scatter(self.form.unpack(self._native_variance(*self.factors())))

    def begin(self, generator: torch.Generator | None) -> OnePass:
        return MatrixPass(self, generator)

    def sample(self, count: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        left, right = self.factors()
        noise = normal((count, *self.form.native), left, generator)
        moved = self.scatter(self.form.unpack(left @ noise @ right.mT))
        return {n: self.loc(n) + moved[n] for n in self.names}

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
        precision = self._native(
            {
                p.name: torch.as_tensor(precision_of(prior, p.name, left), dtype=left.dtype, device=left.device).expand(
                    p.shape
                )
                for p in self.params
            }
        )
        second = self._native_variance(left, right) + self._native(self.mean()).square()
        each = precision * second - 1 - precision.log()
        return 0.5 * each.sum() - self._half_log_det(left, right)

    def covariance(self) -> Tensor:
        left, right = self.factors()
        blocks = [torch.kron(u @ u.mT, v @ v.mT) for u, v in zip(left, right, strict=True)]
        order = self.form.unpack(torch.arange(self.size, device=left.device).reshape(self.form.native))
        return torch.block_diag(*blocks)[order][:, order]
