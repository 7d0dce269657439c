"""Predictions: one frozen class for each task. Entropies are in nats.

Index legend: S samples, N examples, C classes, K outputs; dense outputs keep their other dimensions.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from typing_extensions import TypeVar

from whence.errors import BadOption, NotDefined
from whence.likelihoods import poisson_quantile
from whence.predictive.shown import Shown
from whence.tables import number


def entropy_of(probs: Tensor, dim: int = -1) -> Tensor:
    """−Σ p log p, with 0 log 0 = 0."""
    return -(torch.xlogy(probs, probs)).sum(dim)


def binary_entropy(p: Tensor) -> Tensor:
    return -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))


def check_level(level: float) -> float:
    if not 0 < level < 1:
        raise BadOption(f"level={level} is not between 0 and 1; 0.95 gives a 95% interval.")
    return level


@dataclass(frozen=True)
class _Lazy:
    """Values that are computed only on request."""

    covariance: Callable[[], Tensor] | None = None
    samples: Callable[[], Tensor] | None = None
    why_not: str = ""
    split: Callable[[bool], VarianceSplit] | None = None  # of the variance, where it is not computed from draws


class VarianceSplit(NamedTuple):
    """Variances in the shape of ``probs``, or covariances (N, C, C)."""

    total: Tensor  # of the label under the mean probabilities
    aleatoric: Tensor  # expected over draws
    epistemic: Tensor  # of the probabilities over draws


@dataclass(frozen=True, repr=False)
class _Probabilities(Shown, ABC):
    """Base of predictions of labels."""

    probs: Tensor  # (N, C), or (N, K) for binary labels
    logit_mean: Tensor  # in the shape of probs
    _aleatoric: Tensor | None = field(default=None, repr=False)
    _lazy: _Lazy = field(default=_Lazy(), repr=False)

    @property
    @abstractmethod
    def entropy(self) -> Tensor:
        """Total uncertainty."""

    @property
    def aleatoric(self) -> Tensor:
        """Expected entropy over draws."""
        if self._aleatoric is None:
            raise NotDefined(self._lazy.why_not)
        return self._aleatoric

    @property
    def epistemic(self) -> Tensor:
        """Mutual information between label and weights: entropy − aleatoric."""
        return self.entropy - self.aleatoric

    @functools.cached_property
    def logit_cov(self) -> Tensor:
        """Covariance of the logits (N, C, C)."""
        if self._lazy.covariance is None:
            raise NotDefined("the covariance of the logits is available only for outputs (N, C).")
        return self._lazy.covariance()

    @functools.cached_property
    def samples(self) -> Tensor:
        """Probabilities of each draw (S, N, C)."""
        if self._lazy.samples is None:
            raise NotDefined(self._lazy.why_not or "this prediction has no draws.")
        return self._lazy.samples()

    @abstractmethod
    def variance_split(self, full: bool = False) -> VarianceSplit:
        """Variance of the label's indicator, split as by Kwon et al. (2020): total = aleatoric + epistemic."""

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Central interval of each probability over the draws: (low, high)."""
        tail = (1 - check_level(level)) / 2
        low, high = quantiles(self.samples, (tail, 1 - tail))
        return low, high


@dataclass(frozen=True, repr=False)
class ClassificationPrediction(_Probabilities):
    """Class probabilities and their uncertainty."""

    class_dim: int = 1

    @property
    def labels(self) -> Tensor:
        """The most probable class."""
        return self.probs.argmax(self.class_dim)

    @property
    def confidence(self) -> Tensor:
        """The largest probability."""
        return self.probs.amax(self.class_dim)

    @property
    def entropy(self) -> Tensor:
        """Total uncertainty: entropy of the mean probabilities."""
        return entropy_of(self.probs, self.class_dim)

    def variance_split(self, full: bool = False) -> VarianceSplit:
        """diag(p̄) − p̄ p̄ᵀ = E[diag(p) − p pᵀ] + E[(p − p̄)(p − p̄)ᵀ] (Kwon et al. 2020, eq. 4); the diagonals.

        ``full`` gives the matrices (N, C, C). Needs draws: not for the probit and bridge links.
        """
        if self._lazy.split is not None:
            return self._lazy.split(full)
        draws = self.samples
        centre = draws.mean(0)
        if not full:
            epistemic = (draws - centre).square().mean(0)
            return VarianceSplit(centre * (1 - centre), (draws * (1 - draws)).mean(0), epistemic)
        if draws.dim() != 3:
            raise NotDefined("covariances of the classes are available only for outputs (N, C); omit full.")
        off = draws - centre
        epistemic = torch.einsum("snc,snd->ncd", off, off) / len(draws)
        second = torch.einsum("snc,snd->ncd", draws, draws) / len(draws)
        aleatoric = torch.diag_embed(centre) - second
        return VarianceSplit(
            torch.diag_embed(centre) - centre.unsqueeze(-1) * centre.unsqueeze(-2), aleatoric, epistemic
        )


@dataclass(frozen=True, repr=False)
class BinaryPrediction(_Probabilities):
    """Probability of 1 for each logit."""

    @property
    def labels(self) -> Tensor:
        """Whether 1 is more probable than 0."""
        return (self.probs > 0.5).long()

    @property
    def confidence(self) -> Tensor:
        """The larger of the two probabilities."""
        return torch.maximum(self.probs, 1 - self.probs)

    @property
    def entropy(self) -> Tensor:
        """Total uncertainty of each label (N, K)."""
        return binary_entropy(self.probs)

    def variance_split(self, full: bool = False) -> VarianceSplit:
        """p̄ (1 − p̄) = E[p (1 − p)] + Var[p] of each label."""
        if full:
            raise NotDefined("binary labels are independent given the draw; omit full.")
        if self._lazy.split is not None:
            return self._lazy.split(full)
        draws = self.samples
        centre = draws.mean(0)
        return VarianceSplit(centre * (1 - centre), (draws * (1 - draws)).mean(0), draws.var(0, correction=0))


@dataclass(frozen=True, repr=False)
class RegressionPrediction(Shown):
    """Mean and variance of the target: variance = aleatoric (noise) + epistemic (weights)."""

    mean: Tensor  # (N, K)
    aleatoric: Tensor  # (N, K)
    epistemic: Tensor  # (N, K)
    samples: Tensor | None = field(default=None, repr=False)  # means of each draw (S, N, K)
    noise_samples: Tensor | None = field(default=None, repr=False)  # noise variances of each draw
    _lazy: _Lazy = field(default=_Lazy(), repr=False)

    @property
    def variance(self) -> Tensor:
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        return self.variance.sqrt()

    @functools.cached_property
    def covariance(self) -> Tensor:
        """Epistemic covariance of the outputs (N, K, K)."""
        if self._lazy.covariance is None:
            raise NotDefined("the covariance of the outputs is available only for outputs (N, K).")
        return self._lazy.covariance()

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Central interval of the target: (low, high); of the mixture over draws if there are draws."""
        tail = (1 - check_level(level)) / 2
        if self.samples is None:
            z = math.sqrt(2) * torch.erfinv(torch.tensor(level, dtype=torch.float64)).item()
            return self.mean - z * self.std, self.mean + z * self.std
        noise = self.aleatoric if self.noise_samples is None else self.noise_samples
        return (
            mixture_quantile(self.samples, noise, self.mean, self.std, tail),
            mixture_quantile(self.samples, noise, self.mean, self.std, 1 - tail),
        )


