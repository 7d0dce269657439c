"""Scores of labels and their calibration against the slow twins."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.metrics.cases import OPTIONS, SHAPES, Labelled, binary, labelled, rng
from tests.reference import metrics as slow
from tests.reference.people import clopper_pearson
from whence import metrics
from whence.predictive.predictions import BinaryPrediction, ClassificationPrediction

TOLERANCE = 1e-10
SEEDS = [0, 1, 2]
PLAIN_SCORES: list[tuple[Callable, Callable]] = [
    (metrics.accuracy, slow.accuracy),
    (metrics.nll, slow.nll),
    (metrics.brier, slow.brier),
]


def coarse(options: str, seed: int) -> Labelled:
    """The largest probability takes five values only."""
    case = labelled("many", options, seed)
    g = rng(seed + 100)
    top = torch.tensor([0.5, 0.6, 0.7, 0.8, 0.9], dtype=torch.float64)[torch.randint(5, (60,), generator=g)]
    rest = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64) / 6
    probs = torch.cat([top[:, None], (1 - top)[:, None] * rest], 1)
    order = torch.rand(60, 4, generator=g).argsort(1)
    return Labelled(probs.gather(1, order), case.targets, case.keywords)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("fast", "twin"), PLAIN_SCORES)
def test_plain_scores(fast: Callable, twin: Callable, shape: str, options: str, seed: int) -> None:
    case = labelled(shape, options, seed)
    got = fast(case.probs, case.targets, resamples=0, **case.keywords)
    assert got == pytest.approx(twin(*case.elements()), rel=TOLERANCE)
    weights = case.elements()[2]
    assert got.count in (len(weights), sum(w > 0 for w in weights))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bins", [1, 7, 15])
def test_equal_width_calibration(shape: str, options: str, seed: int, bins: int) -> None:
    case = labelled(shape, options, seed)
    elements = case.elements()
    common = {"bins": bins, "resamples": 0, **case.keywords}
    for norm in ("l1", "l2"):
        got = metrics.ece(case.probs, case.targets, norm=norm, **common)
        assert got == pytest.approx(slow.ece(*elements, bins, "width", norm), rel=TOLERANCE)
    got = metrics.mce(case.probs, case.targets, **common)
    assert got == pytest.approx(slow.ece(*elements, bins, "width", "max"), rel=TOLERANCE)
    got = metrics.classwise_ece(case.probs, case.targets, **common)
    assert got == pytest.approx(slow.classwise_ece(*elements, bins, "width"), rel=TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bins", [1, 4, 10])
def test_equal_mass_calibration(shape: str, seed: int, bins: int) -> None:
    """Sixty elements without ties: every bin holds as many."""
    case = labelled(shape, "plain", seed)
    elements = case.elements()
    common = {"bins": bins, "binning": "mass", "resamples": 0}
    for norm in ("l1", "l2"):
        got = metrics.ece(case.probs, case.targets, norm=norm, **common)
        assert got == pytest.approx(slow.ece(*elements, bins, "mass", norm), rel=TOLERANCE)
    got = metrics.mce(case.probs, case.targets, **common)
    assert got == pytest.approx(slow.ece(*elements, bins, "mass", "max"), rel=TOLERANCE)
    if shape != "two":
        got = metrics.classwise_ece(case.probs, case.targets, **common)
        assert got == pytest.approx(slow.classwise_ece(*elements, bins, "mass"), rel=TOLERANCE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", ["plain", "weights", "all"])
@pytest.mark.parametrize("bins", [3, 7, 10])
@pytest.mark.parametrize("rounded", [False, True])
def test_equal_mass_with_weights_and_ties(options: str, seed: int, bins: int, rounded: bool) -> None:
    """Bins are as heavy as the heaviest block of ties allows, and the score is that of the bins that are shown."""
    case = coarse(options, seed) if rounded else labelled("many", options, seed)
    rows, labels, weights = case.elements()
    confidence = [max(row) for row in rows]
    table = metrics.reliability(case.probs, case.targets, bins=bins, binning="mass", **case.keywords)
    counts = [int(c) for c in table.count]
    assert sum(counts) in (len(weights), sum(w > 0 for w in weights))

    blocks: dict[float, float] = {}
    for v, w in zip(confidence, weights, strict=True):
        blocks[v] = blocks.get(v, 0.0) + w
    shares = [float(w) / sum(weights) for w in table.weight]
    if float(table.weight.sum()) == pytest.approx(1.0):
        shares = [float(w) for w in table.weight]
    heaviest = max(blocks.values()) / sum(weights)
    assert sum(shares) == pytest.approx(1.0)
    assert all(abs(s - 1 / bins) <= heaviest + 1e-9 for s in shares)

    edges = [float(h) for h, s in zip(table.high, shares, strict=True) if s > 0]
    index = [next((b for b, h in enumerate(edges) if v <= h), len(edges) - 1) for v in confidence]
    for norm in ("l1", "l2"):
        got = metrics.ece(
            case.probs, case.targets, bins=bins, binning="mass", norm=norm, resamples=0, **case.keywords
        )  # fmt: skip
        wanted = slow.binned_error(confidence, slow.hits(rows, labels), weights, index, norm)
        assert got == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("options", ["plain", "weights", "class_weights", "mask", "all"])
@pytest.mark.parametrize("shape", [(60,), (20, 3)])
def test_binary(shape: tuple[int, ...], options: str, seed: int) -> None:
    p, targets, case = binary(shape, options, seed)
    rows, labels, weights = case.elements()
    for y in (targets, targets.double(), targets.bool()):
        common = {"resamples": 0, **case.keywords}
        assert metrics.accuracy(p, y, **common) == pytest.approx(slow.accuracy(rows, labels, weights), rel=TOLERANCE)
        assert metrics.nll(p, y, **common) == pytest.approx(slow.nll(rows, labels, weights), rel=TOLERANCE)
        wanted = slow.brier_binary([row[1] for row in rows], labels, weights)
        assert metrics.brier(p, y, **common) == pytest.approx(wanted, rel=TOLERANCE)
        for norm in ("l1", "l2"):
            got = metrics.ece(p, y, bins=8, norm=norm, **common)
            assert got == pytest.approx(slow.ece(rows, labels, weights, 8, "width", norm), rel=TOLERANCE)
        got = metrics.mce(p, y, bins=8, **common)
        assert got == pytest.approx(slow.ece(rows, labels, weights, 8, "width", "max"), rel=TOLERANCE)
        got = metrics.classwise_ece(p, y, bins=8, **common)
        assert got == pytest.approx(slow.classwise_ece(rows, labels, weights, 8, "width"), rel=TOLERANCE)


SCORES = [metrics.accuracy, metrics.nll, metrics.brier, metrics.ece, metrics.mce, metrics.classwise_ece]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("shape", ["many", "dense"])
def test_the_ways_to_hand_over_the_same_probabilities(score: Callable, shape: str) -> None:
    case = labelled(shape, "weights", 0)
    wanted = score(case.probs, case.targets, resamples=0, **case.keywords)
    last = case.probs.movedim(1, -1).contiguous()
    assert score(last, case.targets, class_dim=-1, resamples=0, **case.keywords) == pytest.approx(wanted, rel=1e-12)
    for class_dim, probs in ((1, case.probs), (-1, last)):
        prediction = ClassificationPrediction(probs, probs.log(), class_dim=class_dim)
        assert score(prediction, case.targets, resamples=0, **case.keywords) == pytest.approx(wanted, rel=1e-12)
    arrays = {k: v.numpy() for k, v in case.keywords.items()}
    assert score(case.probs.numpy(), case.targets.numpy(), resamples=0, **arrays) == pytest.approx(wanted, rel=1e-12)
    lists = {k: v.tolist() for k, v in case.keywords.items()}
    assert score(case.probs.tolist(), case.targets.tolist(), resamples=0, **lists) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("score", SCORES)
def test_binary_prediction(score: Callable) -> None:
    p, targets, _ = binary((20, 3), "plain", 5)
    prediction = BinaryPrediction(p, p.logit())
    assert score(prediction, targets, resamples=0) == pytest.approx(float(score(p, targets, resamples=0)), rel=1e-12)


def repeated(values: Tensor, times: Tensor) -> Tensor:
    return values.repeat_interleave(times, 0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("binning", ["width", "mass"])
def test_a_weight_of_k_is_k_copies(score: Callable, seed: int, binning: str) -> None:
    case = labelled("many", "plain", seed)
    times = torch.randint(0, 4, (60,), generator=rng(seed))
    keywords = {} if score in SCORES[:3] else {"binning": binning, "bins": 6}
    got = score(case.probs, case.targets, weights=times, resamples=0, **keywords)
    wanted = score(repeated(case.probs, times), repeated(case.targets, times), resamples=0, **keywords)
    assert got == pytest.approx(float(wanted), rel=1e-10)
    scaled = score(case.probs, case.targets, weights=times * 17.3, resamples=0, **keywords)
    assert got == pytest.approx(float(scaled), rel=1e-10)


@pytest.mark.parametrize("p", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_values_at_the_edge_of_a_bin_belong_to_the_lower_one(p: float) -> None:
    """With one value of each side of 0.6 the bins (0.4, 0.6] and (0.6, 0.8] give another error than [0.4, 0.6)."""
    probs = torch.tensor([p, min(p + 0.1, 1.0), max(p - 0.1, 0.0)], dtype=torch.float64)
    rows = [[1 - float(q), float(q)] for q in probs]
    labels = [1, 1, 0]
    got = metrics.classwise_ece(torch.tensor(rows, dtype=torch.float64), torch.tensor(labels), bins=5, resamples=0)
    assert got == pytest.approx(slow.classwise_ece(rows, labels, [1.0] * 3, 5, "width"), abs=1e-12)


@pytest.mark.parametrize("of", ["confidence", 0, 2])
@pytest.mark.parametrize("options", ["plain", "all"])
@pytest.mark.parametrize("shape", ["many", "dense"])
def test_reliability(of: str | int, options: str, shape: str) -> None:
    case = labelled(shape, options, 3)
    rows, labels, weights = case.elements()
    bins = 6
    values = [max(row) if of == "confidence" else row[int(of)] for row in rows]
    outcome = slow.hits(rows, labels) if of == "confidence" else [float(y == of) for y in labels]
    index = slow.width_bins(values, bins)
    table = metrics.reliability(case.probs, case.targets, bins=bins, of=of, **case.keywords)
    found = slow.gaps(values, outcome, weights, index)
    np.testing.assert_allclose(table.low.cpu(), np.arange(bins) / bins, atol=1e-12)
    np.testing.assert_allclose(table.high.cpu(), (np.arange(bins) + 1) / bins, atol=1e-12)
    total = float(table.weight.sum())
    for b in range(bins):
        if b not in found:
            assert float(table.weight[b]) == 0
            continue
        share, gap = found[b]
        inside = [n for n in range(len(values)) if index[n] == b]
        w = [weights[n] for n in inside]
        assert float(table.weight[b]) / total == pytest.approx(share, rel=1e-10)
        assert int(table.count[b]) in (len(inside), sum(v > 0 for v in w))
        mean_outcome = slow.weighted_mean([outcome[n] for n in inside], w)
        assert float(table.accuracy[b]) == pytest.approx(mean_outcome, rel=1e-10, abs=1e-12)
        mean_value = slow.weighted_mean([values[n] for n in inside], w)
        assert float(table.confidence[b]) == pytest.approx(mean_value, rel=1e-10)
        assert abs(float(table.gap[b])) == pytest.approx(abs(gap), rel=1e-8, abs=1e-12)
        if options == "plain" and shape == "many":
            low, high = clopper_pearson(round(len(inside) * mean_outcome), len(inside))
            assert float(table.accuracy_low[b]) == pytest.approx(low, rel=1e-6, abs=1e-9)
            assert float(table.accuracy_high[b]) == pytest.approx(high, rel=1e-6, abs=1e-9)
