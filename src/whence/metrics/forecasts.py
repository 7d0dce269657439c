"""Predictive distributions of numbers as the metrics read them: flat and in float64.

Index legend: N elements that count, S draws.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from whence.errors import BadData, BadOption, NotDefined
from whence.predictive.predictions import CountPrediction, mixture_quantile, quantiles

PIECE = 2**22  # numbers that are held at once


@dataclass(frozen=True)
class Forecast(ABC):
    """What is predicted for each element."""

    mean: Tensor  # [N]

    def log_losses(self, y: Tensor) -> Tensor:
        """−log density of the targets, [N]."""
        raise BadData(f"{self.kind} have no density, so no nll; use crps or mae.")

    @abstractmethod
    def crps(self, y: Tensor, fair: bool) -> Tensor:
        """∫ (F(x) − 1[y ≤ x])² dx of each element, [N]."""

    @abstractmethod
    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Central interval: (low, high), [N] each."""

    @property
    def kind(self) -> str:
        return "these predictions"


@dataclass(frozen=True)
class Point(Forecast):
    """One number each."""

    def crps(self, y: Tensor, fair: bool) -> Tensor:
        raise BadData("point predictions have no distribution, so no crps; use mae, which it would equal.")

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        raise BadData("point predictions have no interval; pass a pair (low, high), draws or a distribution.")

    @property
    def kind(self) -> str:
        return "point predictions"


@dataclass(frozen=True)
class Draws(Forecast):
    """Draws of the target itself."""

    draws: Tensor  # [S, N]

    def crps(self, y: Tensor, fair: bool) -> Tensor:
        """E|X − y| − ½ E|X − X'|, unbiased in S (Ferro 2014) or of the empirical distribution; O(S log S)."""
        count = len(self.draws)
        if fair and count < 2:
            raise BadOption("crps of one draw has no unbiased estimate; pass fair=False, or more draws.")
        rank = 2 * torch.arange(1, count + 1, dtype=torch.float64, device=y.device) - count - 1
        pairs = count * (count - 1) if fair else count * count
        return (self.draws - y).abs().mean(0) - (rank @ self.draws.sort(0).values) / pairs

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        tail = (1 - level) / 2
        low, high = quantiles(self.draws, (tail, 1 - tail))
        return low, high

    @property
    def kind(self) -> str:
        return "plain draws"


@dataclass(frozen=True)
class Normals(Forecast):
    """A mixture of normals over draws; one normal where S = 1."""

    std: Tensor  # [N] of the mixture
    means: Tensor  # [S, N]
    variances: Tensor  # [S, N] or [1, N]

    def log_losses(self, y: Tensor) -> Tensor:
        log_p = -0.5 * ((y - self.means).square() / self.variances + (2 * math.pi * self.variances).log())
        return math.log(len(self.means)) - log_p.logsumexp(0)

    def crps(self, y: Tensor, fair: bool) -> Tensor:
        """Closed form for mixtures of normals (Grimit et al. 2006, Q. J. R. Meteorol. Soc. 132, eq. 5)."""
        count = len(self.means)
        from_target = _folded(y - self.means, self.variances).mean(0)
        between = torch.zeros_like(y)
        variances = self.variances.expand_as(self.means)
        for s in range(count):
            between += _folded(self.means[s] - self.means[: s + 1], variances[s] + variances[: s + 1]).sum(0) * 2
            between -= _folded(torch.zeros_like(y), 2 * variances[s])
        return from_target - between / (2 * count * count)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        tail = (1 - level) / 2
        if len(self.means) == 1:
            z = float(torch.special.ndtri(torch.tensor(1 - tail, dtype=torch.float64)))
            return self.mean - z * self.std, self.mean + z * self.std
        return (
            mixture_quantile(self.means, self.variances, self.mean, self.std, tail),
            mixture_quantile(self.means, self.variances, self.mean, self.std, 1 - tail),
        )


