"""Scores of one or several predictions for the same inputs.

Index legend: S draws, N inputs, K outputs, C classes, M labels of all inputs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from whence.auditing.data import spaced
from whence.auditing.tasks import Classes, Task
from whence.errors import BadData, BadOption, NotDefined, Notice
from whence.metrics import Estimate as Measured
from whence.metrics import auroc, evaluate, fpr95, reliability
from whence.metrics.means import mean_of
from whence.predictive.predictions import (
    BinaryPrediction,
    ClassificationPrediction,
    CountPrediction,
    RegressionPrediction,
)
from whence.report.record.common import Bins, Estimate, MetricName, ReliabilityBin
from whence.report.record.common import Numbers as Values

BINS = 15  # as in metrics.ece, so that its value follows from the table
POINTS = 200  # of a curve
RANKED = 100_000  # labels that an AUROC of errors ranks
NEGLIGIBLE = 1e-3  # negligible difference in nats (or Brier)
TINY = torch.finfo(torch.float32).tiny
OF_LABELS = ("accuracy", "nll", "brier", "ece", "auroc")  # of metrics.evaluate
OF_NUMBERS = ("rmse", "r2", "nll", "crps", "coverage", "width")
COVERAGE, WIDTH, LEVEL = "coverage", "width", 0.95

METRICS = [
    MetricName(*row)  # type: ignore[arg-type]
    for row in (
        ("accuracy", "Accuracy", "higher", "Share of right answers: the most probable class, or a label above 0.5."),
        ("rmse", "RMSE", "lower", "Root mean squared error: the size of a typical error."),
        ("r2", "R²", "higher", "Share of the variance of the true values that the predictions explain: 1 is perfect, 0 "
         "what always predicting their mean gives. Of several outputs the mean."),
        ("nll", "NLL", "lower", "Negative log likelihood, in nats: −log of the probability (density) of the truth. "
         "Confident errors cost most."),
        ("brier", "Brier score", "lower", "Squared distance between the predicted probabilities and the outcome."),
        ("crps", "CRPS", "lower", "Distance between the predicted distribution and the outcome."),
        ("ece", "ECE", "lower", "Expected calibration error: the mean difference between confidence and accuracy over "
         f"{BINS} groups of equal width, in percentage points. With few inputs the estimate is too large on average. "
         "The interval is corrected for that, so the estimate need not lie in its middle."),
        ("coverage", "Coverage of 95% intervals", "0.95", "Share of true values inside the interval; it should be "
         "95%."),
        ("width", "Width of 95% intervals", "lower", "Mean width of the intervals; comparable only at equal coverage."),
        ("auroc", "AUROC", "higher", "How well the probability ranks positives above negatives; 0.5 is chance, 1 "
         "perfect."),
        ("error_auroc", "AUROC of errors", "higher", "How well the UNCERTAINTY ranks wrong answers above right "
         "ones; 0.5 is chance, 1 perfect."),
        ("ood_auroc", "AUROC against novel inputs", "higher", "How well the UNCERTAINTY ranks novel inputs "
         "above test inputs; 0.5 is chance, 1 perfect."),
        ("ood_fpr95", "FPR95 against novel inputs", "lower", "Share of test inputs flagged when 95% of the novel "
         "inputs are, by the UNCERTAINTY."),
    )
]  # fmt: skip


BRIER_OF_CLASSES = (
    "Squared distance between the predicted probabilities and the outcome, summed over the classes: 0 to 2."
)
BRIER_OF_ONE = (
    "Squared difference between the predicted probability of the positive class and the outcome (0 or 1): 0 to 1."
)
BRIER_OF_LABELS = (
    "Squared difference between the predicted probability of a label and the outcome (0 or 1), mean over labels: 0 to "
    "1."
)
UNCERTAINTY = {"entropy": "entropy of the prediction", "variance": "predicted standard deviation"}


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
    novel: Sequence[tuple[Tensor, Tensor] | None],
    seed: int,
    things: str = "labels",
) -> Iterator[Scores]:
    """Every metric that applies; ``novel`` are uncertainties of inputs in and out of distribution, or None.

    ``things``: what is counted, pixels for example.
    """
    pairs = zip(predictions, novel, strict=True)
    found = [_all_scores(task, prediction, targets, apart, seed) for prediction, apart in pairs]
    for metric in METRICS:
        values = [scores.get(metric.name) for scores in found]
        if any(value is not None for value in values):
            yield Scores(
                described(metric, task, targets, things),
                values,
                [losses_of(metric.name, one, targets) for one in predictions],
            )


def described(metric: MetricName, task: Task, targets: Tensor, things: str) -> MetricName:
    """The metric with what depends on the task: its scale, the score that ranks, and how many are ranked."""
    labels = int((targets >= 0).sum()) if task.has_labels else 0
    about = metric.about.replace("UNCERTAINTY", UNCERTAINTY.get(task.measure, "uncertainty"))
    if metric.name == "brier":
        one = BRIER_OF_LABELS if targets[:1].numel() > 1 else BRIER_OF_ONE
        about = BRIER_OF_CLASSES if isinstance(task, Classes) else one
    elif metric.name == "error_auroc" and labels > RANKED:
        about += f" Measured on {RANKED:,} of the {labels:,} {things}, spread evenly over them."
    return replace(metric, about=about)


def _all_scores(
    task: Task, prediction: Any, targets: Tensor, novel: tuple[Tensor, Tensor] | None, seed: int
) -> dict[str, Measured]:
    """The metrics of one prediction, with the AUROC of errors and those against novel inputs."""
    found: dict[str, Measured] = {}
    for name in OF_LABELS if task.has_labels else OF_NUMBERS:
        try:
            found |= evaluate(prediction, targets, metrics=[name], seed=seed)
        except (NotDefined, BadData, BadOption):
            continue  # of other kinds of predictions, or of targets of one class
    if task.has_labels:
        ranked = ranked_errors(task, prediction, targets)
        if bool(ranked.wrong.any()) and not bool(ranked.wrong.all()):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Notice)  # inputs without a wrong label may be one
                found["error_auroc"] = auroc(ranked.uncertainty, ranked.wrong, groups=ranked.owner, seed=seed)
    if novel is not None:
        scores = torch.cat(novel)
        outside = torch.arange(len(scores)) >= len(novel[0])
        found |= {"ood_auroc": auroc(scores, outside, seed=seed), "ood_fpr95": fpr95(scores, outside, seed=seed)}
    return found


@dataclass(frozen=True)
class RankedErrors:
    """Labels with a truth: their uncertainty, whether they are wrong, and the input of each; [M] each."""

    uncertainty: Tensor
    wrong: Tensor
    owner: Tensor
    index: Tensor  # places in the flattened targets


def ranked_errors(task: Task, prediction: Any, targets: Tensor) -> RankedErrors:
    """At most RANKED labels, of all inputs."""
    labels = prediction.labels.detach().cpu().reshape(-1)
    truth, uncertainty = targets.reshape(-1), getattr(prediction, task.measure).detach().double().cpu().reshape(-1)
    index = (truth >= 0).nonzero().flatten()
    if len(index) > RANKED:
        index = index[torch.linspace(0, len(index) - 1, RANKED, dtype=torch.float64).long()]
    owner = index // max(1, len(truth) // len(targets))
    return RankedErrors(uncertainty[index], labels[index] != truth[index], owner, index)


def paired(differences: Tensor, seed: int) -> Measured:
    """Mean of paired differences with its interval, in which inputs are resampled, not their pixels or tokens."""
    return mean_of("difference", differences, mask=~differences.isnan(), seed=seed)


# One prediction


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


def reliability_bins(prediction: Any, targets: Tensor, of: Literal["confidence"] | int = "confidence") -> Bins:
    """Non-empty reliability bins, of the largest probability or of that of one class."""
    table = reliability(prediction, targets, bins=BINS, of=of)
    columns = (table.confidence, table.accuracy, table.accuracy_low, table.accuracy_high, table.count)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(ReliabilityBin(c, a, low, high, int(count)) for c, a, low, high, count in rows if count)


def sorted_values(values: Tensor) -> Values:
    """Sorted values, at most a few hundred, with the smallest and the largest."""
    ordered = values.sort().values
    return tuple(ordered[spaced(len(ordered), min(len(ordered), POINTS))].tolist())
