"""What the verdict says, and how often it is wrong on simulated data."""

from __future__ import annotations

import math
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import whence
from tests.auditing.cases import classification
from whence.auditing.quality import _by_class
from whence.auditing.tasks import Labels
from whence.auditing.verdict import SUMMARIES, Found, _gain, _majority, _novelty, _with_classes, leading_layer
from whence.predictive.recalibration import recalibrated
from whence.report.record.audit import Baseline, Metric, Point, Quality
from whence.report.record.common import Estimate
from whence.report.record.sections import Layer, Sensitivity, Shares


def context(shares: dict[float, dict[str, float]]) -> Any:
    rows = [Sensitivity(f, n, s, None) for f, table in shares.items() for n, s in table.items()]
    return SimpleNamespace(sensitivity=rows)


def layer(name: str, test: Shares | None) -> Layer:
    empty: dict[str, Any] = {one.name: None for one in fields(Layer)}
    return Layer(**{**empty, "name": name, "test": test})


def layers(shares: dict[str, float]) -> list[Layer]:
    return [layer(name, Shares(share, 0.3, None, 0.4, 0.7)) for name, share in shares.items()]


def test_a_layer_that_leads_throughout_is_named_with_its_range() -> None:
    every = {0.1: {"a": 0.4, "b": 0.3}, 1.0: {"a": 0.6, "b": 0.4}, 10.0: {"a": 0.7, "b": 0.3}}
    found = leading_layer(layers({"a": 0.6, "b": 0.4}), context(every))
    assert found is not None and not found.elsewhere
    assert found.briefly() == "`a` contributes the largest share of the variance (60%)."
    assert found.words() == (
        "`a` contributes the largest share of the variance (60%; 40% to 70% under priors ten times weaker to ten times "
        "stronger; 30% under the prior alone)."
    )


def test_one_that_does_not_is_not_named_alone() -> None:
    every = {0.1: {"a": 0.4, "b": 0.6}, 1.0: {"a": 0.6, "b": 0.4}, 10.0: {"a": 0.7, "b": 0.3}}
    found = leading_layer(layers({"a": 0.6, "b": 0.4}), context(every))
    assert found is not None and found.elsewhere == ((0.1, "b"),)
    assert "depends on the prior" in found.briefly() and "`a`" not in found.briefly()
    assert found.words() == (
        "No layer has the largest share of the variance under every prior: `a` under this one (60%; 30% under the "
        "prior alone), `b` under one ten times weaker."
    )


def test_without_shares_there_is_none() -> None:
    assert leading_layer([layer("a", None)], context({})) is None
    assert leading_layer([], context({})) is None
    found = leading_layer(layers({"a": 1.0}), context({}))  # drawn posteriors have no other priors
    assert found is not None and not found.elsewhere


# Classes and guessing


def binary_quality(shift: float, seed: int, size: int = 1000) -> Quality:
    """Quality of predictions of a rare label whose logits are too large by ``shift``."""
    gen = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(size, 1, generator=gen, dtype=torch.float64) - 4.0
    y = (torch.rand(size, 1, generator=gen, dtype=torch.float64) < logits.sigmoid()).long()
    prediction = SimpleNamespace(probs=(logits + shift).sigmoid())
    given: Any = SimpleNamespace(task=Labels("binary"), classes=None, seed=0)
    return Quality((), None, None, (), classes=_by_class(given, prediction, y))


def tone(quality: Quality) -> str:
    return _with_classes(Point("Calibration", "Fine.", "good"), Found(quality)).tone


def test_a_label_that_is_predicted_too_often_is_found_and_a_right_one_is_not() -> None:
    """Logits of a classifier trained with pos_weight=5 are too large by log 5; 100 simulated test sets of each."""
    good = [tone(binary_quality(0.0, seed)) for seed in range(100)]
    bad = [tone(binary_quality(math.log(5), seed)) for seed in range(100)]
    assert good.count("good") >= 95
    assert bad.count("poor") >= 95


def test_the_words_name_the_class_and_its_numbers() -> None:
    (row,) = binary_quality(math.log(5), 1).classes or ()
    point = _with_classes(Point("Calibration", "Fine.", "good"), Found(binary_quality(math.log(5), 1)))
    assert point.words == (
        f"Fine. But it predicts `positive` with a mean probability of {row.predicted:.1%}; its frequency is "
        f"{row.frequency:.1%}."
    )


def accuracy(value: float, low: float, high: float) -> Metric:
    found = Estimate(value, low, high, 0.95, 500)
    return Metric("accuracy", "Accuracy", "higher", "", found, found, None)


