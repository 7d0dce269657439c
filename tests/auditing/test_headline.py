"""The headline of a verdict, what was not judged, the rules in words, and what no data can show."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.verdicts import template
from tests.auditing.test_verdict import accuracy, layers, levels
from whence.auditing import rules_in_words
from whence.auditing.calibration import small_problems
from whence.auditing.difference import _points
from whence.auditing.limits import limits
from whence.auditing.next_steps import next_steps
from whence.auditing.points import Judge
from whence.auditing.unjudged import not_judged
from whence.auditing.verdict import judged, verdict
from whence.report.record.audit import Baseline, Data, Metric, Quality
from whence.report.record.common import Estimate, SetSize
from whence.report.record.labels import ClassCalibration, TwoClasses
from whence.report.record.verdict import JUDGED, Guessing, Overlap, Verdict, VerdictRules

# The headline, and what was not judged


def shared(test: int, held: int, between: int, same: int | None = None) -> Data:
    sizes = {"test": SetSize(230, False), "validation": SetSize(150, False)}
    return replace(template().data, **sizes, overlap=Overlap(650, test, held, between, same))


def test_copies_that_make_an_audit_invalid_stand_first() -> None:
    record = judged(replace(template(), data=shared(12, 5, 1, 6)), VerdictRules())
    assert record.verdict.words.startswith(
        "The audit is not valid as it stands: 12 of 230 test inputs (5.2%) and 5 of 150 validation inputs (3.3%) are "
        "in the training data. The network ("
    ), "1 of 230 in the validation data is within the limit"
    both = judged(replace(template(), data=shared(12, 0, 2)), VerdictRules()).verdict.words
    assert "12 of 230 test inputs (5.2%) are in the training data, and 2 of 230 test inputs (0.87%) are in the" in both
    point = record.verdict.points[0]
    assert point.label == "No copies in the test data" and point.words == (
        "12 of 230 test inputs (5.2%) are also in the training data, 6 of them with the same target. 5 of 150 "
        "validation inputs (3.3%) are also in the training data. 1 of 230 test inputs (0.43%) is also in the "
        "validation data, on which the prior and the thresholds were chosen. Near copies, and inputs of the same "
        "patient, site or session, were not looked for."
    )
    tones = [(step.because.split(" ")[0], step.tone) for step in record.next_steps or () if " inputs (" in step.because]
    assert tones == [("12", "poor"), ("5", "mixed"), ("1", "note")]  # each by its own share
    mixed = judged(replace(template(), data=shared(4, 0, 0)), VerdictRules()).verdict
    assert "4 of 230 test inputs (1.7%) are in the training data." in mixed.words and "valid" not in mixed.words
    none = judged(replace(template(), data=shared(0, 0, 0)), VerdictRules()).verdict.points[0]
    assert none.tone == "good" and none.words.startswith(
        "None of the 230 test inputs occurs among the 650 training inputs"
    )
    assert "or the 150 validation inputs. None of the 150 validation inputs occurs among" in none.words


def test_a_rare_class_is_counted_once_and_its_threshold_is_a_step() -> None:
    rate = Estimate(41 / 95, 0.33, 0.54, 0.95, 95)
    two = TwoClasses(
        "ill", "healthy", 0.5, 41, 54, 2279, 126, Estimate(0.038, 0.03, 0.05, 0.95, 2500), rate, None,
        Estimate(41 / 167, 0.18, 0.32, 0.95, 167), None, None, None, None, None,
    )  # fmt: skip
    rows = (ClassCalibration("ill", 0.038, 0.04, Estimate(0.0, -0.1, 0.1, 0.95, 95), 95, rate),)
    section = Quality((accuracy(0.928, 0.917, 0.938),), None, None, (), classes=rows, two_classes=two)
    record = judged(replace(template(), quality=section), VerdictRules())
    assert (
        "correctly. It finds 41 of the 95 `ill` (43.2%). Of the 167 inputs it calls `ill`, 24.6% are `ill`."
        in record.verdict.words
    )
    step = next(one for one in record.next_steps or () if "Choose the threshold" in one.words)
    assert step.because == "At 0.5, 54 of 95 `ill` are missed, and 126 of 2,405 `healthy` are called `ill`."
    found = replace(two, sensitivity=Estimate(0.9, 0.8, 0.95, 0.95, 95))
    other = judged(replace(record, quality=replace(section, two_classes=found)), VerdictRules())
    assert not any("Choose the threshold" in one.words for one in other.next_steps or ())


def test_pixels_beside_the_largest_class_are_counted() -> None:
    def row(name: str, count: int, right: float, iou: float) -> ClassCalibration:
        same = Estimate(0.0, -0.1, 0.1, 0.95, count)
        return ClassCalibration(
            name, 0.3, 0.3, same, count, Estimate(right, 0.0, 1.0, 0.95, 9), iou=Estimate(iou, 0.0, 1.0, 0.95, 9)
        )

    guess = Guessing("always predicting x", 0.5, Estimate(-0.3, -0.4, -0.2, 0.95, 500), 0.8, "background")
    rows = (row("background", 800, 0.99, 0.96), row("bag", 150, 0.8, 0.7), row("boot", 50, 0.4, 0.3))
    section = Quality((accuracy(0.93, 0.9, 0.95),), None, None, (), guessing=guess, classes=rows)
    data = replace(template().data, elements="pixels")
    words = judged(replace(template(), data=data, quality=section), VerdictRules()).verdict.words
    assert (  # (0.96 + 0.7 + 0.3) / 3, (120 + 20) / 200
        "The mean IoU of its 3 classes is 0.65; of the 200 pixels that are not `background`, 70% are classified "
        "correctly." in words
    )


def test_what_was_not_judged_has_a_reason() -> None:
    empty = judged(
        replace(template(), quality=None, novelty=None, data=replace(template().data, ood=None)), VerdictRules()
    )
    said = " ".join(empty.verdict.not_judged or ())
    assert "“Notices what is new”: no out-of-distribution inputs were given." in said
    assert "“Calibration”, “Knows its errors”: there are no scores on test data." in said
    known = {point.key for point in empty.verdict.points}
    numbers = [
        *not_judged(replace(template(), task="regression", quality=Quality((), None, None, ())), VerdictRules(), known)
    ]
    assert "“Generalises”, “Knows its errors”: predicted numbers have no accuracy." in numbers
    assert "“Recognises every class”: predicted numbers have no classes." in numbers
    assert not [*not_judged(template(), VerdictRules(), JUDGED)]


# The mean of predicted numbers


def test_a_bias_is_said_though_coverage_is_good() -> None:
    found = Estimate(0.95, 0.93, 0.97, 0.95, 500)
    metric = Metric("coverage", "Coverage", "0.95", "", found, found, None)
    bias = SimpleNamespace(bias=Estimate(1.26, 0.65, 1.95, 0.95, 230), unit="MPa")
    pit = SimpleNamespace(distance=Estimate(0.13, 0.044, 0.223, 0.95, 230), mean=0.45)
    rows = levels({0.5: (0.5, 0.42, 0.58), 0.95: (0.95, 0.91, 0.98)}).coverage
    numbers: Any = SimpleNamespace(coverage=rows, pit=pit, outputs=(bias,))
    given = replace(template(), quality=Quality((metric,), None, None, (), numbers=numbers))
    point = Judge(given, VerdictRules()).calibration()
    assert point is not None and point.tone == "good" and point.rule is not None
    assert "The 95% prediction intervals contain 95% of the true values (95% confidence interval 93%" in point.words
    assert point.words.endswith(" But predictions are too high on average, by 1.26 MPa (95% interval 0.65 to 1.95).")
    assert "of 50%: 50% (42% to 58%); of 95%: 95% (91% to 98%). F differs by up to 0.13 (0.044 to 0.22)." in point.rule
    assert small_problems(given, VerdictRules())
    verdict = Verdict("", "good", (point,))
    steps = {step.words: step.because for step in next_steps(replace(given, verdict=verdict), VerdictRules())}
    because = steps["Correct the mean: subtract the mean error of the validation data from the predictions."]
    assert because == "Predictions are too high on average, by 1.26 MPa (95% interval 0.65 to 1.95)."


@pytest.mark.parametrize(
    ("scaled", "words"), [(0.9, "after temperature scaling is enough"), (1.1, "did not improve it")]
)
def test_recalibration_is_advised_only_where_it_helps(scaled: float, words: str) -> None:
    one, nothing = Estimate(1.0, 0.9, 1.1, 0.95, 500), Estimate(0.01, -0.1, 0.3, 0.95, 500)
    again = Estimate(scaled, 0.8, 1.2, 0.95, 500)
    nll = Metric("nll", "NLL", "lower", "", one, one, nothing, again, nothing)
    section = Quality((nll,), None, None, (), Baseline("temperature scaling", "temperature 1.7", 300))
    steps = judged(replace(template(), quality=section), VerdictRules()).next_steps or ()
    found = next(step.words for step in steps if step.words.startswith("If you need only"))
    assert words in found and "More test inputs may show a gain" in found


def test_every_point_has_a_rule_with_its_thresholds() -> None:
    rules = VerdictRules()
    ece = rules_in_words.calibration_of_labels(rules)
    for said in ("at or below 0.5 percentage points", "unknown if it ends above 10.0", "mixed from 25%, poor from 50%",
                 "mixed above 10.0 percentage points, poor above 25.0"):  # fmt: skip
        assert said in ece
    numbers = rules_in_words.calibration_of_numbers(rules, {})
    assert "good within 2.0 percentage points of 95%, mixed within 5.0, poor beyond" in numbers
    assert "unknown instead of good if the confidence interval is wider than 20.0" in numbers and "0.15" in numbers
    assert "Two comparisons" in rules_in_words.calibration_of_numbers(VerdictRules(pit_good=None, pit_poor=None), {})
    assert "most frequent class" not in rules_in_words.guessing(rules, answers=False)
    assert "Good up to 5.0 percentage points, mixed up to 20.0, poor above" in rules_in_words.generalisation(rules, 0.9)
    assert "another detector" in rules_in_words.novelty(rules, True)
    assert "another detector" not in rules_in_words.novelty(rules, False)


def test_points_are_compared_across_a_change_of_label() -> None:
    new = judged(replace(template(), data=shared(0, 0, 0)), VerdictRules())
    old = replace(new, verdict=replace(new.verdict, points=(replace(new.verdict.points[0], label="Independent"),)))
    pairs = [(one.label, one.old is not None, one.new is not None) for one in _points(old, new)]
    assert pairs[0] == ("No copies in the test data", True, True)


def test_what_no_data_can_show_is_said() -> None:
    every, bare = [*limits(True, True)], [*limits(False, False)]
    assert len(every) == 5 and len(bare) == 3 and set(bare) < set(every)
    assert "independent of each other" in bare[0]


def test_a_profile_under_another_prior_says_so_beside_predictions_that_are_those_of_the_plain_network() -> None:
    one, tiny = Estimate(0.185, 0.168, 0.203, 0.95, 500), Estimate(1e-5, -3e-6, 2e-5, 0.95, 500)
    nll = Metric("nll", "NLL", "lower", "", one, one, tiny)
    profile: Any = SimpleNamespace(prior="Relative(τ = 0.2)", views=[SimpleNamespace(explained=(0.9,))], note="")
    given = replace(
        template(), quality=Quality((nll,), None, None, ()), profile=profile, layers=tuple(layers({"a": 0.7}))
    )
    words = verdict(given, VerdictRules()).words
    assert words.endswith(
        "Its predictions are practically those of the plain network, because tuning chose a strong prior. Under the "
        "weaker prior of the profile, layer `a` contributes the largest share of the variance (70%)."
    )
    moved = replace(nll, difference=Estimate(-0.1, -0.2, -0.05, 0.95, 500))
    other = replace(given, quality=Quality((moved,), None, None, ()))
    assert "practically" not in verdict(other, VerdictRules()).words
