"""What needs no network: guessing by frequencies. And how far the mean confidence is from the accuracy.

Index legend: N inputs, C classes, K outputs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from whence.auditing.tasks import Classes
from whence.errors import BadData, NotDefined
from whence.metrics import Estimate as Measured
from whence.metrics.means import mean_of
from whence.predictive.predictions import BinaryPrediction, CountPrediction, RegressionPrediction
from whence.report.record.common import Estimate
from whence.report.record.verdict import Guessing

CLASS_FREQUENCIES = "always predicting the class frequencies of the test data"
LABEL_FREQUENCIES = "always predicting the label frequencies of the test data"
MEAN_AND_VARIANCE = "always predicting the mean and variance of the test targets"
MEAN_COUNT = "always predicting the mean count of the test data"


def guessing(losses: Tensor | None, prediction: Any, targets: Tensor, names: list[str], seed: int) -> Guessing | None:
    """Guessing beside the posterior, whose log loss of each input (pixel, token) is ``losses`` [N, …].

    None if these are not defined.
    """
    if losses is None or len(losses) < 2:
        return None
    rate, name = None, None
    if isinstance(prediction, CountPrediction):
        words, each = MEAN_COUNT, _count_loss(targets.double().reshape(len(losses), -1))
    elif isinstance(prediction, RegressionPrediction):
        words, each = MEAN_AND_VARIANCE, _number_loss(targets.double().reshape(len(losses), -1))
    elif isinstance(prediction, BinaryPrediction):
        truth = targets.double().reshape(len(losses), -1)
        words = CLASS_FREQUENCIES if truth.shape[1] == 1 else LABEL_FREQUENCIES
        each = _label_loss(truth)
        if truth.shape[1] == 1:
            positive = float(truth.mean())
            rate, name = max((positive, names[-1]), (1 - positive, names[0]))
    else:
        counts = torch.bincount(targets[targets >= 0].long(), minlength=len(names)).double()
        words, frequency = CLASS_FREQUENCIES, counts / counts.sum()
        each = -frequency[targets.long().clamp(min=0)].log()
        rate, name = float(frequency.max()), names[int(frequency.argmax())]
    counted = ~losses.isnan()  # the others are ignored
    difference = Estimate.of(mean_of("difference", losses - each, mask=counted, seed=seed))
    assert difference is not None
    return Guessing(words, float(each[counted].mean()), difference, rate, name)


def _label_loss(truth: Tensor) -> Tensor:
    p = truth.mean(0)  # [K]
    right = torch.where(truth == 1, p, 1 - p)
    return -right.log().mean(1)


def _number_loss(y: Tensor) -> Tensor:
    variance = y.var(0, unbiased=False).clamp(min=torch.finfo(torch.float64).tiny)
    return 0.5 * ((y - y.mean(0)).square() / variance + torch.log(2 * math.pi * variance)).mean(1)


def _count_loss(y: Tensor) -> Tensor:
    rate = y.mean(0).clamp(min=torch.finfo(torch.float64).tiny).expand_as(y)
    return -torch.distributions.Poisson(rate).log_prob(y).mean(1)


def class_names(task: Any, classes: tuple[str, ...] | None, outputs: int) -> list[str]:
    """Names for guesses; of a single label first the negative, then the positive outcome."""
    if isinstance(task, Classes):
        return list(classes or map(str, range(outputs)))
    if outputs == 1:
        return list(classes) if classes and len(classes) == 2 else ["0", "1"]
    return list(classes or (f"label {k}" for k in range(outputs)))


def implied_auroc(prediction: Any, uncertainty: Tensor, index: Tensor | None = None) -> float | None:
    """The AUROC of ``uncertainty`` [M] for wrong answers if each were right with its stated confidence.

    Σ_ij (1 − c_i) c_j (1[u_i > u_j] + ½ 1[u_i = u_j]) / Σ_ij (1 − c_i) c_j over pairs of different answers. ``index``:
    their places among all, if they are some.
    """
    confidence = _confidence(prediction)
    confidence = confidence if confidence is None or index is None else confidence[index]
    if confidence is None or len(confidence) != len(uncertainty) or not len(confidence):
        return None
    _, place = uncertainty.unique(return_inverse=True)  # equal values share a place, in order
    right = torch.zeros(int(place.max()) + 1, dtype=torch.float64).index_add(0, place, confidence)
    below = right.cumsum(0) - right
    wrong = 1 - confidence
    own = wrong * confidence  # pairs of an input with itself
    won = wrong * (below[place] + 0.5 * right[place]) - 0.5 * own
    pairs = float(wrong.sum() * confidence.sum() - own.sum())
    return float(won.sum()) / pairs if pairs > 0 else None


def _confidence(prediction: Any) -> Tensor | None:
    try:
        return prediction.confidence.detach().double().cpu().reshape(-1)  # type: ignore[no-any-return]
    except (AttributeError, NotDefined, BadData):
        return None


def overconfidence(prediction: Any, targets: Tensor, seed: int) -> tuple[float, Measured] | None:
    """The mean confidence of all labels that count, and its difference from the accuracy; None without labels."""
    confidence = _confidence(prediction)
    if confidence is None or confidence.numel() != targets.numel() or len(targets) < 2:
        return None
    counted = targets >= 0
    right = (prediction.labels.cpu().reshape(targets.shape) == targets).double()
    apart = mean_of("difference", confidence.reshape(targets.shape) - right, (-1.0, 1.0), mask=counted, seed=seed)
    return float(confidence.reshape(targets.shape)[counted].mean()), apart
