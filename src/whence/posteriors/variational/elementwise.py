"""Independent weights: σ = softplus(ρ), or σ² = α μ² with α = softplus(a)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from whence.curvature.blocks import Param
from whence.posteriors.variational.blocks import OnePass, VariationalBlock, inverse_softplus, normal, softplus
from whence.posteriors.variational.priors import HALF_LOG_2PI, precision_of
from whence.priors import PriorPrecision

STD_FLOOR = 1e-8  # of the α form, so that a weight of exactly 0 has a density


class ElementPass(OnePass):
    """Mean and standard deviation, computed once; a draw if somebody asks."""

    def __init__(self, mean: Tensor, std: Tensor, generator: torch.Generator | None, var: Tensor | None = None) -> None:
        self.mean, self.std, self.generator, self._var = mean, std, generator, var
        self._drawn: Tensor | None = None

    def weight(self, name: str) -> Tensor:
        if self._drawn is None:
            self._drawn = self.mean + self.std * normal(self.mean.shape, self.mean, self.generator)
        return self._drawn

    def moments(self, name: str) -> tuple[Tensor, Tensor]:
        return self.mean, self.std

    def variance(self, name: str) -> Tensor:
        return self.std.square() if self._var is None else self._var


class SoftplusKl(torch.autograd.Function):
    """The closed form for σ = softplus(ρ) without a graph of its own: every step of training needs it."""

    @staticmethod
    def forward(ctx: Any, loc: Tensor, rho: Tensor, precision: float | Tensor) -> Tensor:
        std = softplus(rho)
        ctx.save_for_backward(loc, rho, std)
        ctx.precision = precision
        second = (std * std).addcmul_(loc, loc)
        if isinstance(precision, Tensor):
            return 0.5 * ((precision * second).sum() - precision.log().sum() - loc.numel()) - std.log().sum()
        return 0.5 * (precision * second.sum() - loc.numel() * (1 + math.log(precision))) - std.log().sum()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """δ μ, and (δ σ − 1/σ) σ′ with σ′ the logistic function of ρ."""
        loc, rho, std = ctx.saved_tensors
        slope = (ctx.precision * std).sub_(std.reciprocal()).mul_(torch.sigmoid(rho)).mul_(grad)
        return (ctx.precision * loc).mul_(grad), slope, None


class MeanField(VariationalBlock):
    """One parameter with independent entries (eq. 8 of the slides)."""

    structure = "mean_field"

    def __init__(self, param: Param, values: Mapping[str, Tensor], initial: float, free: Tensor | None = None) -> None:
        super().__init__([param], values)
        self.scale = nn.Parameter(torch.full_like(self.locs[0], self._start(initial)))
        self.mask: Tensor | None
        self.register_buffer("mask", free)

    def _start(self, initial: float) -> float:
        return inverse_softplus(initial)

    def std(self) -> Tensor:
        """σ = softplus(ρ); 0 at fixed entries."""
        std = softplus(self.scale)
        return std if self.mask is None else std * self.mask

    def variance(self) -> dict[str, Tensor]:
        return {self.params[0].name: self.std().square()}

    def begin(self, generator: torch.Generator | None) -> OnePass:
        return ElementPass(self.locs[0], self.std(), generator)

    def sample(self, count: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        loc = self.locs[0]
        return {self.params[0].name: loc + self.std() * normal((count, *loc.shape), loc, generator)}

    def free(self, name: str, values: Tensor) -> Tensor:
        return values if self.mask is None else values * self.mask

    def _safe_std(self) -> Tensor:
        """With 1 in the place of the zeros, whose terms are left out."""
        return self.std() if self.mask is None else torch.where(self.mask, self.std(), 1.0)

    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        value, std = values[self.params[0].name], self._safe_std()
        each = -0.5 * ((value - self.locs[0]) / std).square() - std.log() - HALF_LOG_2PI
        return self.free("", each).flatten(1).sum(1)

    def kl(self, prior: PriorPrecision) -> Tensor:
        """Σ ½ [δ (σ² + μ²) − 1 − log δ] − log σ."""
        precision = precision_of(prior, self.params[0].name, self.locs[0])
        if self.mask is None and type(self) is MeanField:
            value: Tensor = SoftplusKl.apply(self.locs[0], self.scale, precision)  # type: ignore[no-untyped-call]
            return value
        return self._kl_of(precision)

    def _kl_of(self, precision: float | Tensor) -> Tensor:
        loc, std = self.locs[0], self._safe_std()
        log_precision = precision.log() if isinstance(precision, Tensor) else math.log(precision)
        each = 0.5 * (precision * (std.square() + loc.square()) - 1 - log_precision) - std.log()
        return self.free("", each).sum()

    def covariance(self) -> Tensor:
        return torch.diag(self.std().square().flatten())


class Alpha(MeanField):
    """σ² = α μ² with α = softplus(a), as the slides have it: ``initial`` is the standard deviation relative to μ."""

    structure = "alpha"

    def _start(self, initial: float) -> float:
        return inverse_softplus(initial**2)

    def std(self) -> Tensor:
        """√(α μ² + floor²)."""
        std = (softplus(self.scale) * self.locs[0].square() + STD_FLOOR**2).sqrt()
        return std if self.mask is None else std * self.mask


def joined(blocks: Sequence[VariationalBlock]) -> list[MeanField]:
    """Those whose standard deviations and KL can be computed in one go."""
    return [b for b in blocks if type(b) is MeanField and b.mask is None]


def begin_joined(blocks: Sequence[MeanField], generator: torch.Generator | None) -> list[OnePass]:
    """One pass for each block; σ and σ² of all of them by three operations."""
    std = softplus(torch.cat([b.scale.flatten() for b in blocks]))
    sizes = [b.size for b in blocks]
    pieces = zip(blocks, std.split(sizes), (std * std).split(sizes), strict=True)
    return [
        ElementPass(b.locs[0], s.view(b.params[0].shape), generator, v.view(b.params[0].shape)) for b, s, v in pieces
    ]


def kl_joined(blocks: Sequence[MeanField], prior: PriorPrecision) -> Tensor | None:
    """The sum of their KLs in one go, where one number is the precision of all."""
    numbers = {prior.values[b.params[0].name] for b in blocks if not isinstance(prior.values[b.params[0].name], Tensor)}
    if len(numbers) != 1 or any(isinstance(prior.values[b.params[0].name], Tensor) for b in blocks):
        return None
    loc = torch.cat([b.locs[0].flatten() for b in blocks])
    rho = torch.cat([b.scale.flatten() for b in blocks])
    value: Tensor = SoftplusKl.apply(loc, rho, numbers.pop())  # type: ignore[no-untyped-call]
    return value
