"""What an audit of a rare class, of shared inputs, and of wrong intervals says and advises."""

from __future__ import annotations

import math
import runpy
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from benchmarks.verdicts import template
from tests.auditing.cases import trained
from tests.auditing.test_detection import ranked
from tests.metrics.cases import rng
from whence.auditing.answered import Answers
from whence.auditing.calibration import Finding, _answers_off
from whence.auditing.deferral import _with_frequent, frequent_words
from whence.auditing.detection import flag_level
from whence.auditing.detector_choice import compared
from whence.auditing.label_tables import Labelled, by_class
from whence.auditing.overlap import overlap
from whence.auditing.points import Judge
from whence.auditing.steps import NumberAnswers, label_steps
from whence.metrics.proportions import share_of
from whence.numerals import p_value, percent
from whence.report.record.audit import AuditRecord, FrequentClass, Metric, Quality
from whence.report.record.common import Estimate, SetSize
from whence.report.record.convert import to_json
from whence.report.record.labels import ClassCalibration
from whence.report.record.verdict import Overlap, VerdictRules


def rare(count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 3, generator=rng(seed))
    return x, ((2 * x[:, 0] - 4).sigmoid() > torch.rand(count, generator=rng(seed + 100))).long()


recomputed: Any = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "recompute_verdict.py"))["recomputed"]


@cache
def weighted() -> AuditRecord:
    """Of a network whose rare class counts five times in its training, with a validation input of the training data."""
    torch.manual_seed(0)
    train, validation, test = rare(900, 0), rare(400, 1), rare(700, 2)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0]))
    model = trained(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)), *train, loss, steps=150)
    validation = (torch.cat([train[0][:1], validation[0][1:]]), validation[1])
    test = (torch.cat([validation[0][1:3], test[0][2:]]), test[1])
    return whence.audit(
        model, train, likelihood="classification", validation=validation, test=test, classes=["well", "ill"],
        sections=["quality", "deferral", "conformal"], progress=False, seed=0,
    ).results  # fmt: skip


def classes_of(record: AuditRecord) -> dict[str, ClassCalibration]:
    assert record.quality is not None and record.quality.classes is not None
    return {row.name: row for row in record.quality.classes}


def test_a_class_that_a_temperature_does_not_correct_is_not_left_to_one() -> None:
    record = weighted()
    ill, steps = classes_of(record)["ill"], record.next_steps or ()
    assert ill.recalibrated is not None and ill.recalibrated > 1.5 * (ill.frequency or 0)
    correct = [step for step in steps if "Correct the probability" in step.words]
    assert len(correct) == 1 and "`ill`" in correct[0].words, "of two classes the rare one says as much as both"
    assert percent(ill.recalibrated) in correct[0].because
    assert not any("temperature scaling" in step.words for step in steps)
    assert record.verdict.tone == "poor" and recomputed(to_json(record))[1] == "poor"


def test_sensitivity_among_the_answered_is_counted() -> None:
    record = weighted()
    assert record.deferral is not None
    words = next(one for one in record.deferral.words if "missed" in one)
    test = {row.target: row.test for row in record.deferral.rows if row.by_coverage}[0.8]
    assert test.error is not None and test.coverage.count is not None
    answered = round((test.coverage.value or 0) * test.coverage.count)
    assert f"Of the {round((test.error.value or 0) * answered)} wrong answers that remain then" in words
    recall = classes_of(record)["ill"].recall
    assert recall is not None and f"{percent(recall.value)} among all" in words


def test_the_most_frequent_class_among_the_answered_is_counted() -> None:
    record = weighted()
    assert record.deferral is not None
    for row in record.deferral.rows:
        if row.answers == "all":
            assert row.test.frequent is not None and row.test.frequent.name == "well"
            assert row.test.frequent.share == pytest.approx(classes_of(record)["well"].frequency)
    u, wrong = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.9]).double(), torch.tensor([0.0, 0, 1, 0, 1]).double()
    targets = torch.tensor([1, 1, 0, 2, 0])
    context: Any = SimpleNamespace(need_targets=lambda _: targets, class_name=lambda c: "abc"[c])
    rule: Any = replace(record.deferral.rows[0], threshold=0.5)
    found = _with_frequent(context, rule, Answers(u, wrong, torch.ones(5).double())).test.frequent
    assert found == FrequentClass("b", 0.5)