def _folded(mean: Tensor, variance: Tensor) -> Tensor:
    """E|X| of a normal."""
    std = variance.sqrt()
    ratio = mean / std
    return 2 * std * (-0.5 * ratio.square()).exp() / math.sqrt(2 * math.pi) + mean * torch.special.erf(
        ratio / math.sqrt(2)
    )


@dataclass(frozen=True)
class Poissons(Forecast):
    """A mixture of Poisson counts over draws of the rate."""

    rates: Tensor  # [S, N]

    def log_losses(self, y: Tensor) -> Tensor:
        log_p = torch.xlogy(y, self.rates) - self.rates - torch.lgamma(y + 1)
        return math.log(len(self.rates)) - log_p.logsumexp(0)

    def crps(self, y: Tensor, fair: bool) -> Tensor:
        """Σ_k (F(k) − 1[y ≤ k])²; the rest beyond twelve standard deviations is left out."""
        parts = []
        for rates, target in self._pieces(y):
            top = rates.amax()
            last = int(max(float(top + 12 * top.sqrt() + 40), float(target.max()))) + 1
            total = torch.zeros_like(target)
            for start in range(0, last, 256):
                k = torch.arange(start, min(start + 256, last), dtype=torch.float64, device=y.device).unsqueeze(1)
                below = torch.stack([torch.special.gammaincc(k + 1, rate) for rate in rates]).mean(0)  # [k, N]
                total += (below - (target <= k).double()).square().sum(0)
            parts.append(total)
        return torch.cat(parts)

    def _pieces(self, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        step = max(1, PIECE // (256 * len(self.rates)))
        yield from zip(self.rates.split(step, 1), y.split(step), strict=True)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        return CountPrediction(self.mean, self.mean, self.rates).interval(level)


@dataclass(frozen=True)
class Other(Forecast):
    """Any distribution of torch: what it knows about itself."""

    distribution: Distribution
    keep: Tensor  # [N] elements that count, of its flattened batch

    def log_losses(self, y: Tensor) -> Tensor:
        return -self._ask("log_prob", self._spread(y)).reshape(-1)[self.keep].double()

    def crps(self, y: Tensor, fair: bool) -> Tensor:
        """∫₀ᶠ 2τ (y − q) dτ + ∫ᶠ¹ 2(1 − τ)(q − y) dτ with F = F(y), by Gauss-Legendre.

        Each is cut in half and integrated in the root of the distance from its end, where q may be singular.
        """
        nodes, weights = np.polynomial.legendre.leggauss(48)
        at = self._ask("cdf", self._spread(y)).double().reshape(-1)[self.keep].clamp(0, 1)
        total = torch.zeros_like(y)
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            for part in (node**2 / 2, 1 - node**2 / 2):
                low, high = at * part, (1 - at) * part
                total += 2 * weight * node * at * low * (y - self._quantile(low))
                total += 2 * weight * node * (1 - at) * high * (self._quantile(1 - high) - y)
        return total

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        tail = torch.full_like(self.mean, (1 - level) / 2)
        return self._quantile(tail), self._quantile(1 - tail)

    def _spread(self, y: Tensor) -> Tensor:
        """Targets in the shape of the distribution, its mean where they do not count."""
        filled = self.distribution.mean.reshape(-1).double().clone()
        filled[self.keep] = y
        return filled.reshape(self.distribution.batch_shape).to(self.distribution.mean.dtype)

    def _quantile(self, share: Tensor) -> Tensor:
        full = torch.full((self.distribution.batch_shape.numel(),), 0.5, dtype=torch.float64, device=share.device)
        full[self.keep] = share
        shaped = full.reshape(self.distribution.batch_shape)
        return self._ask("icdf", shaped).reshape(-1)[self.keep].double()

    def _ask(self, method: str, value: Tensor) -> Tensor:
        name = type(self.distribution).__name__
        try:
            found: Tensor = getattr(self.distribution, method)(value)
        except NotImplementedError as error:
            raise NotDefined(f"torch's {name} has no {method}; pass draws, {name}.sample((1000,)).") from error
        except ValueError as error:
            raise BadData(f"some targets lie outside the support of the {name}; mask them.") from error
        return found
