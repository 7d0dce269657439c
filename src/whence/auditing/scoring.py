"""Scores of one prediction, and differences between two, as all sections of a record take them.

Index legend: S draws, N inputs, K outputs, C classes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import uncertainty
from whence.auditing.plain import numbers
from whence.auditing.sets import spaced
from whence.metrics import Estimate, auroc, evaluate, reliability, risk_coverage
from whence.metrics.bootstrap import mean
from whence.metrics.elements import elements, read
from whence.predictive.predictions import (
    BinaryPrediction,
    ClassificationPrediction,
    CountPrediction,
    RegressionPrediction,
)
from whence.where.weights import thinned

BINS = 10
POINTS = 200  # of a curve
CURVE = 100  # points of error against coverage
NEGLIGIBLE = 1e-3  # nats (or Brier) that nobody would notice

# name → label, which is better, what it says
METRICS: dict[str, tuple[str, str, str]] = {
    "accuracy": ("Accuracy", "higher", "How often the most probable class is the right one."),
    "rmse": ("RMSE", "lower", "The typical size of an error, in the units of the target."),
    "nll": (
        "NLL",
        "lower",
        "Negative log likelihood: how surprised the network is by the truth. Confident errors cost most.",
    ),
    "brier": ("Brier score", "lower", "Squared distance between the predicted probabilities and what happened."),
    "crps": ("CRPS", "lower", "Distance between the predicted distribution and what happened, in the target's units."),
    "ece": ("ECE", "lower", "Expected calibration error: how far stated confidence is from how often it is right."),
    "coverage": ("Coverage of 95 % intervals", "0.95", "How often the truth lies in the interval; it should be 95 %."),
    "width": ("Width of 95 % intervals", "lower", "How wide the intervals are; only comparable at equal coverage."),
    "auroc": ("AUROC", "higher", "How well the probabilities rank ones above zeros."),
    "error_auroc": (
        "AUROC of errors",
        "higher",
        "How well uncertainty ranks wrong answers above right ones; 0.5 is chance, 1 perfect.",
    ),
    "ood_auroc": (
        "AUROC against novel inputs",
        "higher",
        "How well uncertainty ranks inputs from elsewhere above test inputs; 0.5 is chance, 1 perfect.",
    ),
    "ood_fpr95": (
        "FPR95 against novel inputs",
        "lower",
        "How many test inputs are flagged when 95 % of the novel ones are.",
    ),
}


def scores_of(prediction: Any, targets: Tensor, ood: Any, seed: int) -> dict[str, Estimate]:
    """All metrics that suit a prediction, and how well uncertainty ranks its errors."""
    found = dict(evaluate(prediction, targets, ood=ood, seed=seed))
    wrong = wrong_of(prediction, targets)
    if wrong is not None and bool(wrong.any()) and not bool(wrong.all()):
        found["error_auroc"] = auroc(uncertainty(prediction), wrong, seed=seed)
    return found


def wrong_of(prediction: Any, targets: Tensor) -> Tensor | None:
    """Whether each answer is wrong, where there is one label for each input."""
    labels = getattr(prediction, "labels", None)
    if labels is None or labels.numel() != targets.numel() or targets.numel() != len(targets):
        return None
    return labels.cpu().reshape(-1) != targets.reshape(-1)


def losses_of(name: str, prediction: Any, targets: Tensor) -> Tensor | None:
    """The metric of each input, where it is a mean over them, [N]."""
    if isinstance(prediction, ClassificationPrediction) and prediction.probs.dim() == 2 and targets.dim() == 1:
        return _of_labels(name, prediction.probs.double().cpu(), targets.long())
    if isinstance(prediction, BinaryPrediction) and prediction.probs.numel() == targets.numel():
        return _of_binary(name, prediction.probs.double().cpu(), targets.double().reshape(prediction.probs.shape))
    if isinstance(prediction, CountPrediction) and name == "nll":
        counts = targets.double().reshape(prediction.mean.shape)
        each = torch.distributions.Poisson(prediction.samples.double().cpu()).log_prob(counts)
        each = math.log(len(each)) - each.logsumexp(0)
        return each.reshape(len(each), -1).mean(1)
    if isinstance(prediction, RegressionPrediction) and name == "nll":
        each = -_log_density(prediction, targets)
        return each.reshape(len(each), -1).mean(1)
    return None


def _of_labels(name: str, probs: Tensor, y: Tensor) -> Tensor | None:
    if bool((y < 0).any()):
        return None
    if name == "nll":
        return -probs.gather(1, y.unsqueeze(1)).squeeze(1).clamp(min=torch.finfo(torch.float32).tiny).log()
    if name == "brier":
        return (probs - torch.nn.functional.one_hot(y, probs.shape[1])).square().sum(1)
    return None


def _of_binary(name: str, p: Tensor, y: Tensor) -> Tensor | None:
    if bool(((y != 0) & (y != 1)).any()):
        return None
    tiny = torch.finfo(torch.float32).tiny
    if name == "nll":
        return -torch.where(y == 1, p, 1 - p).clamp(min=tiny).log().reshape(len(y), -1).mean(1)
    return (p - y).square().reshape(len(y), -1).mean(1) if name == "brier" else None


def _log_density(prediction: RegressionPrediction, targets: Tensor) -> Tensor:
    """Of a Gaussian, or of the mixture over draws, [N, K]."""
    y = targets.double().reshape(prediction.mean.shape)
    if prediction.samples is None:
        return _normal(y, prediction.mean.double().cpu(), prediction.variance.double().cpu())
    noise = prediction.aleatoric if prediction.noise_samples is None else prediction.noise_samples
    each = _normal(y, prediction.samples.double().cpu(), noise.double().cpu())
    return each.logsumexp(0) - math.log(len(each))


def _normal(y: Tensor, centre: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((y - centre).square() / variance + variance.log() + math.log(2 * math.pi))


def paired(apart: Tensor, seed: int) -> Estimate:
    """The mean of differences input by input, with its interval."""
    options = read("difference", {"seed": seed})
    return mean("difference", apart, elements(apart.shape, options, apart.device), options)


def not_worse(values: list[Estimate | None], losses: list[Tensor | None], better: str, seed: int) -> list[bool]:
    """Whether each is the best, or not worse than it by more than chance.

    By the paired interval of the difference where inputs have losses; else whether it lies in the best one's interval.
    """
    there = [i for i, value in enumerate(values) if value is not None]
    sign = {"lower": 1.0, "higher": -1.0}.get(better)

    def cost(i: int) -> float:
        value = values[i]
        assert value is not None
        return sign * float(value) if sign is not None else abs(float(value) - float(better))

    best = min(there, key=cost)
    found = []
    for i, value in enumerate(values):
        one, other = losses[i], losses[best]
        if value is None:
            found.append(False)
        elif i == best or one is None or other is None or len(one) < 2:
            top = values[best]
            assert top is not None
            found.append(i == best or top.low <= float(value) <= top.high)
        else:
            apart = paired(one - other, seed)
            found.append(apart.low <= 0 or abs(apart) < NEGLIGIBLE)
    return found


def reliability_of(prediction: Any, targets: Tensor) -> list[dict[str, Any]]:
    """Bins that hold something."""
    table = reliability(prediction, targets, bins=BINS)
    names = ("confidence", "accuracy", "accuracy_low", "accuracy_high", "count")
    rows = zip(*(numbers(getattr(table, name)) for name in names), strict=True)
    return [
        {"confidence": c, "accuracy": a, "low": low, "high": high, "count": int(n)} for c, a, low, high, n in rows if n
    ]


def curve_of(prediction: Any, targets: Tensor) -> dict[str, list[Any]] | None:
    """Error of those that are kept against the part that is kept; None where there is not one label for each input."""
    if wrong_of(prediction, targets) is None:
        return None
    table = risk_coverage(prediction, targets, uncertainty=uncertainty(prediction).reshape(targets.shape))
    index = spaced(len(table.coverage), min(CURVE, len(table.coverage)))
    return {"coverage": numbers(table.coverage[index]), "error": numbers(table.risk[index])}


def sorted_values(values: Tensor) -> list[Any]:
    """From the smallest to the largest, thinned to a few hundred."""
    return numbers(thinned(values.sort().values, POINTS))