@dataclass(frozen=True, repr=False)
class CountPrediction(Shown):
    """Counts: mean and variance of the target, of its rate, and of the rate's logarithm."""

    mean: Tensor  # (N, K): expected count
    epistemic: Tensor  # variance of the rate
    samples: Tensor = field(repr=False)  # rates of each draw (S, N, K)
    log_rate_mean: Tensor | None = None  # (N, K): of the network's outputs
    log_rate_variance: Tensor | None = None  # (N, K)

    @property
    def aleatoric(self) -> Tensor:
        """Expected variance of a Poisson count: its mean."""
        return self.mean

    @property
    def variance(self) -> Tensor:
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        return self.variance.sqrt()

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Central interval of the count under the mixture over draws: (low, high)."""
        tail = (1 - check_level(level)) / 2
        return self._quantile(tail), self._quantile(1 - tail)

    def _quantile(self, level: float) -> Tensor:
        rates = self.samples.double()
        top = poisson_quantile(rates.amax(0), torch.full_like(rates[0], 0.99999))
        low, high = torch.full_like(top, -1.0), top
        while bool((high - low > 1).any()):
            mid = ((low + high) / 2).floor()
            above = torch.special.gammaincc(mid + 1, rates).mean(0) >= level
            high, low = torch.where(above, mid, high), torch.where(above, low, mid)
        return high.to(self.mean.dtype)


@dataclass(frozen=True, repr=False)
class OutputPrediction(Shown):
    """Mean and covariance of the raw outputs, for a custom likelihood."""

    mean: Tensor  # (N, K)
    variance: Tensor  # (N, K), of the outputs: all of it epistemic
    samples: Tensor | None = field(default=None, repr=False)
    _lazy: _Lazy = field(default=_Lazy(), repr=False)

    @property
    def epistemic(self) -> Tensor:
        return self.variance

    @functools.cached_property
    def covariance(self) -> Tensor:
        if self._lazy.covariance is None:
            raise NotDefined("the covariance of the outputs is available only for outputs (N, K).")
        return self._lazy.covariance()


@dataclass(frozen=True, repr=False)
class JointPrediction:
    """One Gaussian over the outputs of all inputs together."""

    mean: Tensor  # (N, C)
    covariance: Tensor  # (N · C, N · C), ordered by example

    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Outputs of all inputs drawn together (S, N, C)."""
        from whence.linalg.dense import psd_root

        root = psd_root(self.covariance)
        device = root.device if generator is None else generator.device
        noise = torch.randn(num_samples, len(root), generator=generator, dtype=root.dtype, device=device)
        return self.mean + (noise.to(root.device) @ root.mT).reshape(num_samples, *self.mean.shape)

    def __repr__(self) -> str:
        size, std = len(self.mean), self.covariance.diagonal().clamp(min=0).sqrt()
        outputs = self.mean[0].numel() if size else 0
        return f"JointPrediction({size:,} inputs, {outputs:,} outputs, mean std {number(float(std.mean()))})"


