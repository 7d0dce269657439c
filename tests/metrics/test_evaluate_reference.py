"""All metrics in one go against the slow twins."""

from __future__ import annotations

import math

import pytest
import torch

from tests.metrics.cases import binary, labelled, rng
from tests.reference import metrics as slow
from whence import metrics
from whence.predictive.predictions import ClassificationPrediction


def entropy(row: list[float]) -> float:
    return -sum(p * math.log(p) for p in row)


@pytest.mark.parametrize("options", ["plain", "weights", "all"])
@pytest.mark.parametrize("shape", ["many", "dense"])
def test_labels(shape: str, options: str) -> None:
    case = labelled(shape, options, 0)
    elements = case.elements()
    rows, labels, weights = elements
    found = metrics.evaluate(case.probs, case.targets, resamples=0, **case.keywords)
    uncertainty = [1 - max(row) for row in rows]
    wanted = {
        "accuracy": slow.accuracy(*elements),
        "nll": slow.nll(*elements),
        "brier": slow.brier(*elements),
        "ece": slow.ece(*elements, 15, "width", "l1"),
        "mce": slow.ece(*elements, 15, "width", "max"),
        "classwise_ece": slow.classwise_ece(*elements, 15, "width"),
        "selective_accuracy": slow.selective_accuracy(uncertainty, slow.hits(rows, labels), weights, 0.8),
    }
    assert {name: float(found[name]) for name in wanted} == pytest.approx(wanted, rel=1e-9)


def test_binary_labels() -> None:
    p, targets, case = binary((60,), "plain", 1)
    rows, labels, weights = case.elements()
    found = metrics.evaluate(p, targets, resamples=0)
    assert found["brier"] == pytest.approx(slow.brier_binary(p.tolist(), labels, weights), rel=1e-9)
    assert found["ece"] == pytest.approx(slow.ece(rows, labels, weights, 15, "width", "l1"), rel=1e-9)
    assert found["auroc"] == pytest.approx(slow.auroc(p.tolist(), labels, weights), rel=1e-9)


def test_other_inputs_are_told_by_entropy() -> None:
    case = labelled("many", "plain", 2)
    other = torch.randn(30, 4, generator=rng(3), dtype=torch.float64).softmax(1)
    found = metrics.evaluate(case.probs, case.targets, ood=other, resamples=0)
    scores = [entropy(row) for row in [*case.probs.tolist(), *other.tolist()]]
    outside = [0] * 60 + [1] * 30
    ones = [1.0] * 90
    assert found["ood_auroc"] == pytest.approx(slow.auroc(scores, outside, ones), rel=1e-9)
    assert found["ood_aupr"] == pytest.approx(slow.aupr(scores, outside, ones), rel=1e-9)
    assert found["ood_fpr95"] == pytest.approx(slow.fpr_at(scores, outside, ones), rel=1e-9)


def test_other_inputs_are_told_by_epistemic_uncertainty() -> None:
    case = labelled("many", "plain", 4)
    other = torch.randn(30, 4, generator=rng(5), dtype=torch.float64).softmax(1)
    part = torch.rand(90, generator=rng(6), dtype=torch.float64)
    predictions, scores = [], []
    for probs, share in ((case.probs, part[:60]), (other, part[60:])):
        total = torch.tensor([entropy(row) for row in probs.tolist()], dtype=torch.float64)
        predictions.append(ClassificationPrediction(probs, probs.log(), total * share))
        scores += (total * (1 - share)).tolist()
    found = metrics.evaluate(predictions[0], case.targets, ood=predictions[1], resamples=0)
    wanted = slow.auroc(scores, [0] * 60 + [1] * 30, [1.0] * 90)
    assert found["ood_auroc_epistemic"] == pytest.approx(wanted, rel=1e-9)


def test_regression() -> None:
    g = rng(7)
    mean, y = torch.randn(2, 15, generator=g, dtype=torch.float64)
    std = 0.5 + torch.rand(15, generator=g, dtype=torch.float64)
    found = metrics.evaluate(torch.distributions.Normal(mean, std), y, resamples=0)
    m, s, t, ones = mean.tolist(), std.tolist(), y.tolist(), [1.0] * 15
    lows = [a - 1.959963984540054 * b for a, b in zip(m, s, strict=True)]
    highs = [a + 1.959963984540054 * b for a, b in zip(m, s, strict=True)]
    triples = list(zip(t, m, s, strict=True))
    wanted = {
        "rmse": slow.rmse(m, t, ones),
        "mae": slow.mae(m, t, ones),
        "nll": slow.weighted_mean([slow.mixture_nll(v, [a], [b]) for v, a, b in triples], ones),
        "crps": slow.weighted_mean([slow.mixture_crps(v, [a], [b]) for v, a, b in triples], ones),
        "coverage": slow.coverage(lows, highs, t, ones),
        "width": slow.width(lows, highs, ones),
        "interval_score": slow.interval_score(lows, highs, t, ones, 0.95),
    }
    assert {name: float(found[name]) for name in wanted} == pytest.approx(wanted, rel=1e-7)
