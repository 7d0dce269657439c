"""Detection and selective prediction against the slow twins."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.metrics.cases import element_keywords, flat, flat_weights, labelled, rng
from tests.reference import metrics as slow
from whence import metrics
from whence.metrics.detection import Ranking
from whence.metrics.intervals import resamples

TOLERANCE = 1e-10
SEEDS = [0, 1, 2]
TIES = ["none", "some", "many", "all"]


def scored(ties: str, options: str, seed: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Scores that are higher for positives."""
    g = rng(seed)
    positive = torch.rand(50, generator=g) < 0.4
    scores = torch.randn(50, generator=g, dtype=torch.float64) + positive
    scale = {"none": None, "some": 3.0, "many": 1.0, "all": 0.0}[ties]
    if scale is not None:
        scores = (scores * scale).round()
    return scores, positive, element_keywords((50,), options, g)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", ["plain", "weights", "mask", "all"])
@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize(
    ("fast", "twin"), [(metrics.auroc, slow.auroc), (metrics.aupr, slow.aupr), (metrics.fpr95, slow.fpr_at)]
)
def test_detection_scores(fast: Callable, twin: Callable, ties: str, options: str, seed: int) -> None:
    scores, positive, keywords = scored(ties, options, seed)
    got = fast(scores, positive, resamples=0, **keywords)
    kept = [int(p) for p in flat(positive, keywords)]
    assert got == pytest.approx(twin(flat(scores, keywords), kept, flat_weights(scores, keywords)), rel=TOLERANCE)


@pytest.mark.parametrize("options", ["plain", "weights", "mask", "all"])
@pytest.mark.parametrize("ties", TIES)
def test_the_difference_of_two_scores(ties: str, options: str) -> None:
    first, positive, keywords = scored(ties, options, 0)
    second = torch.randn(50, generator=rng(9), dtype=torch.float64).round() + positive
    kept, weights = [int(p) for p in flat(positive, keywords)], flat_weights(first, keywords)
    wanted = slow.auroc(flat(first, keywords), kept, weights) - slow.auroc(flat(second, keywords), kept, weights)
    got = metrics.auroc_difference(first, second, positive, resamples=0, **keywords)
    assert got == pytest.approx(wanted, rel=TOLERANCE, abs=1e-12)


