"""Scores of predictions, and the quality of the uncertainties: the plain network compared with the posterior.

Index legend: S draws, N inputs, K outputs, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import Context, Kind
from whence.auditing.data import spaced
from whence.auditing.guessing import class_names, guessing, implied_auroc, overconfidence
from whence.auditing.label_tables import label_tables
from whence.auditing.numbers import number_checks
from whence.auditing.points import is_negligible, significant_sign
from whence.auditing.tasks import Numbers, Task
from whence.metrics import Estimate as Measured
from whence.metrics import auroc, evaluate, reliability, risk_coverage
from whence.metrics.intervals import mean_of
from whence.predictive.predictions import (
    BinaryPrediction,
    ClassificationPrediction,
    CountPrediction,
    RegressionPrediction,
)
from whence.report.record.audit import Baseline, Metric, Quality, Uncertainties
from whence.report.record.common import (
    Bins,
    Estimate,
    MetricName,
    PlainAndBayesian,
    RejectionCurve,
    ReliabilityBin,
)
from whence.report.record.common import Numbers as Values
from whence.where.weights import thinned

BINS = 10
POINTS = 200  # of a curve
CURVE = 100  # points of error against coverage
NEGLIGIBLE = 1e-3  # negligible difference in nats (or Brier)
TINY = torch.finfo(torch.float32).tiny
COVERAGE, WIDTH, LEVEL = "coverage", "width", 0.95

METRICS = [
    MetricName(*row)  # type: ignore[arg-type]
    for row in (
        ("accuracy", "Accuracy", "higher", "Share of inputs whose most probable class is correct."),
        ("rmse", "RMSE", "lower", "The typical size of an error, in the units of the target."),
        ("nll", "NLL", "lower", "Negative log likelihood: −log of the probability of the truth. Confident errors "
         "cost most."),
        ("brier", "Brier score", "lower", "Squared distance between the predicted probabilities and the outcome."),
        ("crps", "CRPS", "lower", "Distance between the predicted distribution and the outcome, in the target's "
         "units."),
        ("ece", "ECE", "lower", "Expected calibration error: the mean difference between confidence and accuracy."),
        ("coverage", "Coverage of 95% intervals", "0.95", "Share of true values inside the interval; it should be "
         "95%."),
        ("width", "Width of 95% intervals", "lower", "Mean width of the intervals; comparable only at equal coverage."),
        ("auroc", "AUROC", "higher", "How well the probabilities rank ones above zeros."),
        ("error_auroc", "AUROC of errors", "higher", "How well uncertainty ranks wrong answers above right ones; 0.5 "
         "is chance, 1 perfect."),
        ("ood_auroc", "AUROC against novel inputs", "higher", "How well uncertainty ranks novel inputs above "
         "test inputs; 0.5 is chance, 1 perfect."),
        ("ood_fpr95", "FPR95 against novel inputs", "lower", "Share of test inputs flagged when 95% of the novel "
         "inputs are."),
    )
]  # fmt: skip


# Several predictions for the same inputs


@dataclass(frozen=True)
class Scores:
    """A metric of several predictions."""

    metric: MetricName
    values: list[Measured | None]
    losses: list[Tensor | None]  # of each input [N], where the metric is a mean over them

    def difference(self, place: int, seed: int, base: int = 0) -> Estimate | None:
        """Paired difference from the first prediction, or from another one."""
        first, other = self.losses[base], self.losses[place]
        return None if first is None or other is None else Estimate.of(paired(other - first, seed))

    def not_worse(self, seed: int, without: Collection[int] = ()) -> tuple[bool, ...]:
        """Whether each prediction is the best, or not significantly worse than the best; those ``without`` are not.

        Decided by the interval of the paired difference for metrics that are means over inputs, otherwise by whether
        the value is in the interval of the best.
        """
        known = {i: value for i, value in enumerate(self.values) if value is not None and i not in without}
        if not known:
            return (False,) * len(self.values)
        best = min(known, key=lambda i: self._cost(float(known[i])))
        found = []
        for i in range(len(self.values)):
            one, other = self.losses[i], self.losses[best]
            if i not in known or i == best:
                found.append(i == best)
            elif one is None or other is None or len(one) < 2:
                found.append(known[best].low <= float(known[i]) <= known[best].high)
            else:
                apart = paired(one - other, seed)
                found.append(apart.low <= 0 or abs(apart) < NEGLIGIBLE)
        return tuple(found)

    def _cost(self, value: float) -> float:
        better = self.metric.better
        return {"lower": value, "higher": -value}[better] if better != "0.95" else abs(value - LEVEL)


def undercovering(scores: Sequence[Scores]) -> dict[int, Measured]:
    """Predictions whose 95% intervals cover too little: the interval of their coverage is below 95%."""
    values = next((one.values for one in scores if one.metric.name == COVERAGE), [])
    return {i: value for i, value in enumerate(values) if value is not None and value.high < LEVEL}


def scores_of(
    task: Task,
    predictions: Sequence[Any],
    targets: Tensor,
    outside: Sequence[Any],
    seed: int,
    ood_mask: Tensor | None = None,
) -> Iterator[Scores]:
    """Every metric that applies; ``outside`` are predictions for out-of-distribution inputs, or None."""
    pairs = zip(predictions, outside, strict=True)
    found = [_all_scores(task, inside, targets, ood, seed, ood_mask) for inside, ood in pairs]
    for metric in METRICS:
        values = [scores.get(metric.name) for scores in found]
        if any(value is not None for value in values):
            yield Scores(metric, values, [losses_of(metric.name, one, targets) for one in predictions])


def _all_scores(
    task: Task, prediction: Any, targets: Tensor, ood: Any, seed: int, ood_mask: Tensor | None
) -> dict[str, Measured]:
    """The metrics of one prediction, including the AUROC of errors."""
    found = dict(evaluate(prediction, targets, ood=ood, ood_mask=ood_mask, seed=seed))
    wrong = wrong_of(prediction, targets)
    if wrong is not None and bool(wrong.any()) and not bool(wrong.all()):
        found["error_auroc"] = auroc(task.uncertainty(prediction), wrong, seed=seed)
    return found


def paired(differences: Tensor, seed: int) -> Measured:
    """Mean of paired differences with its interval, in which inputs are resampled, not their pixels or tokens."""
    return mean_of("difference", differences, mask=~differences.isnan(), seed=seed)


# One prediction


def wrong_of(prediction: Any, targets: Tensor) -> Tensor | None:
    """Whether each answer is wrong, if there is one label per input."""
    labels = getattr(prediction, "labels", None)
    if labels is None or labels.numel() != targets.numel() or targets.numel() != len(targets):
        return None
    return labels.cpu().reshape(-1) != targets.reshape(-1)


def losses_of(name: str, prediction: Any, targets: Tensor) -> Tensor | None:
    """Values of a metric that is a mean, [N], or by pixel or token [N, …] (NaN: ignored); None for other metrics."""
    if isinstance(prediction, ClassificationPrediction):
        probs = prediction.probs.detach().double().cpu().movedim(prediction.class_dim, -1)
        return _of_classes(name, probs, targets.long()) if probs.shape[:-1] == targets.shape else None
    if isinstance(prediction, BinaryPrediction) and prediction.probs.numel() == targets.numel():
        return _of_labels(name, prediction.probs.double().cpu(), targets.double().reshape(prediction.probs.shape))
    if isinstance(prediction, CountPrediction | RegressionPrediction) and name == "nll":
        each = -_log_density(prediction, targets.double().reshape(prediction.mean.shape))
        return each.reshape(len(each), -1).mean(1)
    return None


def _of_classes(name: str, probs: Tensor, y: Tensor) -> Tensor | None:
    known = y.clamp(min=0).unsqueeze(-1)
    own = probs.gather(-1, known).squeeze(-1)
    if name == "nll":
        found = -own.clamp(min=TINY).log()
    elif name == "brier":
        found = probs.square().sum(-1) - 2 * own + 1
    else:
        return None
    return torch.where(y >= 0, found, math.nan)


def _of_labels(name: str, p: Tensor, y: Tensor) -> Tensor | None:
    if bool(((y != 0) & (y != 1)).any()):
        return None
    if name == "nll":
        return -torch.where(y == 1, p, 1 - p).clamp(min=TINY).log().reshape(len(y), -1).mean(1)
    return (p - y).square().reshape(len(y), -1).mean(1) if name == "brier" else None


def _log_density(prediction: CountPrediction | RegressionPrediction, y: Tensor) -> Tensor:
    """Log density of a Gaussian, or of the mixture over draws, [N, K]."""
    if isinstance(prediction, CountPrediction):
        each = torch.distributions.Poisson(prediction.samples.double().cpu()).log_prob(y)  # [S, N, K]
    elif prediction.samples is None:
        return _log_normal(y, prediction.mean, prediction.variance)
    else:
        noise = prediction.aleatoric if prediction.noise_samples is None else prediction.noise_samples
        each = _log_normal(y, prediction.samples, noise)
    return each.logsumexp(0) - math.log(len(each))


def _log_normal(y: Tensor, centre: Tensor, variance: Tensor) -> Tensor:
    centre, variance = centre.double().cpu(), variance.double().cpu()
    return -0.5 * ((y - centre).square() / variance + variance.log() + math.log(2 * math.pi))


def reliability_bins(prediction: Any, targets: Tensor) -> Bins:
    """Non-empty reliability bins."""
    table = reliability(prediction, targets, bins=BINS)
    columns = (table.confidence, table.accuracy, table.accuracy_low, table.accuracy_high, table.count)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(ReliabilityBin(c, a, low, high, int(count)) for c, a, low, high, count in rows if count)


def rejection_curve(task: Task, prediction: Any, targets: Tensor) -> RejectionCurve | None:
    """Error against coverage; None unless there is one label per input."""
    if wrong_of(prediction, targets) is None:
        return None
    return error_curve(prediction, targets, task.uncertainty(prediction))


def error_curve(prediction: Any, targets: Tensor, uncertainty: Tensor) -> RejectionCurve:
    """The error of the most certain answers against their share."""
    table = risk_coverage(prediction, targets, uncertainty=uncertainty.reshape(targets.shape))
    index = spaced(len(table.coverage), min(CURVE, len(table.coverage)))
    return RejectionCurve(tuple(table.coverage[index].tolist()), tuple(table.risk[index].tolist()))


def sorted_values(values: Tensor) -> Values:
    """Sorted values, thinned to a few hundred."""
    return tuple(thinned(values.sort().values, POINTS).tolist())


# The section


def quality(context: Context) -> Quality:
    """Metrics with intervals, reliability, and the distribution of uncertainty in and out of distribution."""
    targets = context.need_targets("test")
    kinds = [Kind.PLAIN, Kind.BAYESIAN, *([Kind.RECALIBRATED] if context.baseline is not None else [])]
    inside = [context.prediction("test", kind) for kind in kinds]
    outside = [context.prediction("ood", kind) if context.has("ood") else None for kind in kinds]
    mask = context.need("ood").positions_of(outside[0]) if context.has("ood") else None
    scores = scores_of(context.task, inside, targets, outside, context.seed, mask)
    metrics = [_metric(one, context.seed) for one in scores]
    bins = None
    if context.task.has_labels:
        bins = PlainAndBayesian(*(reliability_bins(prediction, targets) for prediction in inside[:2]))
    uncertainty = Uncertainties(
        context.task.measure,
        context.outputs.uncertainty_label(context.task),
        _sorted_uncertainty(context, "test"),
        _sorted_uncertainty(context, "ood"),
    )
    found = context.baseline
    baseline = None if found is None else Baseline(found.label, found.words, len(context.need("validation")))
    numbers = None
    if isinstance(context.task, Numbers):
        numbers = number_checks(context, dict(zip(kinds, inside, strict=True)), targets)
    names = class_names(context.task, context.classes, context.task.outputs(inside[1]))
    sure = overconfidence(inside[1], targets, context.seed)
    section = Quality(
        tuple(metrics),
        bins,
        uncertainty,
        (),
        baseline,
        **label_tables(context),
        numbers=numbers,
        guessing=guessing(losses_of("nll", inside[1], targets), inside[1], targets, names, context.seed),
        confidence=None if sure is None else sure[0],
        overconfidence=None if sure is None else Estimate.of(sure[1]),
        implied_error_auroc=None if sure is None else implied_auroc(inside[1], context.uncertainty("test")),
    )
    return replace(section, words=tuple(_words(context, section)))


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
    return f"Treating the weights as uncertain {changes} the log loss by {abs(difference.value):.3g} nats"


def _words(context: Context, section: Quality) -> Iterator[str]:
    metrics, found = {m.name: m for m in section.metrics}, context.baseline
    nll = metrics.get("nll")
    if nll is not None and nll.difference is not None:
        yield f"{_change(nll.difference)} compared with the plain network."
    if nll is not None and nll.gain is not None and found is not None:
        yield f"{_change(nll.gain)} compared with {found.label} on the validation data ({found.words})."
    apart, accuracy = section.overconfidence, metrics.get("accuracy")
    if section.confidence is None or apart is None or accuracy is None or accuracy.bayesian is None:
        return
    side = significant_sign(apart)
    judged = f"it is {'over' if side > 0 else 'under'}confident" if side else "the difference is not significant"
    yield f"Its mean confidence is {section.confidence:.1%}, its accuracy {accuracy.bayesian.value:.1%}: {judged}."