@pytest.mark.parametrize(
    ("share", "error", "said"),
    [
        (0.981, (0.018, 0.012, 0.025), "wrong for 1.9% of the answered inputs: no significant difference"),
        (0.99, (0.018, 0.012, 0.025), "wrong for 1% of the answered inputs: significantly fewer"),
        (0.9, (0.018, 0.012, 0.025), None),
    ],
)
def test_deferral_is_compared_with_the_most_frequent_class(
    share: float, error: tuple[float, float, float], said: str | None
) -> None:
    deferral = weighted().deferral
    assert deferral is not None
    usual = next(row for row in deferral.rows if row.by_coverage and row.target == 0.8)
    reached = replace(usual.test, error=Estimate(*error, 0.95, 500), frequent=FrequentClass("well", share))
    words = [*frequent_words(replace(deferral, rows=(replace(usual, test=reached),)))]
    assert len(words) == (said is not None) and (said is None or f"Always answering `well` would be {said}" in words[0])


def test_the_card_has_what_deferral_misses() -> None:
    record = weighted()
    assert record.deferral is not None
    point = next(one for one in record.verdict.points if one.key == "errors")
    assert point.words.endswith(record.deferral.words[0]) and "are missed `ill`" in point.words
    assert "would be expected if its stated confidences were correct" in point.words


def test_guarantees_that_shared_inputs_break_are_said_to_be_broken() -> None:
    record = weighted()
    assert record.conformal is not None
    assert "not guaranteed here: 1 of the 400 validation inputs is in the training data" in record.conformal.guarantee
    found = record.data.overlap
    assert found is not None and (found.test, found.validation, found.between) == (0, 1, 2)


def test_sets_that_hold_fewer_than_the_answers_are_told() -> None:
    record = weighted()
    assert record.conformal is not None and record.quality is not None
    right = next(row.bayesian for row in record.quality.metrics if row.name == "accuracy")
    assert right is not None and right.value is not None
    said = [one for one in record.conformal.words if "have one answer or none" in one]
    single = [row for row in record.conformal.rows if row.sets and row.sets.singletons + row.sets.empty == 1]
    low = [row.level for row in single if row.level <= right.value]
    assert len(said) == bool(low)
    assert not low or percent(right.value) in said[0]


def test_test_inputs_among_the_validation_inputs_count() -> None:
    sizes = {"test": SetSize(100, False), "validation": SetSize(200, False)}
    for shared, tone in ((0, "good"), (2, "mixed"), (40, "poor")):
        data = replace(template().data, **sizes, overlap=Overlap(1000, 0, 0, shared))
        point = Judge(replace(template(), data=data), VerdictRules()).independence()
        assert point is not None and point.tone == tone
        assert (f"{shared} of 100 test inputs ({shared}%) are also in the validation data" in point.words) is bool(
            shared
        )
        assert ("None of the 100 test inputs occurs among the" in point.words) is True
        assert ("or the 200 validation inputs" in point.words) is not bool(shared)
    x = torch.randn(6, 2)
    one = whence.auditing.data.Examples("test", x, None)
    other = replace(one, name="validation", inputs=x[2:])
    found = overlap((torch.zeros(3, 2), torch.zeros(3)), one, other)
    assert found is not None and found.between == 4


# Answers of a class


def test_overconfidence_by_class_is_that_of_a_loop() -> None:
    logits = 2 * torch.randn(600, 3, generator=rng(0), dtype=torch.float64)
    p, y = logits.softmax(1), torch.multinomial(logits.softmax(1), 1, generator=rng(1)).squeeze(1)
    rows = by_class(Labelled(p, y, None), ["a", "b", "c"], p.mean(0))
    assert rows is not None
    for c, row in enumerate(rows):
        mine = [(float(p[i].max()), float(y[i] == c)) for i in range(600) if int(p[i].argmax()) == c]
        apart = sum(sure - right for sure, right in mine) / len(mine)
        assert row.overconfidence is not None and row.overconfidence.value == pytest.approx(apart)
        assert row.overconfidence.level == pytest.approx(1 - 0.05 / 3)
        assert row.recalibrated == pytest.approx(float(p[:, c].mean()))


