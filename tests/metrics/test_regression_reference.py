"""Scores of regressions against the slow twins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from tests.metrics.cases import element_keywords, flat, flat_weights, rng
from tests.reference import metrics as slow
from whence import metrics
from whence.predictive.predictions import CountPrediction, RegressionPrediction

TOLERANCE = 1e-9
SEEDS = [0, 1]
OPTIONS = ["plain", "weights", "mask", "all"]
SHAPES = [(12,), (6, 2), (3, 2, 2)]
DRAWS = 5


class Forecast:
    """Targets, and a mixture of normals for each: means and variances of the draws (S, *targets)."""

    def __init__(self, shape: tuple[int, ...], options: str, seed: int) -> None:
        g = rng(seed)
        self.means = torch.randn(DRAWS, *shape, generator=g, dtype=torch.float64)
        self.noise = 0.1 + torch.rand(DRAWS, *shape, generator=g, dtype=torch.float64)
        self.targets = 1.5 * torch.randn(shape, generator=g, dtype=torch.float64)
        self.keywords = element_keywords(shape, options, g)

    def normal(self) -> RegressionPrediction:
        """One normal for each element."""
        return RegressionPrediction(self.means[0], self.noise[0], self.noise[1])

    def mixture(self) -> RegressionPrediction:
        """Draws that share one noise."""
        return RegressionPrediction(self.means.mean(0), self.noise[0], self.means.var(0, correction=0), self.means)

    def noisy_mixture(self) -> RegressionPrediction:
        """Draws with a noise each."""
        mean, spread = self.means.mean(0), self.means.var(0, correction=0)
        return RegressionPrediction(mean, self.noise.mean(0), spread, self.means, self.noise)

    def components(self, kind: str) -> list[tuple[list[float], list[float]]]:
        """Means and standard deviations of the normals of each element that counts."""
        if kind == "normal":
            means, noise = self.means[:1], (self.noise[0] + self.noise[1])[None]
        else:
            means = self.means
            noise = self.noise if kind == "noisy_mixture" else self.noise[:1].expand_as(means)
        columns = [flat(m, self.keywords) for m in means], [flat(v.sqrt(), self.keywords) for v in noise]
        return list(zip(zip(*columns[0], strict=True), zip(*columns[1], strict=True), strict=True))

    def lists(self) -> tuple[list[float], list[float]]:
        return flat(self.targets, self.keywords), flat_weights(self.targets, self.keywords)


def scored(score: Callable, prediction: Any, data: Forecast, **more: Any) -> float:
    return score(prediction, data.targets, resamples=0, **data.keywords, **more)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["normal", "mixture", "noisy_mixture"])
def test_densities(kind: str, shape: tuple[int, ...], options: str, seed: int) -> None:
    data = Forecast(shape, options, seed)
    prediction = getattr(data, kind)()
    targets, weights = data.lists()
    parts = data.components(kind)
    wanted = [slow.mixture_nll(y, *part) for y, part in zip(targets, parts, strict=True)]
    assert scored(metrics.nll, prediction, data) == pytest.approx(slow.weighted_mean(wanted, weights), rel=TOLERANCE)
    wanted = [slow.mixture_crps(y, *part) for y, part in zip(targets, parts, strict=True)]
    assert scored(metrics.crps, prediction, data) == pytest.approx(slow.weighted_mean(wanted, weights), rel=1e-8)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["normal", "mixture", "noisy_mixture"])
@pytest.mark.parametrize("of", [0.5, 0.95])
def test_intervals_of_densities(kind: str, options: str, of: float) -> None:
    data = Forecast((12,), options, 3)
    prediction = getattr(data, kind)()
    targets, weights = data.lists()
    lows = [slow.mixture_quantile((1 - of) / 2, *part) for part in data.components(kind)]
    highs = [slow.mixture_quantile((1 + of) / 2, *part) for part in data.components(kind)]
    got = scored(metrics.coverage, prediction, data, of=of)
    assert got == pytest.approx(slow.coverage(lows, highs, targets, weights), rel=TOLERANCE)
    got = scored(metrics.width, prediction, data, of=of)
    assert got == pytest.approx(slow.width(lows, highs, weights), rel=1e-7)
    got = scored(metrics.interval_score, prediction, data, of=of)
    assert got == pytest.approx(slow.interval_score(lows, highs, targets, weights, of), rel=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_errors_of_the_mean(shape: tuple[int, ...], options: str, seed: int) -> None:
    data = Forecast(shape, options, seed)
    targets, weights = data.lists()
    mean = data.means.mean(0)
    guesses = flat(mean, data.keywords)
    for prediction in (mean, data.means, data.mixture(), Normal(mean, data.noise[0].sqrt())):
        wanted = slow.rmse(guesses, targets, weights)
        assert scored(metrics.rmse, prediction, data) == pytest.approx(wanted, rel=TOLERANCE)
        wanted = slow.mae(guesses, targets, weights)
        assert scored(metrics.mae, prediction, data) == pytest.approx(wanted, rel=TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("fair", [True, False])
@pytest.mark.parametrize("rounded", [False, True])
def test_crps_of_draws(fair: bool, options: str, seed: int, rounded: bool) -> None:
    """Also with draws that are equal to each other and to the target."""
    data = Forecast((6, 2), options, seed)
    if rounded:
        data.means, data.targets = data.means.round(), data.targets.round()
    targets, weights = data.lists()
    columns = list(zip(*[flat(m, data.keywords) for m in data.means], strict=True))
    wanted = [slow.draws_crps(y, column, fair) for y, column in zip(targets, columns, strict=True)]
    got = scored(metrics.crps, data.means, data, fair=fair)
    assert got == pytest.approx(slow.weighted_mean(wanted, weights), rel=TOLERANCE)


def test_crps_of_draws_is_the_integral_for_the_empirical_cdf() -> None:
    data = Forecast((4,), "plain", 9)
    for n, y in enumerate(data.targets.tolist()):
        draws = data.means[:, n].tolist()
        edges = sorted([*draws, y])
        wanted = 0.0
        for a, b in itertools.pairwise(edges):
            cdf = sum(d <= a for d in draws) / DRAWS
            wanted += (b - a) * (cdf - (1.0 if a >= y else 0.0)) ** 2
        got = metrics.crps(data.means[:, n : n + 1], data.targets[n : n + 1], fair=False, resamples=0)
        assert got == pytest.approx(wanted, rel=TOLERANCE)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("of", [0.5, 0.9])
def test_intervals_of_draws_and_pairs(options: str, of: float) -> None:
    data = Forecast((12,), options, 4)
    draws = torch.randn(41, 12, generator=rng(1), dtype=torch.float64)
    targets, weights = data.lists()
    columns = list(zip(*[flat(d, data.keywords) for d in draws], strict=True))
    lows = [slow.quantile(c, (1 - of) / 2) for c in columns]
    highs = [slow.quantile(c, (1 + of) / 2) for c in columns]
    pair = tuple(draws.quantile(q, dim=0) for q in ((1 - of) / 2, (1 + of) / 2))
    for prediction in (draws, pair):
        got = scored(metrics.coverage, prediction, data, of=of)
        assert got == pytest.approx(slow.coverage(lows, highs, targets, weights), rel=TOLERANCE)
        got = scored(metrics.width, prediction, data, of=of)
        assert got == pytest.approx(slow.width(lows, highs, weights), rel=TOLERANCE)
        got = scored(metrics.interval_score, prediction, data, of=of)
        assert got == pytest.approx(slow.interval_score(lows, highs, targets, weights, of), rel=TOLERANCE)


def test_the_ends_of_an_interval_belong_to_it() -> None:
    low, high = torch.tensor([0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 1.0])
    assert metrics.coverage((low, high), torch.tensor([0.0, 1.0, 1.5]), resamples=0) == pytest.approx(2 / 3)


def test_distributions() -> None:
    data = Forecast((12,), "weights", 5)
    targets, weights = data.lists()
    mean, scale = data.means[0], data.noise[0]
    normal = data.normal()
    same = Normal(normal.mean, normal.std)
    for score in (metrics.nll, metrics.crps, metrics.coverage, metrics.width, metrics.interval_score, metrics.rmse):
        assert scored(score, same, data) == pytest.approx(float(scored(score, normal, data)), rel=1e-9)
    laplace = torch.distributions.Laplace(mean, scale)
    m, b = mean.tolist(), scale.tolist()
    wanted = [math.log(2 * s) + abs(y - u) / s for y, u, s in zip(targets, m, b, strict=True)]
    assert scored(metrics.nll, laplace, data) == pytest.approx(slow.weighted_mean(wanted, weights), rel=TOLERANCE)
    half = [-s * math.log(0.2) for s in b]
    lows, highs = [u - h for u, h in zip(m, half, strict=True)], [u + h for u, h in zip(m, half, strict=True)]
    got = scored(metrics.coverage, laplace, data, of=0.8)
    assert got == pytest.approx(slow.coverage(lows, highs, targets, weights), rel=TOLERANCE)
    got = scored(metrics.width, laplace, data, of=0.8)
    assert got == pytest.approx(slow.width(lows, highs, weights), rel=TOLERANCE)


def counts(seed: int) -> tuple[CountPrediction, Tensor]:
    g = rng(seed)
    rates = 0.5 + 6 * torch.rand(7, 9, 2, generator=g, dtype=torch.float64)
    targets = torch.poisson(rates[0], generator=g)
    return CountPrediction(rates.mean(0), rates.var(0, correction=0), rates), targets


@pytest.mark.parametrize("seed", SEEDS)
def test_counts(seed: int) -> None:
    prediction, targets = counts(seed)
    y = [int(v) for v in targets.flatten()]
    columns = prediction.samples.flatten(1).T.tolist()
    ones = [1.0] * len(y)
    wanted = slow.weighted_mean([slow.poisson_mixture_nll(v, c) for v, c in zip(y, columns, strict=True)], ones)
    assert metrics.nll(prediction, targets, resamples=0) == pytest.approx(wanted, rel=TOLERANCE)
    assert metrics.rmse(prediction, targets, resamples=0) == pytest.approx(
        slow.rmse(prediction.mean.flatten().tolist(), [float(v) for v in y], ones), rel=TOLERANCE
    )
    low, high = prediction.interval(0.8)
    pair = slow.coverage(low.flatten().tolist(), high.flatten().tolist(), [float(v) for v in y], ones)
    assert metrics.coverage(prediction, targets, of=0.8, resamples=0) == pytest.approx(pair, rel=TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
def test_crps_of_counts(seed: int) -> None:
    prediction, targets = counts(seed)
    y = [int(v) for v in targets.flatten()]
    columns = prediction.samples.flatten(1).T.tolist()
    wanted = [slow.poisson_mixture_crps(v, c) for v, c in zip(y, columns, strict=True)]
    got = metrics.crps(prediction, targets, resamples=0)
    assert got == pytest.approx(slow.weighted_mean(wanted, [1.0] * len(y)), rel=1e-8)


@pytest.mark.parametrize("score", [metrics.rmse, metrics.mae, metrics.nll, metrics.crps, metrics.width])
def test_a_weight_of_k_is_k_copies(score: Callable) -> None:
    data = Forecast((12,), "plain", 6)
    times = torch.randint(0, 4, (12,), generator=rng(6))
    got = score(data.normal(), data.targets, weights=times, resamples=0)
    parts = [v.repeat_interleave(times) for v in (data.means[0], data.noise[0], data.noise[1])]
    copies = score(RegressionPrediction(*parts), data.targets.repeat_interleave(times), resamples=0)
    assert got == pytest.approx(float(copies), rel=1e-10)
