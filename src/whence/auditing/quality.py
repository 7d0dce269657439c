"""How good are the uncertainties? The plain network beside the Bayesian one, on test data."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import UNCERTAINTY, Context, uncertainty
from whence.auditing.plain import estimate, numbers
from whence.errors import BadData, NotDefined
from whence.metrics import Estimate, auroc, evaluate, reliability
from whence.metrics.bootstrap import mean
from whence.metrics.elements import elements, read
from whence.predictive.predictions import ClassificationPrediction, RegressionPrediction
from whence.where.weights import thinned

BINS = 10
POINTS = 200  # of a curve

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


def quality(context: Context) -> dict[str, Any]:
    """Metrics with intervals, reliability, and the distribution of uncertainty in and out of distribution."""
    held = context.need("test", targets=True)
    assert held.targets is not None
    scores = {kind: _scores(context, kind, held.targets) for kind in ("plain", "bayesian")}
    rows = []
    for name, (label, better, about) in METRICS.items():
        if any(name in s for s in scores.values()):
            row: dict[str, Any] = {"name": name, "label": label, "better": better, "about": about}
            row |= {kind: estimate(s.get(name)) for kind, s in scores.items()}
            rows.append(row | {"difference": estimate(_difference(context, name, held.targets))})
    return {
        "metrics": rows,
        "reliability": _reliability(context, held.targets),
        "uncertainty": _spread(context),
        "words": _words(context, {r["name"]: r for r in rows}),
    }


def _scores(context: Context, kind: str, targets: Tensor) -> dict[str, Estimate]:
    prediction = context.prediction("test", kind)
    ood = context.prediction("ood", kind) if context.has("ood") else None
    found = dict(evaluate(prediction, targets, ood=ood, seed=context.options.seed))
    wrong = wrong_of(prediction, targets)
    if wrong is not None and bool(wrong.any()) and not bool(wrong.all()):
        found["error_auroc"] = auroc(uncertainty(prediction), wrong, seed=context.options.seed)
    return found


def wrong_of(prediction: Any, targets: Tensor) -> Tensor | None:
    """Whether each answer is wrong, where there is one label for each input."""
    labels = getattr(prediction, "labels", None)
    if labels is None or labels.numel() != targets.numel() or targets.numel() != len(targets):
        return None
    return labels.cpu().reshape(-1) != targets.reshape(-1)


def _losses(name: str, prediction: Any, targets: Tensor) -> Tensor | None:
    """The metric of each input, where it is a mean over them."""
    if isinstance(prediction, ClassificationPrediction) and prediction.probs.dim() == 2 and targets.dim() == 1:
        probs, y = prediction.probs.double().cpu(), targets.long()
        if bool((y < 0).any()):
            return None
        if name == "nll":
            return -probs.gather(1, y.unsqueeze(1)).squeeze(1).clamp(min=torch.finfo(torch.float32).tiny).log()
        if name == "brier":
            return (probs - torch.nn.functional.one_hot(y, probs.shape[1])).square().sum(1)
    if isinstance(prediction, RegressionPrediction) and name == "nll" and prediction.noise_samples is None:
        mean_of, variance = (t.double().cpu() for t in (prediction.mean, prediction.variance))
        y = targets.double().reshape(mean_of.shape)
        each = 0.5 * ((y - mean_of).square() / variance + variance.log() + math.log(2 * math.pi))
        return each.reshape(len(each), -1).mean(1)
    return None


def _difference(context: Context, name: str, targets: Tensor) -> Estimate | None:
    """Bayesian − plain, input by input."""
    pair = [_losses(name, context.prediction("test", kind), targets) for kind in ("bayesian", "plain")]
    if pair[0] is None or pair[1] is None:
        return None
    apart = pair[0] - pair[1]
    options = read("difference", {"seed": context.options.seed})
    return mean(f"difference in {name}", apart, elements(apart.shape, options, apart.device), options)


def _reliability(context: Context, targets: Tensor) -> dict[str, Any] | None:
    if context.task not in ("classification", "binary"):
        return None
    found = {}
    for kind in ("plain", "bayesian"):
        table = reliability(context.prediction("test", kind), targets, bins=BINS)
        names = ("confidence", "accuracy", "accuracy_low", "accuracy_high", "count")
        rows = zip(*(numbers(getattr(table, name)) for name in names), strict=True)
        found[kind] = [
            {"confidence": c, "accuracy": a, "low": low, "high": high, "count": int(n)}
            for c, a, low, high, n in rows
            if n
        ]
    return found


def _spread(context: Context) -> dict[str, Any]:
    name, label = UNCERTAINTY[context.task]

    def curve(held: str) -> dict[str, list[Any]] | None:
        if not context.has(held):
            return None
        kinds = {kind: uncertainty(context.prediction(held, kind)).sort().values for kind in ("plain", "bayesian")}
        return {kind: numbers(thinned(values, POINTS)) for kind, values in kinds.items()}

    return {"name": name, "label": label, "test": curve("test"), "ood": curve("ood")}


def _words(context: Context, rows: dict[str, dict[str, Any]]) -> list[str]:
    words = []
    if (row := rows.get("nll")) is not None and row["difference"] is not None:
        low, high = row["difference"]["low"], row["difference"]["high"]
        value = row["difference"]["value"]
        if low is not None and high is not None and low <= 0 <= high:
            words.append("Treating the weights as uncertain makes no difference to the log loss that shows here.")
        else:
            which = "better" if value < 0 else "worse"
            words.append(f"Treating the weights as uncertain makes the log loss {which} by {abs(value):.3g} nats.")
    if (row := rows.get("ece")) is not None and context.task == "classification":
        prediction = context.prediction("test")
        target = context.need("test").targets
        assert target is not None
        confidence = float(prediction.confidence.double().mean())
        right = float(rows["accuracy"]["bayesian"]["value"])
        tendency = "more" if confidence > right else "less"
        words.append(
            f"On average it claims {confidence:.1%} and is right {right:.1%} of the time: {tendency} confident than "
            "it should be."
            if abs(confidence - right) > 0.005
            else f"On average it claims {confidence:.1%} and is right {right:.1%} of the time."
        )
    return words


def mean_confidence(context: Context) -> float | None:
    """Of the Bayesian prediction on test data."""
    try:
        return float(context.prediction("test").confidence.double().mean())
    except (AttributeError, NotDefined, BadData):
        return None