def graded(shift: float, seed: int) -> Finding | None:
    """Of five classes, where the answers for one state too much or too little by a logit of ``shift``."""
    logits = 2 * torch.randn(1500, 5, generator=rng(seed), dtype=torch.float64)
    y = torch.multinomial(logits.softmax(1), 1, generator=rng(seed + 1000)).squeeze(1)
    logits[:, 0] += shift
    rows = by_class(Labelled(logits.softmax(1), y, None), list("abcde"))
    record = replace(template(), quality=Quality((), None, None, (), classes=rows))
    return _answers_off(record, VerdictRules())


def test_answers_that_state_far_too_much_are_found_and_right_ones_are_not() -> None:
    assert sum((found := graded(0.0, seed)) is None or found.tone == "good" for seed in range(40)) >= 39
    far = [graded(2.0, seed) for seed in range(10)]
    assert all(found is not None and found.tone in ("mixed", "poor") for found in far)
    assert all(found is not None and "Where it answers `a` it is overconfident" in found.words for found in far)


# Levels, steps, p-values, detectors, the opening


def test_levels_are_judged_by_intervals_that_hold_for_all_of_them() -> None:
    gen = rng(0)
    x = torch.randn(500, 2, generator=gen)
    y = x @ torch.tensor([[1.0], [-1.0]]) + 0.3 * torch.randn(500, 1, generator=gen)
    model = nn.Linear(2, 1)
    trained(model, x[:200], y[:200], nn.functional.mse_loss, steps=150)
    audit = whence.audit(
        model, (x[:200], y[:200]), likelihood=whence.Gaussian(noise=0.45), validation=(x[200:300], y[200:300]),
        test=(x[300:], y[300:]), sections=["quality"], tune=False, progress=False,
    )  # fmt: skip
    quality = audit.results.quality
    assert quality is not None and quality.numbers is not None
    for row in quality.numbers.coverage:
        assert row.joint is not None and row.joint.count is not None and row.joint.value == row.bayesian.value
        exact = share_of("coverage", round((row.joint.value or 0) * row.joint.count), row.joint.count, 0.99)
        assert exact is not None
        assert (row.joint.low, row.joint.high) == pytest.approx((exact.low, exact.high), abs=1e-5)
        assert (row.joint.low or 0) < (row.bayesian.low or 0) and row.judged is row.joint
    assert "significantly more than" in " ".join(quality.numbers.words)  # the noise is half as large


def test_the_slider_has_the_thresholds_of_the_rules() -> None:
    u = torch.rand(900, generator=rng(0), dtype=torch.float64)
    wrong = (torch.rand(900, generator=rng(1), dtype=torch.float64) < u).double()
    rules = [0.123456, 0.5, 0.8, 2.0, -1.0]
    for steps in (
        label_steps(Answers(u, wrong, torch.ones_like(wrong)), rules),
        NumberAnswers(u, wrong + u).steps(rules),
    ):
        places = {step.threshold: step for step in steps}
        assert {0.123456, 0.5, 0.8} <= places.keys() and not {2.0, -1.0} & places.keys()
        assert all(step.answered == int((u <= step.threshold).sum()) for step in steps)


def test_a_p_value_can_reach_the_level_as_it_is_printed() -> None:
    for size in range(5, 400):
        least = 1 / (size + 1)
        level = flag_level(size)
        assert level >= least and float(p_value(level)) >= min(least, level)
        assert level == 0.01 if size >= 99 else level < least * 1.1
        assert math.floor(level * (size + 1)) >= 1


def test_detectors_without_a_mistake_are_not_ranked() -> None:
    rows, scores = ranked({"combined": 60.0, "energy": 50.0, "entropy": 0.5})
    words = " ".join(compared("combined", rows, scores, True).words)
    assert "2 detectors separate the two sets completely" in words and "0.000" not in words
    assert words.endswith("so the default, the combination of detectors, is kept and recommended.")


def test_the_class_that_is_recognised_least_is_named() -> None:
    def row(name: str, value: float, high: float) -> ClassCalibration:
        return ClassCalibration(
            name, 0.5, 0.5, Estimate(0.0, -0.1, 0.1, 0.95, 50), recall=Estimate(value, 0.0, high, 0.95, 50)
        )

    accuracy = Metric("accuracy", "Accuracy", "higher", "", None, Estimate(0.9, 0.88, 0.92, 0.95, 500), None)
    for high, said in ((0.7, " (of class `b` 60%)"), (0.85, "")):
        quality = Quality((accuracy,), None, None, (), classes=(row("a", 0.95, 0.97), row("b", 0.6, high)))
        assert Judge(replace(template(), quality=quality), VerdictRules()).worst_class == said
