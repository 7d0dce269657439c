"""Tables by class and label, binary decisions, deferral of several labels, and the threshold that readers move."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

import whence
from tests.auditing.conftest import made
from tests.metrics.cases import rng
from tests.metrics.populations import binomial_limits
from tests.reference import people as slow
from whence.auditing.answered import Answers, coverage_threshold
from whence.auditing.label_tables import Labelled, by_class, confusion, two_classes
from whence.auditing.steps import NumberAnswers, label_steps
from whence.errors import BadOption


def softmax(count: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    z = 1.5 * torch.randn(count, classes, generator=rng(seed), dtype=torch.float64)
    return z.softmax(1), torch.multinomial(z.softmax(1), 1, generator=rng(seed + 1))[:, 0]


def test_confusions_are_counted() -> None:
    probs, y = softmax(300, 5)
    found = confusion(Labelled(probs, y, None), list("abcde"))
    assert [list(row) for row in found.counts or ()] == slow.confusion(probs.argmax(1).tolist(), y.tolist(), 5)
    assert sum(map(sum, found.counts or ())) == found.inputs == 300
    assert found.errors == int((probs.argmax(1) != y).sum()) == sum(one.count for one in found.largest)
    counts = [one.count for one in found.largest]
    assert counts == sorted(counts, reverse=True) and all(one.true != one.predicted for one in found.largest)
    for row in found.shares:
        assert sum(share or 0 for share in row) == pytest.approx(1)


@pytest.mark.parametrize("name", ["classification", "binary", "several", "dense"])
def test_classes_have_their_frequency_in_every_set(name: str) -> None:
    given, audit = made(name)
    assert audit.results.quality is not None
    rows = audit.results.quality.classes or ()
    assert len(rows) > 1
    for field, (_, y) in (("in_training", given.train), ("in_validation", given.validation), ("frequency", given.test)):
        several = name == "several"
        shares = [(y[:, k] == 1 if several else y == k)[y >= 0 if not several else ...] for k in range(len(rows))]
        wanted = [float(one.double().mean()) for one in shares] if not several else y.double().mean(0).tolist()
        assert [getattr(row, field) for row in rows] == pytest.approx(wanted, abs=1e-5), field


def test_many_classes_have_a_list_of_confusions_and_no_matrix() -> None:
    probs, y = softmax(3000, 150)
    found = confusion(Labelled(probs, y, None), [f"c{i}" for i in range(150)])
    assert found.counts is None and len(found.largest) == 20
    assert by_class(Labelled(probs, y, None), list(found.names)) is None


def test_rows_by_class_are_those_of_loops() -> None:
    probs, y = softmax(200, 3)
    deferred = torch.rand(200, generator=rng(3)) < 0.3
    rows = by_class(Labelled(probs, y, deferred), ["a", "b", "c"]) or ()
    assert sum(row.count or 0 for row in rows) == 200
    for c, row in enumerate(rows):
        wanted = slow.class_row(probs.tolist(), y.tolist(), deferred.tolist(), c)
        assert row.count == wanted["count"] and row.confidence == pytest.approx(wanted["confidence"])
        for name in ("recall", "precision", "deferred", "ece"):
            assert getattr(row, name).value == pytest.approx(wanted[name], abs=1e-9), name
        assert row.recall is not None
        hits = round(wanted["recall"] * wanted["count"])
        assert (row.recall.low, row.recall.high) == pytest.approx(slow.clopper_pearson(hits, row.count), abs=1e-8)


def test_a_class_without_inputs_has_no_recall() -> None:
    probs, y = softmax(100, 4)
    given = Labelled(probs, y.clamp(max=2), None)
    rows = by_class(given, list("abcd")) or ()
    assert rows[3].count == 0 and rows[3].recall is None and rows[3].deferred is None
    assert confusion(given, list("abcd")).shares[3] == (None,) * 4


def test_rates_of_a_binary_decision() -> None:
    p = torch.rand(150, generator=rng(0), dtype=torch.float64).mul(20).round() / 20  # with ties
    y = torch.rand(150, generator=rng(1)) < p
    found = two_classes(p, y, ("healthy", "ill"))
    said = p > 0.5
    assert (found.positive, found.negative) == ("ill", "healthy")
    tp, fp, fn, tn = (
        int((said & y).sum()), int((said & ~y).sum()), int((~said & y).sum()), int((~said & ~y).sum())
    )  # fmt: skip
    assert (found.true_positives, found.false_positives) == (tp, fp)
    assert (found.false_negatives, found.true_negatives) == (fn, tn)
    wanted = {
        "prevalence": (tp + fn, 150), "sensitivity": (tp, tp + fn), "specificity": (tn, tn + fp),
        "precision": (tp, tp + fp), "npv": (tn, tn + fn),
    }  # fmt: skip
    for name, (hits, trials) in wanted.items():
        value = getattr(found, name)
        assert value.value == pytest.approx(hits / trials) and value.count == trials
        assert (value.low, value.high) == pytest.approx(slow.clopper_pearson(hits, trials), abs=1e-8)
    points = slow.curve_points(p.tolist(), y.tolist())
    assert found.precision_recall is not None and found.roc is not None and found.average_precision is not None
    assert list(found.precision_recall.x) == pytest.approx([one[0] for one in points])
    assert list(found.precision_recall.y) == pytest.approx([one[1] for one in points])
    assert list(found.roc.x) == pytest.approx([one[2] for one in points])
    steps = [points[0], *[(b[0] - a[0], b[1], 0) for a, b in itertools.pairwise(points)]]
    assert found.average_precision.value == pytest.approx(sum(step[0] * step[1] for step in steps))


def test_a_decision_without_positives_has_no_sensitivity() -> None:
    found = two_classes(torch.full((30,), 0.2, dtype=torch.float64), torch.zeros(30, dtype=torch.bool), ("0", "1"))
    assert found.sensitivity is None and found.precision is None and found.auroc is None and found.roc is None
    assert found.specificity is not None and found.specificity.value == 1


def test_two_classes_by_softmax_and_by_one_logit_give_the_same_rates() -> None:
    given, audit = made("binary")
    two = audit.results.quality.two_classes
    assert two is not None and (two.positive, two.negative) == ("1", "0")
    prediction = audit.posterior.predict(given.test[0])
    probs = torch.cat([1 - prediction.probs, prediction.probs], 1).double()
    again = two_classes(probs[:, 1], given.test[1].reshape(-1) == 1, ("0", "1"))
    assert again.sensitivity is not None and two.sensitivity is not None
    assert again.sensitivity.value == pytest.approx(two.sensitivity.value, rel=1e-5)
    assert sum(map(sum, audit.results.quality.confusion.counts or ())) == len(given.test[1])


def test_the_probability_of_the_positive_class_stands_beside_its_frequency() -> None:
    given, audit = made("binary")
    p, y = audit.posterior.predict(given.test[0]).probs[:, 0].tolist(), given.test[1].reshape(-1).tolist()
    for positive in (1, 0):
        found = whence.audit(audit.posterior, test=given.test, positive=positive, sections=["quality"], progress=False)
        two = found.results.quality.two_classes
        own = [one if positive else 1 - one for one in p]
        bins = [[i for i in range(len(own)) if math.ceil(15 * own[i]) == b] for b in range(1, 16)]
        rows = two.reliability.bayesian
        assert len(rows) == sum(map(bool, bins)) > 3
        for row, inside in zip(rows, filter(None, bins), strict=True):
            hits = sum(y[i] == positive for i in inside)
            assert row.count == len(inside) and row.accuracy == pytest.approx(hits / len(inside), rel=1e-5)
            assert row.confidence == pytest.approx(sum(own[i] for i in inside) / len(inside), rel=1e-4)
            assert (row.low, row.high) == pytest.approx(slow.clopper_pearson(hits, len(inside)), rel=1e-4)


@pytest.mark.parametrize("positive", ["ill", "well", 0, 1])
def test_the_positive_class_can_be_chosen(positive: Any) -> None:
    given, audit = made("binary")
    found = whence.audit(
        audit.posterior,
        test=given.test,
        classes=["well", "ill"],
        positive=positive,
        sections=["quality"],
        progress=False,
    ).results.quality
    assert found is not None and found.two_classes is not None
    two, chosen = found.two_classes, positive in ("ill", 1)
    assert (two.positive, two.negative) == (("ill", "well") if chosen else ("well", "ill"))
    ones = int((given.test[1] == 1).sum())
    assert two.true_positives + two.false_negatives == (ones if chosen else len(given.test[1]) - ones)
    usual = made("binary")[1].results.quality.two_classes
    other = (usual.sensitivity, usual.specificity) if chosen else (usual.specificity, usual.sensitivity)
    assert (two.sensitivity.value, two.specificity.value) == tuple(one.value for one in other)
    assert two.auroc.value == pytest.approx(usual.auroc.value)


def test_a_positive_class_needs_two_classes() -> None:
    given, audit = made("classification")
    for posterior, test, positive, words in (
        (audit.posterior, given.test, 1, "for a decision between two classes"),
        (made("binary")[1].posterior, made("binary")[0].test, "sick", "neither 0 nor 1"),
    ):
        with pytest.raises(BadOption, match=words):
            whence.audit(posterior, test=test, positive=positive, sections=["quality"], progress=False)


def test_classes_of_an_audit_are_deferred_by_the_rule_of_the_page() -> None:
    given, audit = made("classification")
    quality, deferral = audit.results.quality, audit.results.deferral
    usual = next(row for row in deferral.rows if row.by_coverage and row.target == 0.8)
    entropy = audit.posterior.predict(given.test[0]).entropy.double()
    kept = sum((row.deferred.value or 0) * (row.count or 0) for row in quality.classes)
    assert kept == pytest.approx(int((entropy > usual.threshold * (1 + 1e-6)).sum()), abs=1e-3)
    assert [row.count for row in quality.classes] == torch.bincount(given.test[1], minlength=3).tolist()


# Several labels


def test_each_label_is_an_answer_that_can_be_deferred() -> None:
    given, audit = made("several")
    found = audit.results.deferral
    assert found is not None and found.labels == 4 and found.answers == "answers"
    assert all(row.by_coverage for row in found.rows), "no error rate can be promised for labels that depend"
    held, test = (audit.posterior.predict(pair[0]).probs.double().tolist() for pair in (given.validation, given.test))
    for row in found.rows[1:]:
        threshold, answered, error = slow.label_deferral(held, test, given.test[1].int().tolist(), row.target)
        assert row.threshold == pytest.approx(threshold, rel=1e-5)
        assert row.test.coverage.value == pytest.approx(answered, abs=2e-3)
        assert row.test.error is not None and row.test.error.value == pytest.approx(error, abs=2e-3)
    assert found.steps is not None and found.steps[-1].answered == 4 * len(given.test[1])


def test_the_table_by_label() -> None:
    given, audit = made("several")
    rows = audit.results.quality.classes or ()
    probs, y = audit.posterior.predict(given.test[0]).probs.double(), given.test[1] == 1
    assert [row.count for row in rows] == y.sum(0).tolist()
    for k, row in enumerate(rows):
        said = probs[:, k] > 0.5
        assert row.specificity.value == pytest.approx(float((~said)[~y[:, k]].double().mean()), rel=1e-5)
        assert row.recall.value == pytest.approx(float(said[y[:, k]].double().mean()), rel=1e-5)
        assert row.ece.value == pytest.approx(slow.column_ece(probs[:, k].tolist(), y[:, k].tolist()), abs=1e-5)
        assert row.auroc.value == pytest.approx(float(whence.metrics.auroc(probs[:, k], y[:, k])), rel=1e-5)
    assert audit.results.quality.confusion is None and audit.results.quality.two_classes is None


def test_pixels_have_rows_by_class_and_whole_inputs_are_deferred() -> None:
    given, audit = made("dense")
    quality, found = audit.results.quality, audit.results.deferral
    x, y = given.test
    predicted = audit.posterior.predict(x).labels
    assert quality.confusion.counts is not None and quality.confusion.inputs == y.numel()
    assert [list(row) for row in quality.confusion.counts] == slow.confusion(
        predicted.reshape(-1).tolist(), y.reshape(-1).tolist(), len(quality.confusion.names)
    )
    for c, row in enumerate(quality.classes):
        mine, said = y == c, predicted == c
        assert row.count == int(mine.sum())
        assert row.recall.value == pytest.approx(float((mine & said).sum() / mine.sum()), rel=1e-5)
        assert row.iou.value == pytest.approx(float((mine & said).sum() / (mine | said).sum()), rel=1e-5)
        assert row.difference.low < row.difference.value < row.difference.high
    assert audit.results.data.elements == "pixels" and found.elements == "pixels" and found.labels is None
    whole, wrong = found.rows[0].test, predicted != y
    assert whole.coverage.count == len(x) and whole.error.count == y.numel()
    assert whole.error.value == pytest.approx(float(wrong.double().mean()), rel=1e-5)
    uncertainty = audit.posterior.predict(x).entropy.reshape(len(x), -1).mean(1)
    for step in found.steps:
        kept = uncertainty.double() <= step.threshold * (1 + 1e-5)
        assert step.answered == int(kept.sum())
        assert step.error.value == pytest.approx(float(wrong[kept].double().mean()), rel=1e-4)
    errors = next(row for row in quality.metrics if row.name == "error_auroc")
    assert errors.bayesian.count == y.numel()


# The threshold that readers move


def test_steps_count_answers_and_errors_at_their_thresholds() -> None:
    u = torch.rand(700, generator=rng(0), dtype=torch.float64).mul(300).round()  # with ties
    wrong = (torch.rand(700, generator=rng(1), dtype=torch.float64) < 0.3).double()
    steps = label_steps(Answers(u, wrong, torch.ones_like(wrong)))
    assert 100 < len(steps) <= 200 and steps[-1].deferred == 0
    assert [s.threshold for s in steps] == sorted({s.threshold for s in steps})
    for step in steps:
        kept = u <= step.threshold
        assert (step.answered, step.deferred) == (int(kept.sum()), int((~kept).sum()))
        assert step.error.value == pytest.approx(float(wrong[kept].mean()))
        assert (step.error.low or 0) <= (step.error.value or 0) <= (step.error.high or 0)


def test_steps_of_numbers_are_root_mean_squares() -> None:
    u = torch.rand(300, generator=rng(0), dtype=torch.float64)
    squared = (torch.randn(300, generator=rng(1), dtype=torch.float64) * (0.5 + u)).square()
    steps = NumberAnswers(u, squared).steps()
    assert steps[0].answered >= 10 and steps[-1].answered == 300
    for step in steps:
        kept = squared[u <= step.threshold]
        assert step.answered == len(kept)
        assert step.error.value == pytest.approx(math.sqrt(float(kept.mean())))
        assert (step.error.low or 0) < (step.error.value or 0) < (step.error.high or 0)


def simulated_steps(kind: str, sets: int) -> int:
    """How often the interval at a fixed threshold misses the true error: u uniform, errors grow with u."""
    missed = 0
    for seed in range(sets):
        g = rng(100 + seed)
        u = torch.rand(150, generator=g, dtype=torch.float64)
        if kind == "numbers":
            squared = ((0.5 + u) * torch.randn(150, generator=g, dtype=torch.float64)).square()
            steps: Any = NumberAnswers(u, squared, seed).steps()
            true = math.sqrt((1.0**3 - 0.5**3) / 3 / 0.5)  # of u ≤ 0.5
        elif kind == "labels":
            wrong = (torch.rand(150, generator=g) < 0.4 * u).double()
            steps, true = label_steps(Answers(u, wrong, torch.ones_like(wrong))), 0.1
        else:
            both = u.unsqueeze(1).expand(150, 3)
            hard = torch.rand(150, 1, generator=g)  # shared by the labels of an input
            wrong = (0.5 * torch.rand(150, 3, generator=g) + 0.5 * hard < 0.4 * u.unsqueeze(1)).double()
            steps, true = label_steps(Answers(both, wrong, torch.ones_like(wrong))), _rate_of_labels()
        step = [one for one in steps if one.threshold <= 0.5][-1].error
        missed += not (step.low or 0) <= true <= (step.high or 0)
    return missed


def _rate_of_labels() -> float:
    """P(0.5 a + 0.5 b < 0.4 u) of uniform a, b and u in 0..0.5: mean of 2 (0.4 u)²."""
    return 2 * 0.16 * 0.25 / 3


@pytest.mark.parametrize(("kind", "rate"), [("labels", 0.05), ("several", 0.06), ("numbers", 0.07)])
def test_the_interval_of_a_step_contains_the_true_error(kind: str, rate: float) -> None:
    assert simulated_steps(kind, 200) <= binomial_limits(200, rate)[1]


def test_the_threshold_of_a_coverage_is_an_order_statistic() -> None:
    u = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0])
    assert [coverage_threshold(u, c) for c in (0.2, 0.21, 0.8, 1.0)] == [1.0, 2.0, 4.0, 5.0]


def test_tables_need_labels() -> None:
    given, audit = made("regression")
    assert audit.results.quality.classes is None and audit.results.deferral.steps is not None
    assert len(given.test[1]) == audit.results.deferral.steps[-1].answered
