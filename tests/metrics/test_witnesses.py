"""Outside witnesses: scikit-learn, torchmetrics and scipy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.metrics.cases import labelled, rng
from whence import metrics
from whence.errors import NotDefined
from whence.metrics.elements import MetricOptions, elements
from whence.metrics.intervals import bootstrap

sklearn_metrics = pytest.importorskip("sklearn.metrics")

SEEDS = [0, 1, 2]
WEIGHTED = [False, True]


def weights_of(count: int, weighted: bool, seed: int) -> torch.Tensor | None:
    return torch.rand(count, generator=rng(seed), dtype=torch.float64) + 0.1 if weighted else None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.parametrize("ties", [False, True])
def test_sklearn_detection(seed: int, weighted: bool, ties: bool) -> None:
    g = rng(seed)
    positive = torch.rand(200, generator=g) < 0.3
    scores = torch.randn(200, generator=g, dtype=torch.float64) + positive
    scores = (2 * scores).round() if ties else scores
    w = weights_of(200, weighted, seed)
    y, s = positive.numpy(), scores.numpy()
    wanted = sklearn_metrics.roc_auc_score(y, s, sample_weight=w)
    assert metrics.auroc(scores, positive, weights=w, resamples=0) == pytest.approx(wanted, rel=1e-10)
    wanted = sklearn_metrics.average_precision_score(y, s, sample_weight=w)
    assert metrics.aupr(scores, positive, weights=w, resamples=0) == pytest.approx(wanted, rel=1e-10)
    fpr, tpr, _ = sklearn_metrics.roc_curve(y, s, sample_weight=w, drop_intermediate=False)
    wanted = fpr[(tpr >= 0.95).argmax()]
    assert metrics.fpr95(scores, positive, weights=w, resamples=0) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighted", WEIGHTED)
def test_sklearn_labels(seed: int, weighted: bool) -> None:
    case = labelled("many", "plain", seed)
    w = weights_of(60, weighted, seed)
    y, p = case.targets.numpy(), case.probs.numpy()
    common = {"weights": w, "resamples": 0}
    wanted = sklearn_metrics.log_loss(y, p, sample_weight=w, labels=[0, 1, 2, 3])
    assert metrics.nll(case.probs, case.targets, **common) == pytest.approx(wanted, rel=1e-10)
    wanted = sklearn_metrics.accuracy_score(y, p.argmax(1), sample_weight=w)
    assert metrics.accuracy(case.probs, case.targets, **common) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighted", WEIGHTED)
def test_sklearn_binary(seed: int, weighted: bool) -> None:
    g = rng(seed)
    p = torch.rand(80, generator=g, dtype=torch.float64)
    y = (torch.rand(80, generator=g, dtype=torch.float64) < p).long()
    w = weights_of(80, weighted, seed)
    common = {"weights": w, "resamples": 0}
    wanted = sklearn_metrics.brier_score_loss(y.numpy(), p.numpy(), sample_weight=w)
    assert metrics.brier(p, y, **common) == pytest.approx(wanted, rel=1e-10)
    wanted = sklearn_metrics.log_loss(y.numpy(), p.numpy(), sample_weight=w)
    assert metrics.nll(p, y, **common) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighted", WEIGHTED)
def test_sklearn_regression(seed: int, weighted: bool) -> None:
    g = rng(seed)
    guess, y = torch.randn(2, 80, generator=g, dtype=torch.float64)
    w = weights_of(80, weighted, seed)
    common = {"weights": w, "resamples": 0}
    wanted = sklearn_metrics.mean_squared_error(y.numpy(), guess.numpy(), sample_weight=w) ** 0.5
    assert metrics.rmse(guess, y, **common) == pytest.approx(wanted, rel=1e-10)
    wanted = sklearn_metrics.mean_absolute_error(y.numpy(), guess.numpy(), sample_weight=w)
    assert metrics.mae(guess, y, **common) == pytest.approx(wanted, rel=1e-10)
    wanted = sklearn_metrics.r2_score(y.numpy(), guess.numpy(), sample_weight=w)
    assert metrics.r2(guess, y, **common) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("weighted", WEIGHTED)
def test_sklearn_r2_of_several_outputs(weighted: bool) -> None:
    """Of outputs in different units, far from 0; each has the same part."""
    noise, y = torch.randn(2, 80, 3, generator=rng(1), dtype=torch.float64)
    y = (y + 1e4) * torch.tensor([1.0, 100.0, 0.01], dtype=torch.float64)
    guess = y + 0.5 * noise * torch.tensor([1.0, 100.0, 0.01], dtype=torch.float64)
    w = weights_of(80, weighted, 1)
    wanted = sklearn_metrics.r2_score(y.numpy(), guess.numpy(), sample_weight=w)
    assert metrics.r2(guess, y, weights=w, resamples=0) == pytest.approx(wanted, rel=1e-8)


def test_r2_of_the_mean_and_of_the_truth() -> None:
    y = torch.randn(40, generator=rng(2), dtype=torch.float64)
    assert metrics.r2(torch.full_like(y, float(y.mean())), y, resamples=0) == pytest.approx(0, abs=1e-12)
    perfect = metrics.r2(y, y)
    assert (perfect, perfect.low, perfect.high) == (1, 1, 1)
    with pytest.raises(NotDefined, match="all targets of an output are equal"):
        metrics.r2(y, torch.ones(40))


def by_norm(norm: str) -> Callable:
    if norm == "max":
        return metrics.mce
    return lambda *data, **options: metrics.ece(*data, norm=norm, **options)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bins", [5, 10, 15])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("shape", ["many", "two", "dense"])
def test_torchmetrics_calibration(norm: str, bins: int, seed: int, shape: str) -> None:
    theirs = pytest.importorskip("torchmetrics.functional.classification")
    case = labelled(shape, "ignored", seed)
    classes = case.probs.shape[1]
    wanted = theirs.multiclass_calibration_error(
        case.probs, case.targets, classes, n_bins=bins, norm=norm, ignore_index=-100
    )
    got = by_norm(norm)(case.probs, case.targets, bins=bins, resamples=0)
    assert got == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("bins", [5, 15])
def test_torchmetrics_classwise_and_binary(bins: int, seed: int) -> None:
    """Their binary error is of the probability of 1; ours is of the label that is more probable."""
    theirs = pytest.importorskip("torchmetrics.functional.classification")
    case = labelled("many", "plain", seed)
    parts = [
        theirs.binary_calibration_error(case.probs[:, c], (case.targets == c).long(), n_bins=bins) for c in range(4)
    ]
    got = metrics.classwise_ece(case.probs, case.targets, bins=bins, resamples=0)
    assert got == pytest.approx(float(sum(parts) / 4), rel=1e-5)
    p, y = case.probs[:, 0], (case.targets == 0).long()
    wanted = theirs.multiclass_calibration_error(torch.stack([1 - p, p], 1), y, 2, n_bins=bins)
    assert metrics.ece(p, y, bins=bins, resamples=0) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("bins", [10])
def test_torchmetrics_class(bins: int) -> None:
    """Their stateful class over batches gives what we give for all at once."""
    torchmetrics = pytest.importorskip("torchmetrics")
    case = labelled("many", "plain", 8)
    running = torchmetrics.CalibrationError(task="multiclass", num_classes=4, n_bins=bins)
    for k in range(0, 60, 20):
        running.update(case.probs[k : k + 20], case.targets[k : k + 20])
    got = metrics.ece(case.probs, case.targets, bins=bins, resamples=0)
    assert got == pytest.approx(float(running.compute()), rel=1e-5)


@pytest.mark.parametrize("right", [0, 30])
def test_scipy_clopper_pearson_at_the_edge(right: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    wanted = stats.binomtest(right, 30).proportion_ci(0.95, method="exact")
    probs = torch.tensor([[0.9, 0.1]]).expand(30, 2)
    labels = torch.zeros(30) if right else torch.ones(30)
    got = metrics.accuracy(probs, labels.long())
    assert got.low == pytest.approx(wanted.low, abs=1e-6)
    assert got.high == pytest.approx(wanted.high, abs=1e-6)


def edge_interval(score: Callable, scores: list[float], positive: list[int]) -> tuple[float, float]:
    return score(torch.tensor(scores), torch.tensor(positive)).interval


def test_exact_bounds_of_perfect_detection() -> None:
    """As many trials, all alike, as the smaller class has members; false positives: as there are negatives."""
    stats = pytest.importorskip("scipy.stats")
    scores, positive = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0, 0, 0, 0, 1, 1, 1]
    wanted = stats.binomtest(3, 3).proportion_ci(0.95, method="exact")
    for score in (metrics.auroc, metrics.aupr):
        assert edge_interval(score, scores, positive) == pytest.approx((wanted.low, 1.0), abs=1e-6)
    wanted = stats.binomtest(0, 4).proportion_ci(0.95, method="exact")
    assert edge_interval(metrics.fpr95, scores, positive) == pytest.approx((0.0, wanted.high), abs=1e-6)
    worst = edge_interval(metrics.auroc, [-s for s in scores], positive)
    assert worst == pytest.approx((0.0, stats.binomtest(0, 3).proportion_ci(0.95, method="exact").high), abs=1e-6)


def test_exact_bounds_count_groups() -> None:
    stats = pytest.importorskip("scipy.stats")
    wanted = stats.binomtest(10, 10).proportion_ci(0.8, method="exact")
    probs, right = torch.tensor([[0.9, 0.1]]).expand(30, 2), torch.zeros(30, dtype=torch.long)
    got = metrics.accuracy(probs, right, groups=torch.arange(30) // 3, level=0.8)
    assert got.interval == pytest.approx((wanted.low, 1.0), abs=1e-6)
    inside = metrics.coverage((torch.zeros(10), torch.ones(10)), torch.full((10,), 0.5), level=0.8)
    assert inside.interval == pytest.approx((wanted.low, 1.0), abs=1e-6)


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("seed", SEEDS)
def test_scipy_bca(seed: int, level: float) -> None:
    """Skewed values; both bootstraps have their own draws."""
    stats = pytest.importorskip("scipy.stats")
    error = torch.randn(80, generator=rng(seed), dtype=torch.float64) ** 2
    members = elements(error.shape, MetricOptions(level=level, resamples=40_000), error.device)
    for power, statistic in ((1, lambda x, axis: abs(x).mean(axis)), (2, lambda x, axis: (x**2).mean(axis) ** 0.5)):

        def mine(counts: torch.Tensor, power: int = power) -> torch.Tensor:
            return (counts @ error**power / counts.sum(1)) ** (1 / power)

        got = bootstrap("x", mine, members)
        wanted = stats.bootstrap(
            (error.numpy(),), statistic, confidence_level=level, n_resamples=40_000, method="BCa", rng=seed
        ).confidence_interval
        length = wanted.high - wanted.low
        assert got.low == pytest.approx(wanted.low, abs=0.05 * length)
        assert got.high == pytest.approx(wanted.high, abs=0.05 * length)