@pytest.mark.parametrize("grouped", [False, True])
def test_every_resample_draws_the_same_elements_for_both_scores(grouped: bool) -> None:
    """Two scores of one order differ by nothing in every resample; of another order the resamples are those by hand."""
    first, positive, _ = scored("none", "plain", 1)
    more = {"groups": torch.arange(50) // 2} if grouped else {}
    same = metrics.auroc_difference(first, 3 * first + 1, positive, **more)
    assert (float(same), same.low, same.high) == (0.0, 0.0, 0.0)
    second = torch.randn(50, generator=rng(7), dtype=torch.float64) + 0.5 * positive
    one, other = (
        Ranking.read("auroc", s, positive, more).by_element()  # type: ignore[arg-type]
        for s in (first, second)
    )
    for counts in itertools.islice(resamples(one.elements), 1):
        for row in counts[:5]:
            found = float(one.area(row.unsqueeze(0)) - other.area(row.unsqueeze(0)))
            drawn = dict(zip(one.elements.keep.tolist(), one.elements.rows(row.unsqueeze(0))[0].tolist(), strict=True))
            weights, labels = [drawn[i] for i in range(50)], positive.long().tolist()
            wanted = slow.auroc(first.tolist(), labels, weights) - slow.auroc(second.tolist(), labels, weights)
            assert found == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tpr", [0.5, 0.8, 0.95, 0.99, 1.0])
def test_false_positives_at_other_rates(tpr: float, seed: int) -> None:
    scores, positive, _ = scored("some", "plain", seed)
    wanted = slow.fpr_at(scores.tolist(), positive.long().tolist(), [1.0] * 50, tpr)
    assert metrics.fpr95(scores, positive, tpr=tpr, resamples=0) == pytest.approx(wanted, rel=TOLERANCE)


@pytest.mark.parametrize("percent", range(1, 101))
def test_the_rate_kept_may_equal_the_one_asked_for(percent: int) -> None:
    """Positives 1..100, a negative just below each: keeping exactly k positives lets k - 1 of 100 negatives through."""
    positives = torch.arange(1.0, 101.0, dtype=torch.float64)
    scores = torch.cat([positives, positives - 0.5])
    positive = torch.cat([torch.ones(100), torch.zeros(100)]).bool()
    got = metrics.fpr95(scores, positive, tpr=percent / 100, resamples=0)
    assert got == pytest.approx((percent - 1) / 100, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_detection_of_other_inputs(seed: int) -> None:
    g = rng(seed)
    inside = torch.rand(30, generator=g, dtype=torch.float64)
    outside = torch.rand(20, generator=g, dtype=torch.float64) + 0.3
    found = metrics.detection(inside, outside, resamples=0)
    scores = [*inside.tolist(), *outside.tolist()]
    is_outside = [0] * 30 + [1] * 20
    is_inside = [1 - p for p in is_outside]
    ones = [1.0] * 50
    assert set(found) == {"auroc", "aupr_out", "aupr_in", "fpr95"}
    assert found["auroc"] == pytest.approx(slow.auroc(scores, is_outside, ones), rel=TOLERANCE)
    assert found["aupr_out"] == pytest.approx(slow.aupr(scores, is_outside, ones), rel=TOLERANCE)
    assert found["aupr_in"] == pytest.approx(slow.aupr([-s for s in scores], is_inside, ones), rel=TOLERANCE)
    assert found["fpr95"] == pytest.approx(slow.fpr_at(scores, is_outside, ones), rel=TOLERANCE)


def two_class(right: list[float], uncertainty: list[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions that are right where asked for."""
    probs = torch.tensor([[0.7, 0.3]], dtype=torch.float64).expand(len(right), 2)
    return probs, torch.tensor([0 if r else 1 for r in right]), torch.tensor(uncertainty, dtype=torch.float64)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", ["many", "two", "dense"])
def test_risk_coverage_by_confidence(shape: str, seed: int) -> None:
    case = labelled(shape, "plain", seed)
    rows, labels, weights = case.elements()
    errors = [1 - h for h in slow.hits(rows, labels)]
    uncertainty = [1 - max(row) for row in rows]
    got = metrics.aurc(case.probs, case.targets, resamples=0)
    assert got == pytest.approx(slow.aurc(uncertainty, errors, weights), rel=TOLERANCE)
    got = metrics.aurc(case.probs, case.targets, excess=True, resamples=0)
    assert got == pytest.approx(slow.excess_aurc(uncertainty, errors, weights), rel=1e-9)
    for coverage in (0.3, 0.77, 0.8, 1.0):
        got = metrics.selective_accuracy(case.probs, case.targets, coverage=coverage, resamples=0)
        right = [1 - e for e in errors]
        assert got == pytest.approx(slow.selective_accuracy(uncertainty, right, weights, coverage), rel=TOLERANCE)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_risk_coverage_with_ties(levels: int, seed: int) -> None:
    """Seven elements: the expected value over all orders, by enumeration."""
    g = rng(seed)
    right = (torch.rand(7, generator=g) < 0.6).double().tolist()
    u = torch.randint(0, levels, (7,), generator=g).double().tolist()
    probs, targets, uncertainty = two_class(right, u)
    errors = [1 - r for r in right]
    got = metrics.aurc(probs, targets, uncertainty=uncertainty, resamples=0)
    assert got == pytest.approx(slow.aurc(u, errors, [1.0] * 7), rel=TOLERANCE, abs=1e-14)
    got = metrics.aurc(probs, targets, uncertainty=uncertainty, excess=True, resamples=0)
    assert got == pytest.approx(slow.excess_aurc(u, errors, [1.0] * 7), rel=TOLERANCE, abs=1e-14)
    for coverage in (0.2, 0.5, 0.8, 1.0):
        got = metrics.selective_accuracy(probs, targets, uncertainty=uncertainty, coverage=coverage, resamples=0)
        assert got == pytest.approx(slow.selective_accuracy(u, right, [1.0] * 7, coverage), rel=TOLERANCE, abs=1e-14)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", ["weights", "class_weights", "mask", "all"])
def test_selective_accuracy_with_weights(options: str, seed: int) -> None:
    case = labelled("many", options, seed)
    rows, labels, weights = case.elements()
    uncertainty = [1 - max(row) for row in rows]
    for coverage in (0.3, 0.8):
        got = metrics.selective_accuracy(case.probs, case.targets, coverage=coverage, resamples=0, **case.keywords)
        wanted = slow.selective_accuracy(uncertainty, slow.hits(rows, labels), weights, coverage)
        assert got == pytest.approx(wanted, rel=TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("excess", [False, True])
def test_risk_coverage_with_masks_and_weights(seed: int, excess: bool) -> None:
    twin = slow.excess_aurc if excess else slow.aurc
    case = labelled("many", "mask", seed)
    rows, labels, weights = case.elements()
    errors, uncertainty = [1 - h for h in slow.hits(rows, labels)], [1 - max(row) for row in rows]
    got = metrics.aurc(case.probs, case.targets, excess=excess, resamples=0, **case.keywords)
    assert got == pytest.approx(twin(uncertainty, errors, weights), rel=1e-9)

    case = labelled("many", "plain", seed)
    times = torch.randint(0, 4, (60,), generator=rng(seed))
    got = metrics.aurc(case.probs, case.targets, excess=excess, weights=times, resamples=0)
    scaled = metrics.aurc(case.probs, case.targets, excess=excess, weights=times * 0.37, resamples=0)
    copies = metrics.aurc(
        case.probs.repeat_interleave(times, 0), case.targets.repeat_interleave(times), excess=excess, resamples=0
    )  # fmt: skip
    assert got == pytest.approx(float(scaled), rel=1e-10)
    assert got == pytest.approx(float(copies), abs=0.03)


@pytest.mark.parametrize("score", [metrics.auroc, metrics.aupr, metrics.fpr95])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_weight_of_k_is_k_copies(score: Callable, seed: int) -> None:
    scores, positive, _ = scored("some", "plain", seed)
    times = torch.randint(0, 4, (50,), generator=rng(seed))
    copies = score(scores.repeat_interleave(times), positive.repeat_interleave(times), resamples=0)
    assert score(scores, positive, weights=times, resamples=0) == pytest.approx(float(copies), rel=1e-10)


@pytest.mark.parametrize("levels", [3, 1000])
def test_risk_coverage_table(levels: int) -> None:
    """Each row: the error among the elements that are no more uncertain than its threshold."""
    g = rng(4)
    right = (torch.rand(40, generator=g) < 0.6).double().tolist()
    u = torch.randint(0, levels, (40,), generator=g).double().tolist()
    probs, targets, uncertainty = two_class(right, u)
    table = metrics.risk_coverage(probs, targets, uncertainty=uncertainty)
    assert float(table.coverage[-1]) == pytest.approx(1.0)
    assert float(table.risk[-1]) == pytest.approx(1 - math.fsum(right) / 40)
    seen = set()
    for c, r, t in zip(table.coverage.tolist(), table.risk.tolist(), table.threshold.tolist(), strict=True):
        kept = [1 - h for h, v in zip(right, u, strict=True) if v <= t]
        if len(kept) / 40 == pytest.approx(c):
            seen.add(t)
            assert r == pytest.approx(sum(kept) / len(kept))
    assert seen == set(u)
