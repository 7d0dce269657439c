"""How often the intervals hold the truth, over simulated data sets."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from tests.metrics import populations as known
from tests.metrics.cases import rng
from tests.metrics.populations import BINS, Study, binomial_limits, misses
from whence import metrics

SETS, LONG = 200, 1000
FEW = 100  # where there is a test of many data sets too
RESAMPLES = 400
SLOPE = 0.6
COUNT = 250
Z80 = 1.2815515655446004

label_data = known.labels(COUNT, SLOPE)
normal_data = known.two_normals(100, 100, 1.0)
forecast_data = known.forecasts(150, stated=0.7)
binned = partial(metrics.ece, bins=BINS)

STUDIES = {
    "accuracy": Study(label_data, metrics.accuracy, lambda: known.true_accuracy(SLOPE)),
    "nll": Study(label_data, metrics.nll, lambda: known.true_nll(SLOPE)),
    "brier": Study(label_data, metrics.brier, lambda: known.true_brier(SLOPE)),
    "ece width": Study(label_data, binned, lambda: known.true_ece(SLOPE, "width")),
    "ece mass": Study(label_data, partial(binned, binning="mass"), lambda: known.true_ece(SLOPE, "mass")),
    "ece l2": Study(label_data, partial(binned, norm="l2"), lambda: known.true_ece(SLOPE, "width", "l2")),
    "mce width": Study(label_data, partial(metrics.mce, bins=BINS), lambda: known.true_ece(SLOPE, "width", "max")),
    "mce mass": Study(
        label_data, partial(metrics.mce, bins=BINS, binning="mass"), lambda: known.true_ece(SLOPE, "mass", "max")
    ),
    "classwise": Study(label_data, partial(metrics.classwise_ece, bins=BINS), lambda: known.true_classwise(SLOPE)),
    "aurc": Study(label_data, metrics.aurc, lambda: known.true_aurc(SLOPE)),
    "excess aurc": Study(
        label_data,
        partial(metrics.aurc, excess=True),
        lambda: known.true_aurc(SLOPE) - known.best_aurc(SLOPE),
    ),
    "selective": Study(label_data, metrics.selective_accuracy, lambda: known.true_selective(SLOPE, 0.8)),
    "auroc": Study(normal_data, metrics.auroc, lambda: known.true_auroc(1.0)),
    "auroc difference": Study(
        known.two_scores(100, 100, 1.0, 0.8),
        metrics.auroc_difference,
        lambda: known.true_auroc(1.0) - known.true_auroc(0.8),
    ),
    "aupr": Study(normal_data, metrics.aupr, lambda: known.true_aupr(1.0, 0.5)),
    "fpr95": Study(known.two_normals(200, 200, 1.5), metrics.fpr95, lambda: known.true_fpr(1.5)),
    "rmse": Study(forecast_data, metrics.rmse, lambda: math.sqrt(known.MEAN_VARIANCE)),
    "r2": Study(forecast_data, metrics.r2, lambda: 1 - known.MEAN_VARIANCE / (1 + known.MEAN_VARIANCE)),
    "mae": Study(forecast_data, metrics.mae, lambda: math.sqrt(2 / math.pi)),
    "gaussian nll": Study(forecast_data, metrics.nll, lambda: known.true_gaussian_nll(0.7)),
    "crps": Study(forecast_data, metrics.crps, lambda: known.true_crps(0.7)),
    "coverage": Study(forecast_data, partial(metrics.coverage, of=0.8), lambda: known.true_coverage(0.7, Z80)),
    "width": Study(forecast_data, partial(metrics.width, of=0.8), lambda: 2 * Z80 * 0.7),
    "interval score": Study(
        forecast_data, partial(metrics.interval_score, of=0.8), lambda: known.true_interval_score(0.7, Z80, 0.8)
    ),
}
CALIBRATED = {
    "ece width": binned,
    "ece mass": partial(binned, binning="mass"),
    "ece l2": partial(binned, norm="l2"),
    "mce width": partial(metrics.mce, bins=BINS),
    "mce mass": partial(metrics.mce, bins=BINS, binning="mass"),
    "classwise": partial(metrics.classwise_ece, bins=BINS),
}


def assert_covers(
    study: Study, sets: int, level: float, slack: float = 0.0, wide: bool = False, **options: Any
) -> None:
    """The misses are as many as the level says; `slack` widens the range of levels; `wide` intervals may miss less."""
    below, above = misses(study, sets, level, RESAMPLES, **options)
    fewest = 0 if wide else binomial_limits(sets, 1 - level - slack)[0]
    most = binomial_limits(sets, 1 - level + slack)[1]
    assert fewest <= below + above <= most, f"{below} below + {above} above of {sets}, not {fewest} to {most}"


OFTEN = {
    "accuracy", "nll", "ece width", "ece l2", "mce mass", "classwise", "aurc", "selective", "auroc", "fpr95", "rmse",
    "r2", "auroc difference", "crps", "coverage", "interval score",
}  # fmt: skip


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in STUDIES])
def test_95_percent(name: str) -> None:
    assert_covers(STUDIES[name], FEW, 0.95, wide=name in CALIBRATED)


@pytest.mark.parametrize("name", ["accuracy", "nll", "ece width", "auroc", "crps"])
def test_80_percent(name: str) -> None:
    assert_covers(STUDIES[name], SETS, 0.8)


@pytest.mark.parametrize("name", CALIBRATED)
def test_perfect_calibration(name: str) -> None:
    """The truth is 0, which can only lie below: half of the misses of both sides."""
    study = Study(known.labels(COUNT, 1.0), CALIBRATED[name], lambda: 0.0)
    below, above = misses(study, FEW, 0.95, RESAMPLES)
    assert above == 0
    assert below <= binomial_limits(FEW, 0.025)[1]


@pytest.mark.parametrize("name", [name for name in CALIBRATED if name != "mce width"])
def test_gross_miscalibration_is_seen(name: str) -> None:
    """An error of about 0.3 is told from 0 by 250 elements, and from much more."""
    draw = known.labels(COUNT, 0.25)
    for k in range(20):
        got = CALIBRATED[name](*draw(rng(k)), resamples=RESAMPLES, seed=k)
        assert 0 < got.low < got.high < 1.7 * got


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_many_data_sets(name: str, level: float) -> None:
    assert_covers(STUDIES[name], LONG, level, slack=0.01, wide=name in CALIBRATED)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALIBRATED)
def test_perfect_calibration_in_many_data_sets(name: str) -> None:
    study = Study(known.labels(COUNT, 1.0), CALIBRATED[name], lambda: 0.0)
    below, above = misses(study, LONG, 0.95, RESAMPLES)
    assert above == 0
    assert below <= binomial_limits(LONG, 0.03)[1]


# ---------------------------------------------------------------- elements that belong together

EXAMPLES, EACH = 50, 20


def clustered_labels(g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Confidence c in (0.65, 0.75), right with probability c - 0.15 ± 0.3; the sign belongs to the example."""
    confidence = 0.65 + 0.1 * torch.rand(EXAMPLES, EACH, generator=g, dtype=torch.float64)
    shift = torch.where(torch.rand(EXAMPLES, 1, generator=g) < 0.5, 0.3, -0.3)
    right = torch.rand(EXAMPLES, EACH, generator=g, dtype=torch.float64) < confidence - 0.15 + shift
    return torch.stack([confidence, 1 - confidence], 1), (~right).long()


