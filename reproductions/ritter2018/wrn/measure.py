"""What is measured of a prediction: on images of the kind that was trained on, and on others.

Index legend: N images, C classes, H points of a curve.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reproductions.store import Values
from whence import metrics

SURE = 0.99  # confidence beyond which a prediction counts as sure
POINTS = 101
DOUBTS = 81  # points of the curve of confidence
LEAST = 1e-4  # the least 1 − confidence that the curve tells apart


def inside(prediction: Any, targets: Tensor, plain: Any, resamples: int) -> Values:
    """Accuracy, calibration and uncertainty; ``plain`` is the deterministic prediction."""
    probs, targets = prediction.probs.double().cpu(), targets.cpu()
    entropy = prediction.entropy.double().cpu()
    wrong = prediction.labels.cpu() != targets
    options: Any = {"resamples": resamples}
    scores = {
        "accuracy": metrics.accuracy(probs, targets, **options),
        "nll": metrics.nll(probs, targets, **options),
        "ece": metrics.ece(probs, targets, **options),
        "aurc": metrics.aurc(probs, targets, uncertainty=entropy, **options),
        "auroc_wrong": metrics.auroc(entropy, wrong, **options),
        "total_variation": metrics.total_variation(prediction, plain, **options),
    }
    return {name: estimate(score) for name, score in scores.items()} | {
        "wrong": int(wrong.sum()),
        "entropy": average(entropy),
        "entropy_correct": average(entropy[~wrong]),
        "entropy_wrong": average(entropy[wrong]),
        "curve_correct": survival(entropy[~wrong], probs.shape[1]),
        "curve_wrong": survival(entropy[wrong], probs.shape[1]),
        "doubt": doubt_curve(probs),
    }


def outside(prediction: Any, within: Any, resamples: int) -> Values:
    """Confidence on images of another kind, and how well entropy tells them from those that were trained on."""
    probs = prediction.probs.double().cpu()
    return told(within.entropy.cpu(), prediction.entropy.cpu(), resamples) | {
        "confidence": average(probs.amax(1)),
        "sure": average((probs.amax(1) > SURE).double()),
        "entropy": average(prediction.entropy.double().cpu()),
        "doubt": doubt_curve(probs),
    }


def told(inner: Tensor, outer: Tensor, resamples: int) -> Values:
    """AUROC and FPR95 of a score that should be higher for ``outer``."""
    scores = torch.cat([inner, outer]).double()
    positive = torch.arange(len(scores)) >= len(inner)
    return {
        "auroc": estimate(metrics.auroc(scores, positive, resamples=resamples)),
        "fpr95": estimate(metrics.fpr95(scores, positive, resamples=resamples)),
    }


def estimate(found: metrics.Estimate) -> Values:
    return {"value": float(found), "low": found.low, "high": found.high}


def average(values: Tensor) -> Values:
    """Mean with its 95 % interval by the standard error."""
    mean = float(values.double().mean())
    half = 1.96 * float(values.double().std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return {"value": mean, "low": mean - half, "high": mean + half}


def survival(entropy: Tensor, classes: int) -> list[float]:
    """Share of predictions whose entropy is at least h, for h on an even grid of [0, log C], [H]."""
    grid = torch.linspace(0, math.log(classes), POINTS, dtype=torch.float64)
    return (entropy.unsqueeze(1) >= grid).double().mean(0).tolist()


def doubts() -> Tensor:
    """The grid of 1 − confidence, [H]."""
    return torch.logspace(math.log10(LEAST), 0, DOUBTS, dtype=torch.float64)


def doubt_curve(probs: Tensor) -> list[float]:
    """Share of predictions whose confidence is at least 1 − d, for d on :func:`doubts`, [H]."""
    return (1 - probs.amax(1, keepdim=True) <= doubts()).double().mean(0).tolist()


def packed(pixels: Tensor) -> str:
    """One uint8 image [C, H, W] as text."""
    return base64.b64encode(zlib.compress(pixels.cpu().contiguous().numpy().tobytes(), 9)).decode()


def unpacked(text: str, shape: Sequence[int]) -> Tensor:
    content = bytearray(zlib.decompress(base64.b64decode(text)))
    return torch.frombuffer(content, dtype=torch.uint8).reshape(tuple(shape))