Prediction = ClassificationPrediction | BinaryPrediction | RegressionPrediction | CountPrediction | OutputPrediction
# The kind of prediction that a posterior makes, for type checkers; one of all kinds where that is not known.
P_co = TypeVar("P_co", bound=Prediction, covariant=True, default=Prediction)


def example_dim(field: str) -> int:
    """Which dimension of a prediction's field counts examples."""
    return 1 if field in ("samples", "noise_samples") else 0


def quantiles(samples: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Quantiles over the first dimension, with linear interpolation (torch.quantile has a size limit)."""
    ordered = samples.sort(0).values
    places = torch.tensor(levels, dtype=torch.float64) * (len(ordered) - 1)
    low = places.floor().long()
    part = (places - low).to(samples.dtype)
    high = (low + 1).clamp(max=len(ordered) - 1)
    return torch.stack(
        [ordered[a] * (1 - t) + ordered[b] * t for a, b, t in zip(low, high, part.to(samples.device), strict=True)]
    )


def mixture_quantile(means: Tensor, noise: Tensor, centre: Tensor, spread: Tensor, level: float) -> Tensor:
    """Quantile of a mixture of normals over the draws, by bisection."""
    low, high = centre - 12 * spread, centre + 12 * spread
    scale = noise.sqrt()
    for _ in range(60):
        mid = (low + high) / 2
        below = torch.special.ndtr((mid - means) / scale).mean(0) < level
        low, high = torch.where(below, mid, low), torch.where(below, high, mid)
    return (low + high) / 2
