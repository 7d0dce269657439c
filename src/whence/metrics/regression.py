"""Reading predictions of numbers, flat and in float64; their errors, scores and intervals.

Index legend: N scored elements, S draws.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal, Poisson

from whence.errors import BadData, BadOption, NotDefined, fraction
from whence.metrics.elements import ArrayLike, Common, Elements, MetricOptions, elements, finite, squeezed, tensor
from whence.metrics.intervals import Estimate, normal_quantile
from whence.metrics.means import mean, share
from whence.predictive.predictions import (
    CountPrediction,
    OutputPrediction,
    RegressionPrediction,
    mixture_quantile,
    quantiles,
)

CHUNK = 2**22  # numbers in memory at once


def rmse(prediction: Any, targets: ArrayLike, **common: Unpack[Common]) -> Estimate:
    """Root mean squared error of the predicted mean."""
    found, y, members = read_numbers("rmse", prediction, targets, common)
    return mean("rmse", (found.mean - y).square(), members, root=True)


def mae(prediction: Any, targets: ArrayLike, **common: Unpack[Common]) -> Estimate:
    """Mean absolute error of the predicted mean."""
    found, y, members = read_numbers("mae", prediction, targets, common)
    return mean("mae", (found.mean - y).abs(), members, (0.0, math.inf))


def crps(prediction: Any, targets: ArrayLike, *, fair: bool = True, **common: Unpack[Common]) -> Estimate:
    """Continuous ranked probability score (Gneiting & Raftery 2007, eq. 20), in the unit of the targets.

    Exact for normals and Poissons and their mixtures. For draws: unbiased for any number of draws, or, with
    ``fair=False``, of their empirical distribution.
    """
    found, y, members = read_numbers("crps", prediction, targets, common)
    return mean("crps", found.crps(y, fair), members, (0.0, math.inf))


def coverage(prediction: Any, targets: ArrayLike, *, of: float = 0.95, **common: Unpack[Common]) -> Estimate:
    """Share of targets inside the central interval of probability ``of``, or inside a given pair (low, high)."""
    low, high, y, members = _read_interval("coverage", prediction, targets, of, common)
    return share("coverage", (low <= y) & (y <= high), members)


def width(prediction: Any, targets: ArrayLike | None = None, *, of: float = 0.95, **common: Unpack[Common]) -> Estimate:
    """Mean width of the central interval of probability ``of``; only the shape of the targets matters."""
    low, high, _, members = _read_interval("width", prediction, targets, of, common)
    return mean("width", high - low, members, (0.0, math.inf))


def interval_score(prediction: Any, targets: ArrayLike, *, of: float = 0.95, **common: Unpack[Common]) -> Estimate:
    """Width plus 2/α times the distance of a target outside, α = 1 − of (Gneiting & Raftery 2007, eq. 43)."""
    low, high, y, members = _read_interval("interval_score", prediction, targets, of, common)
    outside = (low - y).clamp(min=0) + (y - high).clamp(min=0)
    return mean("interval_score", high - low + 2 / (1 - of) * outside, members, (0.0, math.inf))


# Predictive distributions


@dataclass(frozen=True)
class Forecast(ABC):
    """The predictive distribution of each element."""

    mean: Tensor  # [N]

    kind: ClassVar[str] = "these predictions"

    def log_losses(self, y: Tensor) -> Tensor:
        """−log density of the targets, [N]."""
        raise BadData(f"{self.kind} have no density, so no nll; use crps or mae.")

    @abstractmethod
    def crps(self, y: Tensor, fair: bool) -> Tensor:
        """∫ (F(x) − 1[y ≤ x])² dx of each element, [N]."""

    @abstractmethod
    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Central interval: (low, high), [N] each."""


@dataclass(frozen=True)
class PointForecast(Forecast):
    """One number per element."""

    kind: ClassVar[str] = "point predictions"

    def crps(self, y: Tensor, fair: bool) -> Tensor:
        raise BadData("crps needs a distribution; for point predictions use mae, which it would equal.")

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        raise BadData("point predictions have no interval; pass a pair (low, high), draws or a distribution.")


@dataclass(frozen=True)
class EmpiricalForecast(Forecast):
    """Draws of the target itself."""

    draws: Tensor  # [S, N]

    kind: ClassVar[str] = "draws"

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


@dataclass(frozen=True)
class NormalForecast(Forecast):
    """A mixture of normals over draws; a single normal if S = 1."""

    std: Tensor  # [N] of the mixture
    means: Tensor  # [S, N]
    variances: Tensor  # [S, N] or [1, N]

    def log_losses(self, y: Tensor) -> Tensor:
        log_p = -0.5 * ((y - self.means).square() / self.variances + (2 * math.pi * self.variances).log())
        return math.log(len(self.means)) - log_p.logsumexp(0)

    def crps(self, y: Tensor, fair: bool) -> Tensor:
        """Closed form for mixtures of normals (Grimit et al. 2006, Q. J. R. Meteorol. Soc. 132, eq. 5)."""
        count = len(self.means)
        from_target = _mean_absolute(y - self.means, self.variances).mean(0)
        between = torch.zeros_like(y)
        variances = self.variances.expand_as(self.means)
        for s in range(count):
            pairs = _mean_absolute(self.means[s] - self.means[: s + 1], variances[s] + variances[: s + 1])
            between += pairs.sum(0) * 2
            between -= _mean_absolute(torch.zeros_like(y), 2 * variances[s])
        return from_target - between / (2 * count * count)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        tail = (1 - level) / 2
        if len(self.means) == 1:
            z = normal_quantile(1 - tail)
            return self.mean - z * self.std, self.mean + z * self.std
        low, high = (mixture_quantile(self.means, self.variances, self.mean, self.std, q) for q in (tail, 1 - tail))
        return low, high


