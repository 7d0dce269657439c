"""Deferral to a person: thresholds chosen on validation data, measured on test data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from whence.auditing.context import Context, Kind
from whence.auditing.quality import rejection_curve, wrong_of
from whence.auditing.tasks import Numbers
from whence.errors import NotDefined, Notice
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
    """One rule for each aim: a coverage, or (for labels) an error rate that holds with given confidence."""
    for name in ("validation", "test"):
        context.need_targets(name)
    if isinstance(context.task, Numbers):
        rows = [_number_rule(context, coverage) for coverage in COVERAGES]
        unit = context.outputs.unit
        return _section(context, "root mean squared error" + (f" ({unit})" if unit else ""), rows, None)
    pairs = {name: _uncertain_and_wrong(context, name) for name in ("validation", "test")}
    overall = float(pairs["test"][1].mean())
    rows = [_label_rule(pairs, coverage=c) for c in COVERAGES]
    rows += [_label_rule(pairs, max_error=e, confidence=CONFIDENCE) for e in ERRORS if e < max(overall, 0.01)]
    plain, bayesian = (
        rejection_curve(context.task, context.prediction("test", kind), context.need_targets("test"))
        for kind in (Kind.PLAIN, Kind.BAYESIAN)
    )
    assert plain is not None and bayesian is not None  # every answer is right or wrong
    return _section(context, RATE, rows, PlainAndBayesian(plain, bayesian))


def _section(
    context: Context, error: str, rows: list[DeferralRule], curve: PlainAndBayesian[RejectionCurve] | None
) -> Deferral:
    found = Deferral(
        context.task.measure, context.outputs.uncertainty_label(context.task), error, tuple(rows), curve, ()
    )
    return replace(found, words=tuple(_words(context, found)))


def _uncertain_and_wrong(context: Context, name: str) -> tuple[Tensor, Tensor]:
    wrong = wrong_of(context.prediction(name), context.need_targets(name))
    if wrong is None:
        raise NotDefined("there is not one label per input, so answers are neither right nor wrong.")
    return context.uncertainty(name), wrong.double()


def _label_rule(pairs: dict[str, tuple[Tensor, Tensor]], **asked: float) -> DeferralRule:
    rule = _chosen(*pairs["validation"], asked)
    reached = rule.check(*pairs["test"])
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
    ordered = context.uncertainty("validation").sort().values
    threshold = float(ordered[min(len(ordered) - 1, math.ceil(coverage * len(ordered)) - 1)])
    threshold = math.inf if coverage == 1 else threshold

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
    whole, some = by_coverage[1.0].error, by_coverage[0.8].error
    covered = by_coverage[0.8].coverage.value
    if whole is None or some is None or whole.value is None or some.value is None or covered is None:
        return
    form, name = (".1%", "error rate") if found.is_rate else (".3g", "typical error")
    unit = "" if found.is_rate or context.outputs.unit is None else f" {context.outputs.unit}"
    yield (
        f"If a person takes over the most uncertain {1 - covered:.0%} of inputs, the {name} of the others "
        f"{'falls' if some.value < whole.value else 'changes'} from {whole.value:{form}} to {some.value:{form}}{unit}."
    )
    if found.is_rate:
        yield ("For a target error rate, the threshold keeps it with 95% confidence on the validation data.")
