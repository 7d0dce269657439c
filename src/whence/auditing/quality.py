"""The quality of the uncertainties: the plain network, recalibrated or not, compared with the posterior."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from whence.auditing.calibration import significant_sign
from whence.auditing.context import Context, Kind
from whence.auditing.guessing import class_names, guessing, implied_auroc, overconfidence
from whence.auditing.label_tables import label_tables
from whence.auditing.numbers import number_checks
from whence.auditing.points import is_negligible
from whence.auditing.scores import (
    NEGLIGIBLE,
    Scores,
    losses_of,
    ranked_errors,
    reliability_bins,
    scores_of,
    sorted_values,
)
from whence.auditing.tasks import Numbers
from whence.numerals import number, percent, points, with_interval
from whence.report.record.audit import Baseline, Metric, Quality, Uncertainties
from whence.report.record.common import Estimate, PlainAndBayesian
from whence.report.record.common import Numbers as Values


def quality(context: Context) -> Quality:
    """Metrics with intervals, reliability, and the distribution of uncertainty in and out of distribution."""
    targets = context.need_targets("test")
    kinds = [Kind.PLAIN, Kind.BAYESIAN, *([Kind.RECALIBRATED] if context.baseline is not None else [])]
    inside = [context.prediction("test", kind) for kind in kinds]
    novel = [context.profiled_uncertainties(kind) for kind in kinds]
    scores = scores_of(context.task, inside, targets, novel, context.seed, context.elements or "labels")
    metrics = [_metric(one, context.seed) for one in scores]
    bins = None
    if context.task.has_labels:
        bins = PlainAndBayesian(*(reliability_bins(prediction, targets) for prediction in inside[:2]))
    uncertainty = Uncertainties(
        context.task.measure,
        context.uncertainty_label,
        _sorted_uncertainty(context, "test"),
        _sorted_uncertainty(context, "ood"),
    )
    found = context.baseline
    baseline = (
        None
        if found is None
        else Baseline(found.label, _with_unit(context, found.words), len(context.need("validation")))
    )
    numbers = None
    if isinstance(context.task, Numbers):
        numbers = number_checks(context, dict(zip(kinds, inside, strict=True)), targets)
    labelled = label_tables(context)
    if labelled.get("two_classes") is not None:
        of_positive = (reliability_bins(prediction, targets, context.positive) for prediction in inside[:2])
        labelled["two_classes"] = replace(labelled["two_classes"], reliability=PlainAndBayesian(*of_positive))
    names = class_names(context.task, context.classes, context.task.outputs(inside[1]))
    sure, implied = overconfidence(inside[1], targets, context.seed), None
    if context.task.has_labels:
        ranked = ranked_errors(context.task, inside[1], targets)
        implied = implied_auroc(inside[1], ranked.uncertainty, ranked.index)
    section = Quality(
        tuple(metrics),
        bins,
        uncertainty,
        (),
        baseline,
        **labelled,
        numbers=numbers,
        guessing=guessing(losses_of("nll", inside[1], targets), inside[1], targets, names, context.seed),
        confidence=None if sure is None else sure[0],
        overconfidence=None if sure is None else Estimate.of(sure[1]),
        implied_error_auroc=implied,
    )
    return replace(section, words=tuple(_words(section)))


def _with_unit(context: Context, words: str) -> str:
    """The words of a baseline, with the unit of a noise."""
    unit = context.outputs.unit
    return f"{words} {unit}" if unit and words.startswith("noise") and "times" not in words else words


def _metric(scores: Scores, seed: int) -> Metric:
    plain, bayesian, *more = map(Estimate.of, scores.values)
    found = Metric(**vars(scores.metric), plain=plain, bayesian=bayesian, difference=scores.difference(1, seed))
    return replace(found, recalibrated=more[0], gain=scores.difference(1, seed, base=2)) if more else found


def _sorted_uncertainty(context: Context, name: str) -> PlainAndBayesian[Values] | None:
    if not context.has(name):
        return None
    return PlainAndBayesian(*(sorted_values(context.uncertainty(name, kind)) for kind in (Kind.PLAIN, Kind.BAYESIAN)))


def _change(difference: Estimate) -> str:
    if is_negligible(difference, NEGLIGIBLE):
        return "Treating the weights as uncertain does not significantly change the log loss"
    assert difference.value is not None
    changes = "improves" if difference.value < 0 else "worsens"
    if difference.low is None or difference.high is None:
        return f"Treating the weights as uncertain {changes} the log loss by {number(abs(difference.value), 2)} nats"
    near, far = sorted(abs(end) for end in (difference.low, difference.high))
    size = with_interval(abs(difference.value), near, far, "nats").replace(", 95%", " (95%")
    return f"Treating the weights as uncertain {changes} the log loss by {size})"


def _words(section: Quality) -> Iterator[str]:
    metrics, found = {m.name: m for m in section.metrics}, section.baseline
    nll = metrics.get("nll")
    if nll is not None and nll.difference is not None:
        yield f"{_change(nll.difference)} compared with the plain network."
    if nll is not None and nll.gain is not None and found is not None:
        yield f"{_change(nll.gain)} compared with the plain network after {found.label}."
    apart, accuracy = section.overconfidence, metrics.get("accuracy")
    if section.confidence is None or apart is None or accuracy is None or accuracy.bayesian is None:
        return
    side = significant_sign(apart)
    near, far = sorted(abs(end or 0.0) for end in (apart.low, apart.high))
    judged = "the difference is not significant"
    if side:
        judged = (
            f"it is {'over' if side > 0 else 'under'}confident by {points(abs(apart.value or 0.0))} percentage points "
            f"(95% interval {points(near)} to {points(far)})"
        )
    yield (
        f"The mean confidence of the Bayesian network is {percent(section.confidence)}, its accuracy "
        f"{percent(accuracy.bayesian.value)}: {judged}."
    )
