"""Deferral to a person: thresholds chosen on validation data, measured on test data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from whence.auditing.answered import USUAL, Answers, answers_of, coverage_threshold, quantile_index
from whence.auditing.calibration import significant_sign
from whence.auditing.context import Context, Kind
from whence.auditing.overlap import among
from whence.auditing.steps import NumberAnswers, is_even, label_curve, label_steps, number_answers
from whence.auditing.tasks import Numbers
from whence.errors import Notice
from whence.metrics import Estimate as Measured
from whence.metrics import defer
from whence.metrics.proportions import coverage_by_chance, share_of
from whence.numerals import between, number, percent, points, points_range, share_range
from whence.posteriors.laplace.description import VALIDATION_DATA
from whence.report.formatting import quantity
from whence.report.record.audit import RATE, Chosen, Deferral, DeferralRule, ExpectedShare, FrequentClass, Reached
from whence.report.record.common import Estimate, PlainAndBayesian

COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.5)
ERRORS = (0.1, 0.05, 0.02, 0.01, 0.005)
CONFIDENCE = 0.95


def deferral(context: Context) -> Deferral:
    """One rule for each aim: a coverage, or (for one label of each input) an error rate that holds with confidence.

    Of several labels each is an answer; of pixels and tokens all of an input are deferred together. Labels of one input
    are not independent, so no error rate can be promised by a binomial bound.
    """
    for name in ("validation", "test"):
        context.need_targets(name)
    return _of_numbers(context) if isinstance(context.task, Numbers) else _of_labels(context)


# Labels


def _of_labels(context: Context) -> Deferral:
    held, test = (answers_of(context, name) for name in ("validation", "test"))
    overall = float(test.wrong.sum() / test.labels.sum())
    rows = [_label_rule(held, test, coverage=c) for c in COVERAGES]
    if test.single:
        rows += [_label_rule(held, test, max_error=e, confidence=CONFIDENCE) for e in ERRORS if e < max(overall, 0.01)]
    curve = PlainAndBayesian(label_curve(answers_of(context, "test", Kind.PLAIN)), label_curve(test))
    found = Deferral(
        context.task.measure,
        context.uncertainty_label,
        RATE,
        tuple(rows),
        curve,
        (),
        label_steps(test, _finite(row.threshold for row in rows)),
        test.wrong.shape[1] if test.several else None,
        None if test.several or test.single else context.elements,
    )
    found = replace(found, rows=tuple(_with_frequent(context, row, test) for row in found.rows))
    first, *others = [*_words(found, None)] or [""]
    whole = " ".join([first, *frequent_words(found), *_missed_words(context, held, test)])
    words = (whole.strip(), *others, *_limits(context, found.rows))
    return replace(found, words=tuple(one for one in words if one))


def _with_frequent(context: Context, row: DeferralRule, test: Answers) -> DeferralRule:
    """The rule with the most frequent class among the inputs that it answers; not of several labels."""
    targets = context.need_targets("test").cpu()
    if test.several or row.threshold is None:
        return row
    kept = targets[test.uncertainty <= row.threshold].reshape(-1).long()
    counts = torch.bincount(kept[kept >= 0])
    if not int(counts.sum()):
        return row
    name = context.class_name(int(counts.argmax()))
    most = FrequentClass(name, float(counts.max() / counts.sum()))
    return replace(row, test=replace(row.test, frequent=most))


def frequent_words(found: Deferral) -> Iterator[str]:
    """Said where always answering the most frequent class is not significantly worse among the answered inputs."""
    some = next((row.test for row in found.rows if row.by_coverage and row.target == USUAL), None)
    most = None if some is None else some.frequent
    if some is None or some.error is None or some.error.low is None or some.error.high is None or most is None:
        return
    wrong = 1 - (most.share or 0.0)
    if wrong <= some.error.high:
        compared = "no significant difference" if wrong >= some.error.low else "significantly fewer"
        of = "answered inputs" if found.elements is None else f"{found.elements} of the answered inputs"
        yield f"Always answering `{most.name}` would be wrong for {percent(wrong)} of the {of}: {compared}."


def _missed_words(context: Context, held: Answers, test: Answers) -> Iterator[str]:
    """How many of the positive class are missed among the inputs that are answered, if there are two classes."""
    if not test.single or (names := context.two_names) is None:
        return
    answered = test.uncertainty <= coverage_threshold(held.uncertainty, USUAL)
    positive = context.need_targets("test").reshape(-1).cpu().long() == context.positive
    kept, wrong = positive & answered, test.wrong.reshape(-1).bool()
    every, found = (
        share_of("sensitivity", int((which & ~wrong).sum()), int(which.sum())) for which in (positive, kept)
    )
    if every is None or found is None:
        return
    yield (
        f"Of the {int((answered & wrong).sum()):,} wrong answers that remain then, {int((kept & wrong).sum()):,} are "
        f"missed `{names[context.positive]}`: the sensitivity is {percent(float(found))} among the answered inputs "
        f"(95% interval {percent(found.low)} to {percent(found.high)}), {percent(float(every))} among all."
    )


def _label_rule(held: Answers, test: Answers, **asked: float) -> DeferralRule:
    threshold, target = _threshold(held, asked), next(iter(asked.values()))
    kept, answered = held.uncertainty <= threshold, test.uncertainty <= threshold
    return DeferralRule(
        "coverage" if "coverage" in asked else "max_error",
        target,
        asked.get("confidence"),
        threshold,
        "all" if threshold == math.inf else "none" if threshold == -math.inf else "some",
        Chosen(float(held.share(kept)), held.error(kept)),
        _reached(test.share(answered), test.error(answered), test.error(~answered), test.change(answered)),
        _expected(target, len(kept), len(answered)) if "coverage" in asked and not test.several else None,
    )


def _threshold(held: Answers, asked: dict[str, float]) -> float:
    """Chosen on validation data; infinite for a coverage of 1."""
    coverage = asked.get("coverage")
    if coverage is not None:
        return math.inf if coverage == 1 else coverage_threshold(held.uncertainty, coverage)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # shown in the row
        return defer(held.uncertainty, held.wrong, resamples=0, **asked).threshold  # type: ignore[arg-type]


def _finite(thresholds: Iterable[float | None]) -> list[float]:
    return [t for t in thresholds if t is not None and math.isfinite(t)]


def _reached(coverage: Measured, error: Measured | None, deferred: Measured | None, change: Measured | None) -> Reached:
    covered = Estimate.of(coverage)
    assert covered is not None
    return Reached(covered, Estimate.of(error), Estimate.of(deferred), Estimate.of(change))


# Numbers


def _of_numbers(context: Context) -> Deferral:
    held, test = (number_answers(context, name) for name in ("validation", "test"))
    thresholds = [math.inf if c == 1 else coverage_threshold(held.uncertainty, c) for c in COVERAGES]
    errors = [one.errors(thresholds) for one in (held, test)]
    rows = [
        _number_rule(target, threshold, held, test, *reached)
        for target, threshold, *reached in zip(COVERAGES, thresholds, *errors, strict=True)
    ]
    unit = context.outputs.unit
    error = "root mean squared error" + (f" ({unit})" if unit else "")
    found = Deferral(
        context.task.measure,
        context.uncertainty_label,
        error,
        tuple(rows),
        None,
        (),
        test.steps(_finite(thresholds)),
        None,
        None,
    )
    even = is_even(test.uncertainty)
    return replace(found, words=(*_words(found, unit, even), *_limits(context, found.rows)))


def _number_rule(
    coverage: float,
    threshold: float,
    held: NumberAnswers,
    test: NumberAnswers,
    before: Measured | None,
    error: Measured | None,
) -> DeferralRule:
    answered = test.uncertainty <= threshold
    covered = share_of("coverage", int(answered.sum()), len(answered))
    assert covered is not None
    return DeferralRule(
        "coverage",
        coverage,
        None,
        threshold,
        "all" if threshold == math.inf else "some",
        Chosen(float((held.uncertainty <= threshold).double().mean()), before),
        _reached(covered, error, test.error_of(~answered), test.change(answered)),
        _expected(coverage, len(held.uncertainty), len(answered)),
    )


# Words


def _words(found: Deferral, unit: str | None, even: bool = False) -> Iterator[str]:
    """Describe the rule that answers 80% of the inputs."""
    if even:
        yield (
            "The predicted standard deviation is nearly the same for all test inputs (it varies by less than 1%), so "
            "it does not show which inputs to defer."
        )
        return
    by_coverage = {row.target: row.test for row in found.rows if row.by_coverage}
    whole, some, change = by_coverage[1.0].error, by_coverage[USUAL].error, by_coverage[USUAL].change
    covered = by_coverage[USUAL].coverage
    if whole is None or some is None or change is None or covered.value is None:
        return
    name = "error rate" if found.is_rate else "root mean squared error"

    whole_inputs = "" if found.elements is None else "Whole inputs are deferred: "
    first = "if" if whole_inputs else "If"
    before = (
        f"{whole_inputs}{first} the most uncertain {percent(1 - covered.value, 0)} of the {covered.count:,} test "
        f"{found.answers} are"
    )
    rule = f"the rule that answers {percent(USUAL)} of the validation {found.answers}"
    start = f"{before} deferred to a person ({rule}), the {name} of the others"
    yield from _change_words(start, whole, some, change, found, unit)
    yield from coverage_words(found)
    yield from _target_words([row for row in found.rows if not row.by_coverage])


def _change_words(
    start: str, whole: Estimate, some: Estimate, change: Estimate, found: Deferral, unit: str | None
) -> Iterator[str]:
    """Whether the error of the answered inputs differs from that of all, and by how much."""
    if change.low is None or change.high is None:
        return
    sign, name = significant_sign(change), "percentage points" if found.is_rate else unit
    before, after = (percent(one.value) if found.is_rate else quantity(one.value, unit) for one in (whole, some))
    near, far = sorted((abs(change.low), abs(change.high))) if sign else (change.low, change.high)
    span = points_range(near, far) if found.is_rate else between(near, far)
    named = f" {name}" if name else ""
    if sign:
        size = points(abs(change.value or 0.0)) if found.is_rate else number(abs(change.value or 0.0))
        way = "falls" if sign < 0 else "rises"
        yield f"{start} {way} from {before} to {after}, by {size}{named} (95% interval {span})."
    else:
        yield (
            f"{start} does not change significantly: {before} before, {after} after (95% interval of the difference "
            f"{span}{named})."
        )


def coverage_words(found: Deferral) -> Iterator[str]:
    """Rules that answer another share of the test data than their aim, beyond the interval, and what explains that."""
    off = [(row.target, row.test.coverage, row.expected) for row in found.rows if row.expected and _misses(row)]
    chance = [one for one in off if one[2].low <= (one[1].value or 0.0) <= one[2].high]
    if chance:
        one = len(chance) == 1
        yield (
            f"Of the test {found.answers}, {_listed(_with_aim(target, share) for target, share, _ in chance)}: the "
            f"{'interval excludes' if one else 'intervals exclude'} the aim. Thresholds that are chosen on "
            f"{chance[0][2].inputs:,} validation inputs can differ that much by chance."
        )
    for target, share, expected in off:
        if (target, share, expected) in chance:
            continue
        value = share.value or 0.0
        yield (
            f"The rule for {percent(target)} answers {_with_ends(share)} of the test {found.answers}. By chance a "
            f"threshold that is chosen on {expected.inputs:,} validation inputs answers "
            f"{share_range(value, expected.low, expected.high)} in 95 of 100 cases: the test inputs seem "
            f"{'more' if value < target else 'less'} uncertain than the validation inputs."
        )


def _misses(row: DeferralRule) -> bool:
    """Whether the interval of the share of test data that a rule answers excludes its aim."""
    reached = row.test.coverage
    return reached.low is not None and reached.high is not None and not reached.low <= row.target <= reached.high


def _with_aim(target: float | None, share: Estimate) -> str:
    return f"the rule for {percent(target)} answers {_with_ends(share)}"


def _with_ends(share: Estimate) -> str:
    return f"{percent(share.value, 1)} (95% interval {percent(share.low, 1)} to {percent(share.high, 1)})"


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _expected(target: float, held: int, test: int) -> ExpectedShare | None:
    """The share of the test inputs that a threshold for a share of the validation inputs answers by chance."""
    if target >= 1:
        return None
    return ExpectedShare(*coverage_by_chance(quantile_index(held, target) + 1, held, test), held)


def _limits(context: Context, rows: Sequence[DeferralRule]) -> Iterator[str]:
    """What weakens thresholds that were chosen on these validation data."""
    overlap, held = context.overlap, context.need("validation")
    if overlap is not None and overlap.validation:
        yield (
            f"{among(overlap.validation, len(held), 'validation inputs')} in the training data. Errors on these are "
            "usually smaller than on new inputs, so the columns on validation data may look too good."
        )
    elif any(not row.by_coverage for row in rows) and context.posterior.summary().tuned_on == VALIDATION_DATA:
        yield "The prior was tuned on the same validation data, so this 95% confidence is only approximate."


def _target_words(rows: Sequence[DeferralRule]) -> Iterator[str]:
    """What targets for the error rate mean, and what the test data say about them."""
    if not rows:
        return
    yield (
        "A threshold for a target error rate is chosen so that the true error rate of the inputs that are answered is "
        f"at most the target in at least {percent(CONFIDENCE)} of such choices, if new inputs are like the validation "
        "data."
    )
    for row in rows:
        error = row.test.error
        if error is None or error.value is None or error.value <= row.target or error.low is None or error.high is None:
            continue
        interval = f"{percent(error.value)} (95% interval {percent(error.low)} to {percent(error.high)}, "
        interval += f"n = {error.count:,})"
        if error.low <= row.target:
            yield f"For the target of {percent(row.target)} the test data show {interval}: no significant difference."
        else:
            yield (
                f"For the target of {percent(row.target)} the test data show {interval}, significantly more. Either "
                f"this is one of the {percent(1 - CONFIDENCE)} of choices that fail, or test and validation data "
                "differ."
            )
