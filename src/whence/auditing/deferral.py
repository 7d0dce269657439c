"""Deferral to a person: thresholds chosen on validation data, measured on test data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from whence.auditing.answered import USUAL, Answers, answers_of, coverage_threshold
from whence.auditing.context import Context, Kind
from whence.auditing.quality import error_curve
from whence.auditing.steps import label_steps, number_steps
from whence.auditing.tasks import Numbers, summed
from whence.errors import Notice
from whence.metrics import Deferral as Rule
from whence.metrics import Estimate as Measured
from whence.metrics import defer, rmse
from whence.metrics.intervals import mean_of
from whence.report.record.audit import RATE, Chosen, Deferral, DeferralRule, Reached
from whence.report.record.common import Estimate, PlainAndBayesian, RejectionCurve

EVEN = 0.01  # relative spread of the variances below which a ranking is meaningless
COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.5)
ERRORS = (0.1, 0.05, 0.02, 0.01, 0.005)
CONFIDENCE = 0.95


def deferral(context: Context) -> Deferral:
    """One rule for each aim: a coverage, or (for one label of each input) an error rate that holds with confidence.

    Of several labels each is an answer. Labels of one input are not independent, so intervals resample inputs, and no
    error rate can be promised by a binomial bound.
    """
    for name in ("validation", "test"):
        context.need_targets(name)
    if isinstance(context.task, Numbers):
        rows = [_number_rule(context, coverage) for coverage in COVERAGES]
        unit, label = context.outputs.unit, context.outputs.uncertainty_label(context.task)
        error = "root mean squared error" + (f" ({unit})" if unit else "")
        found = Deferral(context.task.measure, label, error, tuple(rows), None, ())
        centre = context.prediction("test").mean.double().cpu()
        squared = (centre - context.need_targets("test").double().reshape(centre.shape)).square()
        steps = number_steps(
            context.uncertainty("test"), summed(squared) / (centre.numel() / len(centre)), context.seed
        )
        return replace(found, steps=steps, words=tuple(_words(context, found)))
    answers = {name: answers_of(context, name) for name in ("validation", "test")}
    shape = answers["test"].wrong.shape
    overall = float(answers["test"].wrong.mean())
    rows = [_label_rule(answers, coverage=c) for c in COVERAGES]
    if len(shape) == 1:
        rows += [_label_rule(answers, max_error=e, confidence=CONFIDENCE) for e in ERRORS if e < max(overall, 0.01)]
    plain, bayesian = (_curve(context, kind) for kind in (Kind.PLAIN, Kind.BAYESIAN))
    curve = PlainAndBayesian(plain, bayesian)
    found = Deferral(context.task.measure, context.task.label, RATE, tuple(rows), curve, ())
    found = replace(found, steps=label_steps(answers["test"]), labels=None if len(shape) == 1 else shape[1])
    return replace(found, words=tuple(_words(context, found)))


def _curve(context: Context, kind: Kind) -> RejectionCurve:
    uncertainty = answers_of(context, "test", kind).uncertainty
    return error_curve(context.prediction("test", kind), context.need_targets("test"), uncertainty)


def _label_rule(answers: dict[str, Answers], **asked: float) -> DeferralRule:
    held, test = answers["validation"], answers["test"]
    rule = _chosen(held.uncertainty, held.wrong, asked)
    reached = rule.check(test.uncertainty, test.wrong)
    return DeferralRule(
        rule.aim,  # type: ignore[arg-type]
        rule.target,
        rule.confidence,
        rule.threshold,
        "all" if rule.threshold == math.inf else "none" if rule.threshold == -math.inf else "some",
        Chosen(float(rule.coverage), rule.error),
        _reached(reached.coverage, reached.error, reached.deferred_error),
    )


def _chosen(uncertainty: Tensor, wrong: Tensor, asked: dict[str, float]) -> Rule:
    """The threshold chosen on validation data; infinite for a coverage of 1."""
    if asked.get("coverage") == 1.0:
        return replace(defer(uncertainty, wrong, coverage=1.0, resamples=0), threshold=math.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # shown in the row
        return defer(uncertainty, wrong, resamples=0, **asked)  # type: ignore[arg-type]


def _reached(coverage: Measured, error: Measured | None, deferred_error: Measured | None) -> Reached:
    covered = Estimate.of(coverage)
    assert covered is not None
    return Reached(covered, Estimate.of(error), Estimate.of(deferred_error))


def _number_rule(context: Context, coverage: float) -> DeferralRule:
    """A rule for regression: a variance threshold that answers ``coverage`` of the validation data."""
    threshold = math.inf if coverage == 1 else coverage_threshold(context.uncertainty("validation"), coverage)

    def error(name: str, answered: bool) -> Measured | None:
        centre = context.prediction(name).mean.double().cpu()
        target = context.need_targets(name).double().reshape(centre.shape)
        mine = (context.uncertainty(name) <= threshold) == answered
        return rmse(centre[mine], target[mine]) if bool(mine.any()) else None

    validation, test = ((context.uncertainty(name) <= threshold).double() for name in ("validation", "test"))
    covered = mean_of("coverage", test, (0.0, 1.0))
    return DeferralRule(
        "coverage",
        coverage,
        None,
        threshold,
        "all" if threshold == math.inf else "some",
        Chosen(float(validation.mean()), error("validation", True)),
        _reached(covered, error("test", True), error("test", False)),
    )


def _words(context: Context, found: Deferral) -> Iterator[str]:
    """Describe the rule that answers 80% of the inputs."""
    if not found.is_rate:
        spread = context.uncertainty("test")
        if float(spread.std()) <= EVEN * float(spread.mean()):
            yield (
                "The predicted variance is nearly the same for all test inputs: it does not show which answers to "
                "defer."
            )
    by_coverage = {row.target: row.test for row in found.rows if row.by_coverage}
    whole, some = by_coverage[1.0].error, by_coverage[USUAL].error
    covered = by_coverage[USUAL].coverage.value
    if whole is None or some is None or whole.value is None or some.value is None or covered is None:
        return
    form, name = (".1%", "error rate") if found.is_rate else (".3g", "typical error")
    unit = "" if found.is_rate or context.outputs.unit is None else f" {context.outputs.unit}"
    start = f"If a person takes over the most uncertain {1 - covered:.0%} of {found.answers}, the {name} of the others"
    if some.high is not None and some.high < whole.value:
        yield f"{start} falls from {whole.value:{form}} to {some.value:{form}}{unit}."
    elif some.low is not None and some.high is not None:
        yield (
            f"{start} does not change significantly: {whole.value:{form}}{unit} before, "
            f"{some.value:{form}}{unit} after "
            f"(95% interval {some.low:{form}} to {some.high:{form}})."
        )
    if found.is_rate and found.labels is None:
        yield from _target_words([row for row in found.rows if not row.by_coverage])


def _target_words(rows: list[DeferralRule]) -> Iterator[str]:
    """What targets for the error rate mean, and what the test data say about them."""
    if not rows:
        return
    yield (
        "A threshold for a target error rate is chosen so that the true error rate of the inputs kept is at most the "
        f"target in at least {CONFIDENCE:.0%} of such choices, if new inputs are like the validation data."
    )
    for row in rows:
        error = row.test.error
        if error is None or error.value is None or error.value <= row.target or error.low is None or error.high is None:
            continue
        interval = f"{error.value:.1%} (95% interval {error.low:.1%} to {error.high:.1%}, n = {error.count:,})"
        if error.low <= row.target:
            yield f"For the target of {row.target:.1%} the test data show {interval}, which agrees with the target."
        else:
            yield (
                f"For the target of {row.target:.1%} the test data show {interval}, significantly more: either this is "
                f"one of the {1 - CONFIDENCE:.0%} of choices that fail, or test and validation data differ."
            )
