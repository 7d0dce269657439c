"""Published examples and values that have a closed form."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch.distributions import Normal

from tests.metrics.cases import rng
from tests.reference import metrics as slow
from whence import metrics

HANLEY_NORMAL = [33, 6, 6, 11, 2]
HANLEY_ABNORMAL = [3, 2, 2, 11, 33]


def test_brier_1950() -> None:
    """The ten forecasts of rain in his paper: P = 0.19."""
    rain = torch.tensor([0.7, 0.9, 0.8, 0.4, 0.2, 0.0, 0.0, 0.0, 0.0, 0.1], dtype=torch.float64)
    fell = torch.tensor([0, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    assert metrics.brier(torch.stack([1 - rain, rain], 1), fell, resamples=0) == pytest.approx(0.19, abs=1e-12)
    assert metrics.brier(rain, fell, resamples=0) == pytest.approx(0.095, abs=1e-12)


@pytest.mark.parametrize(("row", "label", "wanted"), [([1.0, 0.0], 0, 0.0), ([1.0, 0.0], 1, 2.0), ([0.5, 0.5], 1, 0.5)])
def test_brier_runs_from_0_to_2(row: list[float], label: int, wanted: float) -> None:
    assert metrics.brier(torch.tensor([row] * 3), torch.tensor([label] * 3), resamples=0) == wanted


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_uniform_probabilities(classes: int) -> None:
    probs = torch.full((20, classes), 1 / classes, dtype=torch.float64)
    labels = torch.arange(20) % classes
    assert metrics.nll(probs, labels, resamples=0) == pytest.approx(math.log(classes), rel=1e-12)
    assert metrics.brier(probs, labels, resamples=0) == pytest.approx(1 - 1 / classes, rel=1e-12)


def test_auroc_of_hanley_and_mcneil() -> None:
    """Radiology 1982: 109 CT images on a scale of five; area 0.893, standard error 0.032."""
    scores = torch.arange(5.0).repeat(2)
    positive = torch.tensor([False] * 5 + [True] * 5)
    counts = torch.tensor(HANLEY_NORMAL + HANLEY_ABNORMAL)
    assert metrics.auroc(scores, positive, weights=counts, resamples=0) == pytest.approx(0.893, abs=5e-4)
    got = metrics.auroc(scores.repeat_interleave(counts), positive.repeat_interleave(counts))
    assert got == pytest.approx(0.893, abs=5e-4)
    assert got.high - got.low == pytest.approx(2 * 1.96 * 0.032, rel=0.2)


def test_detection_by_hand() -> None:
    scores, positive = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
    assert metrics.auroc(scores, positive, resamples=0) == 0.75
    assert metrics.aupr(scores, positive, resamples=0) == pytest.approx(5 / 6, rel=1e-12)
    assert metrics.fpr95(scores, positive, resamples=0) == 0.5


@pytest.mark.parametrize("prevalence", [0.1, 0.5])
def test_scores_that_say_nothing(prevalence: float) -> None:
    positive = torch.arange(200) < 200 * prevalence
    scores = torch.ones(200)
    assert metrics.auroc(scores, positive, resamples=0) == 0.5
    assert metrics.aupr(scores, positive, resamples=0) == pytest.approx(prevalence)
    assert metrics.fpr95(scores, positive, resamples=0) == 1.0


def test_auroc_of_two_normals() -> None:
    g = rng(0)
    d = 1.2
    scores = torch.cat([torch.randn(4000, generator=g) + d, torch.randn(4000, generator=g)])
    got = metrics.auroc(scores, torch.arange(8000) < 4000, resamples=200)
    wanted = slow.normal_cdf(d / math.sqrt(2), 0.0, 1.0)
    assert got.low < wanted < got.high
    assert got.high - got.low < 0.03


@pytest.mark.parametrize("binning", ["width", "mass"])
@pytest.mark.parametrize("score", [metrics.ece, metrics.mce, metrics.classwise_ece])
def test_calibrated_by_construction(score: Callable, binning: str) -> None:
    """Of the elements with confidence k / 10, k of 10 are right."""
    p = torch.tensor([k / 10 for k in range(5, 10) for _ in range(20)], dtype=torch.float64)
    first = torch.tensor([n < 2 * k for k in range(5, 10) for n in range(20)])
    probs = torch.stack([p, 1 - p], 1)
    got = score(probs, (~first).long(), bins=10, binning=binning)
    assert got == pytest.approx(0.0, abs=1e-12)
    assert got.low == pytest.approx(0.0, abs=1e-12)
    assert got.high > 0


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_one_bin_is_mean_confidence_less_accuracy(binning: str) -> None:
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]], dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 0])
    for norm in ("l1", "l2"):
        assert metrics.ece(p, y, bins=1, binning=binning, norm=norm, resamples=0) == pytest.approx(0.75 - 0.25)
    assert metrics.mce(p, y, bins=1, binning=binning, resamples=0) == pytest.approx(0.5)


def test_calibration_errors_by_hand() -> None:
    """Bins of 0.9 (8 of 10 right, gap 0.1), 0.7 (3 of 10 right, gap 0.4): l1 0.25, l2 sqrt(0.085), max 0.4."""
    p = torch.tensor([0.9] * 10 + [0.7] * 10, dtype=torch.float64)
    right = torch.tensor([True] * 8 + [False] * 2 + [True] * 3 + [False] * 7)
    probs, labels = torch.stack([p, 1 - p], 1), (~right).long()
    for binning, bins in (("width", 10), ("mass", 2)):
        common = {"bins": bins, "binning": binning, "resamples": 0}
        assert metrics.ece(probs, labels, **common) == pytest.approx(0.25, abs=1e-12)
        assert metrics.ece(probs, labels, norm="l2", **common) == pytest.approx(math.sqrt(0.085), abs=1e-12)
        assert metrics.mce(probs, labels, **common) == pytest.approx(0.4, abs=1e-12)
        assert metrics.classwise_ece(probs, labels, **common) == pytest.approx(0.25, abs=1e-12)


def test_crps_of_the_standard_normal() -> None:
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    wanted = (math.sqrt(2) - 1) / math.sqrt(math.pi)
    assert metrics.crps(Normal(zero, one), zero, resamples=0) == pytest.approx(wanted, rel=1e-12)
    assert metrics.crps(Normal(zero, 3 * one), zero, resamples=0) == pytest.approx(3 * wanted, rel=1e-12)
    far = metrics.crps(Normal(zero, one), 40 * one, resamples=0)
    assert far == pytest.approx(40 - 1 / math.sqrt(math.pi), rel=1e-12)


@pytest.mark.parametrize("fair", [True, False])
def test_crps_of_a_certain_forecast_is_the_absolute_error(fair: bool) -> None:
    draws = torch.tensor([1.0, -2.0, 5.0]).expand(6, 3)
    assert metrics.crps(draws, torch.zeros(3), fair=fair, resamples=0) == pytest.approx(8 / 3)


@pytest.mark.parametrize("draws", [2, 5])
def test_the_fair_crps_is_unbiased(draws: int) -> None:
    """Means over 100,000 forecasts of N(0, 1) at y = 0.3; the other one is too high by 1 / (S sqrt(pi))."""
    x = torch.randn(draws, 100_000, generator=rng(1), dtype=torch.float64)
    y = torch.full((100_000,), 0.3, dtype=torch.float64)
    wanted = slow.mixture_crps(0.3, [0.0], [1.0])
    assert metrics.crps(x, y, resamples=0) == pytest.approx(wanted, abs=0.01)
    bias = 1 / (draws * math.sqrt(math.pi))
    assert metrics.crps(x, y, fair=False, resamples=0) == pytest.approx(wanted + bias, abs=0.01)


def test_nll_of_the_standard_normal() -> None:
    y = torch.tensor([0.0, 1.0, -1.0, 2.0], dtype=torch.float64)
    got = metrics.nll(Normal(torch.zeros_like(y), torch.ones_like(y)), y, resamples=0)
    assert got == pytest.approx(0.5 * math.log(2 * math.pi) + 0.5 * 6 / 4, rel=1e-12)


def test_intervals_of_the_standard_normal() -> None:
    y = torch.tensor([0.0, 1.0, -1.9, 2.0, 2.1], dtype=torch.float64)
    normal = Normal(torch.zeros_like(y), torch.ones_like(y))
    assert metrics.coverage(normal, y, of=0.95, resamples=0) == pytest.approx(3 / 5)
    assert metrics.width(normal, y, of=0.95, resamples=0) == pytest.approx(2 * 1.959963984540054, rel=1e-9)
    wanted = 2 * 1.959963984540054 + 2 / 0.05 * (2.0 + 2.1 - 2 * 1.959963984540054) / 5
    assert metrics.interval_score(normal, y, of=0.95, resamples=0) == pytest.approx(wanted, rel=1e-8)
    pair = torch.zeros(3), torch.tensor([1.0, 2.0, 6.0])
    assert metrics.width(pair, resamples=0) == pytest.approx(3.0)


def ordered(errors: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[0.8, 0.2]]).expand(count, 2), (torch.arange(count) >= count - errors).long()


@pytest.mark.parametrize("rate", [0.1, 0.4])
def test_risk_coverage_of_the_best_and_of_no_order(rate: float) -> None:
    """Geifman 2019: the best order has r + (1 - r) log(1 - r); an order that says nothing has r."""
    probs, labels = ordered(int(2000 * rate), 2000)
    best = metrics.aurc(probs, labels, uncertainty=torch.arange(2000.0), resamples=0)
    assert best == pytest.approx(rate + (1 - rate) * math.log(1 - rate), abs=1e-3)
    none = metrics.aurc(probs, labels, uncertainty=torch.arange(2000.0), excess=True, resamples=0)
    assert none == pytest.approx(0.0, abs=1e-12)
    assert metrics.aurc(probs, labels, uncertainty=torch.ones(2000), resamples=0) == pytest.approx(rate, rel=1e-10)


def test_risk_coverage_by_hand() -> None:
    """Errors 0, 1, 0, 1 from the most certain on: (0 + 1/2 + 1/3 + 1/2) / 4; best would be (0 + 0 + 1/3 + 1/2) / 4."""
    probs = torch.tensor([[0.8, 0.2]]).expand(4, 2)
    labels, uncertainty = torch.tensor([0, 1, 0, 1]), torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert metrics.aurc(probs, labels, uncertainty=uncertainty, resamples=0) == pytest.approx(1 / 3, rel=1e-6)
    got = metrics.aurc(probs, labels, uncertainty=uncertainty, excess=True, resamples=0)
    assert got == pytest.approx(1 / 8, rel=1e-6)
    got = metrics.selective_accuracy(probs, labels, uncertainty=uncertainty, coverage=0.75, resamples=0)
    assert got == pytest.approx(2 / 3, rel=1e-6)
    assert metrics.selective_accuracy(probs, labels, uncertainty=torch.ones(4), coverage=0.6, resamples=0) == 0.5