def clustered_forecasts(g: torch.Generator) -> tuple[Normal, Tensor]:
    """N(0, 1) forecasts of a target with variance 1, half of it shared within the example."""
    shared = torch.randn(EXAMPLES, 1, generator=g, dtype=torch.float64)
    y = math.sqrt(0.5) * (shared + torch.randn(EXAMPLES, EACH, generator=g, dtype=torch.float64))
    return Normal(torch.zeros_like(y), torch.ones_like(y)), y


def clustered_scores(g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Half of the examples are positive; half of the variance of a score is shared within the example."""
    shared = torch.randn(EXAMPLES, 1, generator=g, dtype=torch.float64)
    scores = math.sqrt(0.5) * (shared + torch.randn(EXAMPLES, EACH, generator=g, dtype=torch.float64))
    positive = (torch.arange(EXAMPLES) < EXAMPLES // 2)[:, None].expand(EXAMPLES, EACH)
    return (scores + positive).flatten(), positive.flatten()


def by_example(score: Callable) -> Callable:
    """The score with the example of each element as its group, for scores that are flat."""
    return partial(score, groups=torch.arange(EXAMPLES).repeat_interleave(EACH))


CLUSTERED = {
    "accuracy": (clustered_labels, metrics.accuracy, lambda: 0.55),
    "ece": (clustered_labels, partial(metrics.ece, bins=10), lambda: 0.15),
    "rmse": (clustered_forecasts, metrics.rmse, lambda: 1.0),
    "nll": (clustered_forecasts, metrics.nll, lambda: 0.5 * math.log(2 * math.pi) + 0.5),
    "crps": (clustered_forecasts, metrics.crps, lambda: 1 / math.sqrt(math.pi)),
    "coverage": (clustered_forecasts, partial(metrics.coverage, of=0.8), lambda: 0.8),
}


@pytest.mark.parametrize("name", CLUSTERED)
def test_elements_of_an_example_are_resampled_together(name: str) -> None:
    assert_covers(Study(*CLUSTERED[name]), SETS, 0.95, slack=0.015, wide=name == "ece")


@pytest.mark.parametrize("name", CLUSTERED)
def test_elements_that_belong_together_are_not_independent(name: str) -> None:
    """With a group for each element the intervals are far too short."""
    apart = torch.arange(EXAMPLES * EACH).reshape(EXAMPLES, EACH)
    below, above = misses(Study(*CLUSTERED[name]), 100, 0.95, 200, groups=apart)
    assert below + above > binomial_limits(100, 0.1)[1]


def test_groups_of_scores() -> None:
    truth = known.true_auroc(1.0)
    study = Study(clustered_scores, by_example(metrics.auroc), lambda: truth)
    assert_covers(study, SETS, 0.95, slack=0.015)
    below, above = misses(Study(clustered_scores, metrics.auroc, lambda: truth), 100, 0.95, 200)
    assert below + above > binomial_limits(100, 0.1)[1]


@pytest.mark.parametrize("score", [metrics.ece, metrics.classwise_ece])
def test_one_stray_element_does_not_blow_up_the_interval(score: Callable) -> None:
    """200 elements of confidence 0.9, 9 of 10 right, without and with one alone in its bin: it weighs 1/200."""
    confidence = torch.full((200,), 0.9, dtype=torch.float64)
    wrong = (torch.arange(200) % 10 == 9).long()
    together = score(torch.stack([confidence, 1 - confidence], 1), wrong, bins=10)
    confidence[0], wrong[0] = 0.6, 1
    stray = score(torch.stack([confidence, 1 - confidence], 1), wrong, bins=10)
    assert 0.02 < together.high < 0.1
    assert stray.high < together.high + 0.05
