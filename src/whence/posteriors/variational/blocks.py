"""Gaussian blocks of weights: the base class of every family, and independent weights.

Index legend: S draws, P weights.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from whence.engine.randomness import normal
from whence.posteriors.gaussian import Covariance
from whence.posteriors.variational.priors import HALF_LOG_2PI, ScaleMixture, precision_of
from whence.priors import PriorPrecision
from whence.recording.blocks import Block, GradientSource, Param, owner_of

STD_FLOOR = 1e-8  # lower bound of σ for σ² = α μ², so that a weight of exactly 0 has a density


def inverse_softplus(value: float) -> float:
    """ρ with softplus(ρ) = log(1 + exp ρ) = value."""
    return value + math.log(-math.expm1(-value))


class BlockPass:
    """The randomness of a block in one forward pass, with at most one draw of each weight."""

    @abstractmethod
    def weight(self, name: str) -> Tensor:
        """The pass's one draw of a parameter."""

    def moments(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Mean and standard deviation, if the entries are independent given the pass; else None."""
        return None

    def variance(self, name: str) -> Tensor:
        """The square of the standard deviation from :meth:`moments`."""
        moments = self.moments(name)
        assert moments is not None
        return moments[1].square()

    def linear(self, name: str, x: Tensor, bias: str | None) -> Tensor | None:
        """A draw of W x (+ b) for each row separately, if the block implements it; else None."""
        return None


class VariationalBlock(nn.Module):
    """Parameters with a joint Gaussian, independent of all other blocks."""

    structure: str

    def __init__(self, params: Sequence[Param], values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.params = tuple(params)
        self.vector = Block("", "", self.params, GradientSource.EXAMPLE)  # parameters ↔ one vector [..., P]
        self.locs = nn.ParameterList([nn.Parameter(values[p.name].detach().clone()) for p in params])

    @property
    def names(self) -> list[str]:
        return [p.name for p in self.params]

    def loc(self, name: str) -> nn.Parameter:
        return self.locs[self.names.index(name)]

    @property
    def layer(self) -> str:
        """The name of its module, or of the parameter if the network itself owns it."""
        return owner_of(self.names[0]) or self.names[0]

    @property
    def size(self) -> int:
        return self.vector.size

    def mean(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.locs, strict=True))

    def around_mean(self, away: Tensor) -> dict[str, Tensor]:
        """Mean + deviations [..., P], by parameter [..., *shape]."""
        moved = self.vector.scatter(away)
        return {n: loc + moved[n] for n, loc in self.mean().items()}

    def flat_precision(self, prior: PriorPrecision, like: Tensor) -> Tensor:
        """Prior precision of every weight, [P]."""
        given = {n: torch.as_tensor(precision_of(prior, n, like), dtype=like.dtype) for n in self.names}
        return self.vector.gather({p.name: given[p.name].to(like.device).expand(p.shape) for p in self.params})

    @abstractmethod
    def variance(self) -> dict[str, Tensor]:
        """Marginal variance of every weight."""

    @abstractmethod
    def begin(self, generator: torch.Generator | None) -> BlockPass:
        """The randomness of one forward pass."""

    @abstractmethod
    def sample(self, count: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Draws [S, *shape] by parameter, differentiable in the variational parameters."""

    @abstractmethod
    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        """log q of draws [S, *shape], [S]."""

    @abstractmethod
    def kl(self, prior: PriorPrecision) -> Tensor:
        """KL(q ‖ p) for the Gaussian prior, summed over weights, in closed form."""

    @abstractmethod
    def covariance(self) -> Tensor:
        """The dense covariance [P, P], in the order of ``params``."""

    def parts_of_covariance(self) -> Covariance:
        """The covariance for the linearised predictive; independent weights by default."""
        return Covariance(self.variance())

    def kl_by_draws(self, prior: ScaleMixture, count: int, generator: torch.Generator | None) -> Tensor:
        """log q(w) − log p(w) of each draw, [S]: their mean estimates the KL (eq. 7 of the slides)."""
        values = self.sample(count, generator)
        log_p = sum(self.free(n, prior.log_prob(v)).flatten(1).sum(1) for n, v in values.items())
        return self.log_prob(values) - log_p

    def free(self, name: str, values: Tensor) -> Tensor:
        """``values`` [..., *shape] with zeros at fixed entries."""
        return values


class ElementPass(BlockPass):
    """Mean and standard deviation, computed once; a draw on request."""

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
    """The closed form for σ = softplus(ρ) with a hand-written backward pass, since every training step needs it."""

    @staticmethod
    def forward(ctx: Any, loc: Tensor, rho: Tensor, precision: float | Tensor) -> Tensor:
        std = F.softplus(rho)
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
        std = F.softplus(self.scale)
        return std if self.mask is None else std * self.mask

    def variance(self) -> dict[str, Tensor]:
        return {self.params[0].name: self.std().square()}

    def begin(self, generator: torch.Generator | None) -> BlockPass:
        return ElementPass(self.locs[0], self.std(), generator)

    def sample(self, count: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        loc = self.locs[0]
        return {self.params[0].name: loc + self.std() * normal((count, *loc.shape), loc, generator)}

    def free(self, name: str, values: Tensor) -> Tensor:
        return values if self.mask is None else values * self.mask

    def _safe_std(self) -> Tensor:
        """The standard deviation with zeros replaced by 1; their terms are omitted."""
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
    """σ² = α μ² with α = softplus(a), as in the slides: ``initial`` is the standard deviation relative to μ."""

    structure = "alpha"

    def _start(self, initial: float) -> float:
        return inverse_softplus(initial**2)

    def std(self) -> Tensor:
        """√(α μ² + floor²)."""
        std = (F.softplus(self.scale) * self.locs[0].square() + STD_FLOOR**2).sqrt()
        return std if self.mask is None else std * self.mask


def joinable(blocks: Sequence[VariationalBlock]) -> list[MeanField]:
    """The blocks whose standard deviations and KL can be computed together."""
    return [b for b in blocks if type(b) is MeanField and b.mask is None]


def begin_joined(blocks: Sequence[MeanField], generator: torch.Generator | None) -> list[BlockPass]:
    """One pass for each block; σ and σ² of all blocks are computed by three operations."""
    std = F.softplus(torch.cat([b.scale.flatten() for b in blocks]))
    sizes = [b.size for b in blocks]
    pieces = zip(blocks, std.split(sizes), (std * std).split(sizes), strict=True)
    return [
        ElementPass(b.locs[0], s.view(b.params[0].shape), generator, v.view(b.params[0].shape)) for b, s, v in pieces
    ]


def kl_joined(blocks: Sequence[MeanField], prior: PriorPrecision) -> Tensor | None:
    """The sum of their KLs in one computation, if all have the same prior precision."""
    numbers = {prior.values[b.params[0].name] for b in blocks if not isinstance(prior.values[b.params[0].name], Tensor)}
    if len(numbers) != 1 or any(isinstance(prior.values[b.params[0].name], Tensor) for b in blocks):
        return None
    loc = torch.cat([b.locs[0].flatten() for b in blocks])
    rho = torch.cat([b.scale.flatten() for b in blocks])
    value: Tensor = SoftplusKl.apply(loc, rho, numbers.pop())  # type: ignore[no-untyped-call]
    return value
