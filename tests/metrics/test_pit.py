"""The probability integral transform: its definition; uniform for a right prediction, not for a wrong one."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Gamma

from tests.metrics.cases import rng
from tests.metrics.populations import binomial_limits
from tests.reference import conformal as slow
from whence import metrics
from whence.errors import NotDefined
from whence.metrics.pit import pit_histogram
from whence.predictive.predictions import CountPrediction, RegressionPrediction

F64 = torch.float64


def mixture(count: int, seed: int) -> tuple[RegressionPrediction, torch.Tensor]:
    """Two draws of the mean with noise of their own, and targets of that mixture."""
    g = rng(seed)
    means = torch.randn(2, count, 1, generator=g, dtype=F64)
    noise = 0.1 + torch.rand(2, count, 1, generator=g, dtype=F64)
    which = torch.randint(2, (1, count, 1), generator=g)
    centre, variance = means.gather(0, which)[0], noise.gather(0, which)[0]
    y = centre + variance.sqrt() * torch.randn(count, 1, generator=g, dtype=F64)
    prediction = RegressionPrediction(means.mean(0), noise.mean(0), means.var(0, correction=0), means, noise)
    return prediction, y


def test_of_mixtures_by_definition() -> None:
    prediction, y = mixture(20, 0)
    assert prediction.samples is not None and prediction.noise_samples is not None
    wanted = [
        slow.normal_at_most(
            float(y[i]), prediction.samples[:, i, 0].tolist(), prediction.noise_samples[:, i, 0].tolist()
        )
        for i in range(20)
    ]
    assert metrics.pit(prediction, y).tolist() == pytest.approx(wanted)


def test_of_counts_lies_inside_the_jump() -> None:
    g = rng(1)
    rates = 4 * torch.rand(3, 30, 1, generator=g, dtype=F64)
    y = torch.poisson(rates[0], generator=g)
    found = metrics.pit(CountPrediction(rates.mean(0), rates.var(0), rates), y)
    for i, value in enumerate(found.tolist()):
        k, some = int(y[i]), rates[:, i, 0].tolist()
        assert slow.poisson_at_most(k - 1, some) - 1e-12 <= value <= slow.poisson_at_most(k, some) + 1e-12


def test_uniform_for_a_right_prediction_and_not_for_a_wrong_one() -> None:
    sets, outside = 400, {"right": 0, "narrow": 0, "wide": 0, "shifted": 0}
    for k in range(sets):
        g = rng(k)
        y = torch.randn(300, 1, generator=g, dtype=F64)
        one = torch.ones_like(y)
        for name, mean, variance in (
            ("right", 0 * one, one),
            ("narrow", 0 * one, 0.4 * one),
            ("wide", 0 * one, 2.5 * one),
            ("shifted", 0.4 * one, one),
        ):
            values = metrics.pit(RegressionPrediction(mean, variance, 0 * variance), y)
            outside[name] += pit_histogram(values, len(y)).outside > 0
    assert outside["right"] <= binomial_limits(sets, 0.05)[1]
    assert outside["right"] > 0
    assert min(outside[name] for name in ("narrow", "wide", "shifted")) > 0.95 * sets


@pytest.mark.parametrize("kind", ["counts", "draws", "gamma"])
def test_uniform_for_other_kinds(kind: str) -> None:
    g, count = rng(3), 4_000
    rates = 0.5 + 3 * torch.rand(1, count, generator=g, dtype=F64)
    if kind == "counts":
        prediction: object = CountPrediction(rates[0], 0 * rates[0], rates)
        y = torch.poisson(rates[0], generator=g)
    elif kind == "draws":
        drawn = rates * torch.randn(10, count, generator=g, dtype=F64)
        prediction, y = drawn[1:], drawn[0]
    else:
        torch.manual_seed(0)
        prediction = Gamma(rates[0], torch.ones(count, dtype=F64))
        y = prediction.sample()
    values = metrics.pit(prediction, y)
    assert pit_histogram(values, count, bins=10, level=0.999).outside == 0
    assert float(values.mean()) == pytest.approx(0.5, abs=4 * 0.2887 / count**0.5)


def test_point_predictions_have_none() -> None:
    with pytest.raises(NotDefined, match="point predictions have no distribution"):
        metrics.pit(torch.zeros(5), torch.zeros(5))
