"""Accuracy, log loss and Brier score of predicted labels."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from whence.errors import notice
from whence.metrics.bootstrap import mean
from whence.metrics.elements import ArrayLike, ForLabels, read
from whence.metrics.estimate import Estimate
from whence.metrics.labels import Labels, labels

PIECE = 2**22  # probabilities that are widened to float64 at once


def accuracy(prediction: Any, targets: ArrayLike, **common: Unpack[ForLabels]) -> Estimate:
    """Share of elements whose most probable class is the true one."""
    options = read("accuracy", common, labels=True)
    found = labels(prediction, targets, options)
    return mean("accuracy", found.correct, found.elements, options, (0.0, 1.0))


def brier(prediction: Any, targets: ArrayLike, **common: Unpack[ForLabels]) -> Estimate:
    """Mean squared distance of the probabilities from the truth (Brier 1950, Mon. Weather Rev. 78).

    Summed over classes, in 0..2; for binary labels (p − y)², in 0..1.
    """
    options = read("brier", common, labels=True)
    found = labels(prediction, targets, options)
    bounds = (0.0, 1.0) if found.binary else (0.0, 2.0)
    return mean("brier", squared_distances(found), found.elements, options, bounds)


def squared_distances(found: Labels) -> Tensor:
    """Σ_c (p_c − 1[y = c])², of p alone for binary labels, [N]."""
    if found.binary:
        return (found.probs[:, 1] - found.truth).square()
    rows = max(1, PIECE // found.probs.shape[1])
    parts = []
    for probs, truth in zip(found.probs.split(rows), found.truth.split(rows), strict=True):
        gap = probs.to(torch.float64, copy=True)
        gap[torch.arange(len(gap), device=gap.device), truth] -= 1
        parts.append(gap.square().sum(1))
    return torch.cat(parts)


def log_losses(found: Labels) -> Tensor:
    """−log p of the true class in nats, [N]; p is clamped at the smallest normal number of its dtype."""
    smallest = torch.finfo(found.dtype).tiny
    zeros = int((found.of_truth == 0).sum())
    if zeros:
        notice(
            f"{zeros} of {len(found.truth)} true classes have probability 0, of which the log loss is infinite; "
            f"taken as {smallest:.3g}, the smallest normal {str(found.dtype).removeprefix('torch.')}."
        )
    return -found.of_truth.clamp(min=smallest).log()