def _mean_absolute(mean: Tensor, variance: Tensor) -> Tensor:
    """E|X| of a normal."""
    std = variance.sqrt()
    z = mean / std
    density = 2 * std * (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return density + mean * torch.special.erf(z / math.sqrt(2))


@dataclass(frozen=True)
class PoissonForecast(Forecast):
    """A mixture of Poisson counts over draws of the rate."""

    rates: Tensor  # [S, N]

    def log_losses(self, y: Tensor) -> Tensor:
        log_p = torch.xlogy(y, self.rates) - self.rates - torch.lgamma(y + 1)
        return math.log(len(self.rates)) - log_p.logsumexp(0)

    def crps(self, y: Tensor, fair: bool) -> Tensor:
        """Σ_k (F(k) − 1[y ≤ k])², up to twelve standard deviations."""
        parts, step = [], max(1, CHUNK // (256 * len(self.rates)))
        for rates, target in zip(self.rates.split(step, 1), y.split(step), strict=True):
            top = rates.amax()
            last = int(max(float(top + 12 * top.sqrt() + 40), float(target.max()))) + 1
            total = torch.zeros_like(target)
            for start in range(0, last, 256):
                k = torch.arange(start, min(start + 256, last), dtype=torch.float64, device=y.device).unsqueeze(1)
                below = torch.stack([torch.special.gammaincc(k + 1, rate) for rate in rates]).mean(0)  # [k, N]
                total += (below - (target <= k).double()).square().sum(0)
            parts.append(total)
        return torch.cat(parts)

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        return CountPrediction(self.mean, self.mean, self.rates).interval(level)


@dataclass(frozen=True)
class DistributionForecast(Forecast):
    """Any torch distribution that implements ``log_prob``, ``cdf`` and ``icdf``."""

    distribution: Distribution
    keep: Tensor  # [N] scored elements of its flattened batch

    def log_losses(self, y: Tensor) -> Tensor:
        return -self._call("log_prob", y, self.distribution.mean)

    def crps(self, y: Tensor, fair: bool) -> Tensor:
        """∫₀ᶠ 2τ (y − q) dτ + ∫ᶠ¹ 2(1 − τ)(q − y) dτ with F = F(y), by Gauss-Legendre.

        Each is split in half and integrated in the root of the distance from its end, where q may be singular.
        """
        nodes, weights = np.polynomial.legendre.leggauss(48)
        at = self.cdf(y)
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

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y ≤ y), [N]."""
        return self._call("cdf", y, self.distribution.mean).clamp(0, 1)

    def _quantile(self, share: Tensor) -> Tensor:
        half = torch.full(self.distribution.batch_shape, 0.5, dtype=torch.float64, device=share.device)
        return self._call("icdf", share, half)

    def _call(self, method: str, values: Tensor, elsewhere: Tensor) -> Tensor:
        """A method of the distribution at values [N], in float64; ``elsewhere`` for elements that are not scored."""
        full = elsewhere.reshape(-1).double().clone()
        full[self.keep] = values
        name = type(self.distribution).__name__
        try:
            found = getattr(self.distribution, method)(full.reshape(self.distribution.batch_shape).to(elsewhere.dtype))
        except NotImplementedError as error:
            raise NotDefined(f"torch's {name} has no {method}; pass draws, {name}.sample((1000,)).") from error
        except ValueError as error:
            raise BadData(f"some targets are outside the support of the {name}; mask them.") from error
        return found.reshape(-1)[self.keep].double()


# Reading


def read_numbers(
    metric: str, prediction: Any, targets: ArrayLike, common: Mapping[str, Any]
) -> tuple[Forecast, Tensor, Elements]:
    """The forecast and the targets [N] of the scored elements."""
    given = tensor(targets, "targets")
    if given.dim() == 0:
        raise BadData("targets need an example dimension: N numbers.")
    device = _device(prediction, given)
    members = elements(given.shape, MetricOptions.read(metric, common), device)
    y = finite(given.to(device).reshape(-1)[members.keep].double(), "targets")
    found = forecast(prediction, members.keep, given.shape)
    if isinstance(found, PoissonForecast) and bool(((y < 0) | (y != y.round())).any()):
        raise BadData("targets of a prediction of counts must be 0, 1, 2, …")
    return found, y, members


def _device(prediction: Any, targets: Tensor) -> torch.device:
    """The device of the prediction if it has one; the CPU for Apple's GPUs, which have no float64."""
    if not isinstance(prediction, Tensor):
        prediction = getattr(prediction, "mean", None)
    if isinstance(prediction, Tensor) and prediction.device.type != "mps":
        return prediction.device
    return targets.device if targets.device.type != "mps" else torch.device("cpu")


def forecast(prediction: Any, keep: Tensor, shape: torch.Size) -> Forecast:
    """Read a prediction of numbers for the elements ``keep`` of targets in ``shape``."""

    def one(value: Tensor, what: str = "predictions") -> Tensor:
        value = value.detach().expand(shape) if value.numel() == 1 else value
        if squeezed(value.shape) != squeezed(shape):
            raise BadData(f"{what} have shape {tuple(value.shape)}, but the targets have {tuple(shape)}.")
        return finite(value.detach().reshape(-1)[keep.to(value.device)].double(), what).to(keep.device)

    def many(value: Tensor, what: str = "draws") -> Tensor:
        return torch.stack([one(draw, what) for draw in value])

    if isinstance(prediction, RegressionPrediction):
        centre, variance = one(prediction.mean), _positive(one(prediction.variance, "variances"))
        if prediction.samples is None:
            return NormalForecast(centre, variance.sqrt(), centre.unsqueeze(0), variance.unsqueeze(0))
        noise = prediction.noise_samples
        noises = one(prediction.aleatoric).unsqueeze(0) if noise is None else many(noise)
        return NormalForecast(centre, variance.sqrt(), many(prediction.samples), _positive(noises))
    if isinstance(prediction, CountPrediction):
        return PoissonForecast(one(prediction.mean), many(prediction.samples))
    if isinstance(prediction, OutputPrediction):
        return PointForecast(one(prediction.mean))
    if isinstance(prediction, Distribution):
        return _read_distribution(prediction, one, keep, shape)
    if hasattr(prediction, "probs"):
        raise BadData(f"a {type(prediction).__name__} predicts labels, not numbers; use accuracy, nll or brier.")
    given = tensor(prediction, "predictions")
    if squeezed(given.shape) == squeezed(shape):
        return PointForecast(one(given))
    if given.dim() and len(given) and squeezed(given.shape[1:]) == squeezed(shape):
        draws = many(given)
        return EmpiricalForecast(draws.mean(0), draws)
    raise BadData(
        f"predictions of shape {tuple(given.shape)} do not match targets of shape {tuple(shape)}: expected the same "
        f"shape, or draws (S, {', '.join(map(str, shape))})."
    )


def _read_distribution(
    given: Distribution, one: Callable[[Tensor], Tensor], keep: Tensor, shape: torch.Size
) -> Forecast:
    while isinstance(given, Independent):
        given = given.base_dist
    if given.event_shape:
        raise BadData(
            f"{type(given).__name__} is one distribution over {tuple(given.event_shape)} outputs together; "
            "pass one for each output, or draws."
        )
    if isinstance(given, Normal):
        centre, std = one(given.loc), one(given.scale)
        return NormalForecast(centre, std, centre.unsqueeze(0), std.square().unsqueeze(0))
    if isinstance(given, Poisson):
        rate = one(given.rate)
        return PoissonForecast(rate, rate.unsqueeze(0))
    if given.batch_shape.numel() == 1:
        given = given.expand(shape)
    return DistributionForecast(one(given.mean), given, keep)


def _positive(variance: Tensor) -> Tensor:
    if bool((variance <= 0).any()):
        raise BadData(f"the smallest predicted variance is {float(variance.min()):.4g}; it must be above 0.")
    return variance


def _read_interval(
    metric: str, prediction: Any, targets: ArrayLike | None, of: float, common: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Elements]:
    """Ends of the interval, targets (zeros if None) and elements; [N] each."""
    fraction(of, "of", "0.95 asks for the 95% interval")
    if targets is None:
        targets = torch.zeros(_shape(prediction), dtype=torch.float64)
    pair = is_pair(prediction)
    found, y, members = read_numbers(metric, prediction[0] if pair else prediction, targets, common)
    if pair:
        low, high = found.mean, forecast(prediction[1], members.keep, tensor(targets, "targets").shape).mean
    else:
        low, high = found.interval(of)
    if bool((low > high).any()):
        raise BadData(f"{int((low > high).sum())} of {len(low)} intervals have low above high; pass (low, high).")
    return low, high, y, members


def is_pair(prediction: Any) -> bool:
    """Whether this is a pair (low, high); draws are one tensor or array."""
    return isinstance(prediction, (tuple, list)) and len(prediction) == 2


def _shape(prediction: Any) -> torch.Size:
    """Shape of the prediction without targets: of an interval end, the mean, or one draw."""
    if is_pair(prediction):
        return tensor(prediction[0], "low").shape
    if isinstance(prediction, Distribution):
        return prediction.batch_shape + prediction.event_shape
    if hasattr(prediction, "epistemic"):
        return torch.Size(prediction.mean.shape)
    return tensor(prediction, "draws").shape[1:]