def test_a_network_that_guessing_beats_is_told_so() -> None:
    rows = binary_quality(0.0, 0).classes
    assert rows is not None and rows[0].frequency is not None
    most = 1 - rows[0].frequency
    worse = Quality((accuracy(most - 0.05, most - 0.07, most - 0.03),), None, None, (), classes=rows)
    given: Any = SimpleNamespace(classes=None)
    point = _majority(given, Found(worse))
    assert point is not None and point.tone == "poor" and "`not positive`" in point.words
    named: Any = SimpleNamespace(classes=("healthy", "ill"), class_name=lambda c: ("healthy", "ill")[c])
    point = _majority(named, Found(worse))
    assert point is not None and "`healthy`" in point.words
    as_good = Quality((accuracy(most - 0.01, most - 0.03, most + 0.01),), None, None, (), classes=rows)
    assert _majority(given, Found(as_good)) is None


# The recalibrated network


def test_the_gain_is_judged_against_the_recalibrated_network() -> None:
    apart = Estimate(-0.2, -0.3, -0.1, 0.95, 500)
    nothing = Estimate(0.01, -0.01, 0.03, 0.95, 500)
    nll = Metric("nll", "NLL", "lower", "", apart, apart, apart, apart, nothing)
    alone = _gain(Found(Quality((nll,), None, None, ())))
    assert alone is not None and alone.tone == "good" and "the plain network" in alone.words
    baseline = Baseline("temperature scaling", "temperature 1.7", 300)
    beside = _gain(Found(Quality((nll,), None, None, (), baseline)))
    assert beside is not None and beside.tone == "mixed"
    assert beside.words == (
        "No significant change in log loss compared with the plain network after temperature scaling (+0.01 nats, 95% "
        "interval −0.01 to +0.03)."
    )
    assert "Gain from uncertain weights" not in SUMMARIES  # a statement of its own


def test_an_audit_compares_with_temperature_scaling() -> None:
    given = classification()
    held = given.data()
    audit = whence.audit(given.model, given.train, **held, sections=["quality"], progress=False)
    quality = audit.results.quality
    assert quality is not None and quality.baseline is not None and quality.classes is not None
    with torch.no_grad():
        outputs = {name: given.model(held[name][0]) for name in ("validation", "test")}
    scaled = recalibrated(whence.Categorical(), outputs["validation"], held["validation"][1])
    assert quality.baseline.words == scaled.words and quality.baseline.inputs == len(held["validation"][1])
    nll = next(m for m in quality.metrics if m.name == "nll")
    direct = whence.metrics.nll(scaled.predict(outputs["test"]), held["test"][1])
    assert nll.recalibrated is not None and nll.recalibrated.value == pytest.approx(float(direct), rel=1e-5)
    assert nll.gain is not None and nll.bayesian is not None
    assert nll.gain.value == pytest.approx((nll.bayesian.value or 0) - float(direct), abs=1e-5)
    assert [row.name for row in quality.classes] == [str(c) for c in range(len(quality.classes))]
    again = whence.audit(
        given.model, given.train, likelihood="classification", test=held["test"], sections=["quality"], progress=False
    )
    assert again.results.quality is not None and again.results.quality.baseline is None


def detector(name: str, value: float) -> Any:
    return SimpleNamespace(name=name, label=name, auroc=Estimate(value, value - 0.02, value + 0.02, 0.95, 500))


def test_novelty_that_a_simpler_detector_beats_is_not_called_good() -> None:
    ranked = [detector("mahalanobis", 0.99), detector("novelty", 0.94), detector("entropy", 0.9)]
    point = _novelty(Found(novelty=SimpleNamespace(detectors=ranked, choice=None)))  # type: ignore[arg-type]
    assert point is not None and point.tone == "mixed" and "mahalanobis, 0.99" in point.words
    best = [detector("novelty", 0.95), detector("mahalanobis", 0.94), detector("entropy", 0.9)]
    point = _novelty(Found(novelty=SimpleNamespace(detectors=best, choice=None)))  # type: ignore[arg-type]
    assert point is not None and point.tone == "good" and "(entropy: 0.90)" in point.words
    weak = [detector("mahalanobis", 1.0), detector("novelty", 0.6), detector("entropy", 0.5)]
    point = _novelty(Found(novelty=SimpleNamespace(detectors=weak, choice=None)))  # type: ignore[arg-type]
    assert point is not None and point.tone == "poor"
