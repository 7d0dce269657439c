"""Reading predictions of class labels; accuracy and Brier score.

Index legend: N scored elements, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from whence.errors import BadData, BadOption, notice
from whence.metrics.elements import (
    ArrayLike,
    Elements,
    ForLabels,
    MetricOptions,
    check_weights,
    elements,
    finite,
    per_element,
    squeezed,
    tensor,
)
from whence.metrics.intervals import SHARE, Estimate
from whence.metrics.means import mean, share
from whence.predictive.predictions import BinaryPrediction, ClassificationPrediction

CHUNK = 2**22  # probabilities converted to float64 at once


def accuracy(prediction: Any, targets: ArrayLike, **common: Unpack[ForLabels]) -> Estimate:
    """Share of elements whose most probable class is the true one."""
    found = read_labels("accuracy", prediction, targets, common)
    return share("accuracy", found.correct, found.elements)


def brier(prediction: Any, targets: ArrayLike, **common: Unpack[ForLabels]) -> Estimate:
    """Mean squared distance of the probabilities from the truth (Brier 1950, Mon. Weather Rev. 78).

    Summed over classes, in 0..2; for binary labels (p − y)², in 0..1.
    """
    found = read_labels("brier", prediction, targets, common)
    return mean("brier", found.squared_distances(), found.elements, SHARE if found.binary else (0.0, 2.0))


@dataclass(frozen=True)
class Labels:
    """Class probabilities and true classes of the scored elements."""

    probs: Tensor  # [N, C]; binary labels in float64, as (1 − p, p)
    truth: Tensor  # [N]
    elements: Elements
    binary: bool
    dtype: torch.dtype  # of the given probabilities
    shape: torch.Size  # of the targets

    @property
    def confidence(self) -> Tensor:
        """The largest probability, [N]."""
        return self.probs.amax(1).double()

    @property
    def correct(self) -> Tensor:
        """Whether the most probable class is the true one, [N] in float64."""
        return (self.probs.argmax(1) == self.truth).double()

    def column(self, c: int) -> Tensor:
        """The probability of one class, [N]."""
        return self.probs[:, c].double().contiguous()

    def per_element(self, values: ArrayLike, what: str) -> Tensor:
        """Other values in the shape of the targets, only for scored elements, [N] in float64."""
        flat = per_element(values, self.shape, what).to(self.elements.keep.device)
        return finite(flat[self.elements.keep].double(), what)

    def squared_distances(self) -> Tensor:
        """Σ_c (p_c − 1[y = c])²; for binary labels of p alone, [N]."""
        if self.binary:
            return (self.probs[:, 1] - self.truth).square()
        rows = max(1, CHUNK // self.probs.shape[1])
        parts = []
        for probs, truth in zip(self.probs.split(rows), self.truth.split(rows), strict=True):
            off = probs.to(torch.float64, copy=True)
            off[torch.arange(len(off), device=off.device), truth] -= 1
            parts.append(off.square().sum(1))
        return torch.cat(parts)

    def log_losses(self) -> Tensor:
        """−log p of the true class in nats, [N]; p is clamped at the smallest normal number of its dtype."""
        p = self.probs.gather(1, self.truth.unsqueeze(1)).squeeze(1).double()
        smallest, zeros = torch.finfo(self.dtype).tiny, int((p == 0).sum())
        if zeros:
            notice(
                f"{zeros:,} of {len(p):,} true classes have probability 0, for which the log loss is infinite; it is "
                f"computed from {smallest:.3g}, the smallest normal {str(self.dtype).removeprefix('torch.')}."
            )
        return -p.clamp(min=smallest).log()


# Reading


def read_labels(metric: str, prediction: Any, targets: ArrayLike, common: Mapping[str, Any]) -> Labels:
    """A prediction of labels with its targets; binary if the targets have the shape of the probabilities."""
    options = MetricOptions.read(metric, common, labels=True)
    binary: bool | None = None
    if isinstance(prediction, ClassificationPrediction):
        options, binary = replace(options, class_dim=prediction.class_dim), False
    elif isinstance(prediction, BinaryPrediction):
        binary = True
    prediction = prediction if binary is None else prediction.probs
    if hasattr(prediction, "mean") and not hasattr(prediction, "shape"):
        raise BadData(f"a {type(prediction).__name__} has no class probabilities; use rmse, crps or coverage.")
    probs = tensor(prediction, "probabilities")
    truth = tensor(targets, "targets").to(probs.device)
    if not probs.is_floating_point():
        probs = probs.double()
    if probs.dim() == 0 or truth.dim() == 0:
        raise BadData("probabilities and targets need an example dimension: (N, C) and (N,), or (N,) and (N,).")
    if is_binary(probs, truth) if binary is None else binary:
        found = _binary(probs, truth, options)
    else:
        found = _classes(probs, truth, options)
    return found if options.class_weights is None else _class_weighted(found)


def is_binary(probs: Tensor, truth: Tensor) -> bool:
    """Whether there are as many targets as probabilities."""
    return probs.dim() == 1 or squeezed(probs.shape) == squeezed(truth.shape) or probs.shape[1:].numel() == 1


def _classes(probs: Tensor, truth: Tensor, options: MetricOptions) -> Labels:
    class_dim = options.class_dim
    if not -probs.dim() <= class_dim < probs.dim() or class_dim % probs.dim() == 0:
        raise BadOption(f"class_dim={class_dim} is not a class dimension of {tuple(probs.shape)}; use 1 or -1.")
    moved = probs.movedim(class_dim, -1)
    shape, count = moved.shape[:-1], moved.shape[-1]
    if squeezed(truth.shape) != squeezed(shape):
        hint = ""
        for other in (1, -1):
            if squeezed(truth.shape) == squeezed(probs.movedim(other, -1).shape[:-1]):
                hint = f" With class_dim={other} they would match."
        raise BadData(
            f"targets of shape {tuple(truth.shape)} do not match probabilities of shape {tuple(probs.shape)}, whose "
            f"classes are in dimension {class_dim}: expected {tuple(shape)}.{hint}"
        )
    truth = truth.reshape(-1)
    members = elements(shape, options, probs.device, truth)
    flat = moved.reshape(-1, count)[members.keep]
    truth = _class_numbers(truth[members.keep], count)
    _check_rows(flat, "softmax(-1)" if class_dim == -1 else f"softmax({class_dim})")
    return Labels(flat.clamp(0, 1), truth, members, False, probs.dtype, shape)


def _binary(probs: Tensor, truth: Tensor, options: MetricOptions) -> Labels:
    shape = probs.shape
    if squeezed(truth.shape) != squeezed(shape):
        raise BadData(
            f"targets of shape {tuple(truth.shape)} do not match binary probabilities of shape {tuple(shape)}: one "
            "target, 0 or 1, per probability."
        )
    members = elements(shape, options, probs.device, truth.reshape(-1))
    if len(shape) == 2 and shape[1] > 1 and _looks_one_hot(probs, truth.reshape(shape)):
        notice(
            f"probabilities and targets sum to 1 in every row, but are scored as {shape[1]} binary labels; for one "
            "class out of many pass targets.argmax(1)."
        )
    p = probs.reshape(-1)[members.keep]
    truth = _class_numbers(truth.reshape(-1)[members.keep], 2)
    _check_range(p, ".sigmoid()")
    p = p.double().clamp(0, 1)
    return Labels(torch.stack([1 - p, p], 1), truth, members, True, probs.dtype, shape)


def _looks_one_hot(probs: Tensor, truth: Tensor) -> bool:
    return bool(((probs.double().sum(1) - 1).abs() < 1e-3).all()) and bool((truth.sum(1) == 1).all())


def _class_weighted(found: Labels) -> Labels:
    """Multiply every weight by that of the element's true class, and drop elements of weight 0."""
    count, members = found.probs.shape[1], found.elements
    per_class = tensor(members.options.class_weights, "class_weights").to(found.truth.device, torch.float64)
    if per_class.shape != (count,):
        raise BadOption(f"class_weights has shape {tuple(per_class.shape)}; there are {count} classes: ({count},).")
    check_weights(per_class, "class_weights")
    weighted = replace(members, weights=members.weights * per_class[found.truth])
    left = (weighted.weights > 0).nonzero().flatten()
    if not len(left):
        raise BadData(f"nothing to score: 0 of {members.count} elements have a class of positive weight.")
    return replace(found, probs=found.probs[left], truth=found.truth[left], elements=weighted.subset(left))


def _class_numbers(truth: Tensor, count: int) -> Tensor:
    """Labels as integers in 0..C−1."""
    finite(truth, "targets")
    if truth.is_floating_point() and bool((truth != truth.round()).any()):
        odd = float(truth[truth != truth.round()][0])
        raise BadData(f"targets must be class numbers 0..{count - 1}; found {odd:.6g}.")
    truth = truth.long()
    low, high = int(truth.min()), int(truth.max())
    if low < 0 or high >= count:
        raise BadData(
            f"targets are in {low}..{high}, but there are {count} classes: 0..{count - 1}. "
            "Exclude others with mask= or ignore_index=."
        )
    return truth


def _check_range(probs: Tensor, remedy: str) -> None:
    """Raise unless the probabilities are finite and within 0..1, up to rounding."""
    finite(probs, "probabilities")
    low, high = float(probs.min()), float(probs.max())
    slack = max(1e-6, 2 * torch.finfo(probs.dtype).eps)
    if low >= -slack and high <= 1 + slack:
        return
    if high <= slack and probs.dim() == 2 and bool(((probs.double().exp().sum(1) - 1).abs() < 1e-3).all()):
        raise BadData(f"probabilities are in {low:.4g}..{high:.4g}; these look like log-probabilities: pass .exp().")
    raise BadData(f"probabilities are in {low:.4g}..{high:.4g}, not in 0..1; these look like logits: pass {remedy}.")


def _check_rows(probs: Tensor, remedy: str) -> None:
    """Raise unless every row is a distribution, up to 1e-3 or twice the precision of half floats."""
    _check_range(probs, f".{remedy}")
    totals = probs.sum(1, dtype=torch.float64)
    off = (totals - 1).abs()
    wrong = off > max(1e-3, 2 * torch.finfo(probs.dtype).eps)
    if bool(wrong.any()):
        raise BadData(
            f"{int(wrong.sum())} of {len(probs)} rows of probabilities do not sum to 1 (one sums to "
            f"{float(totals[off.argmax()]):.4g}). Normalise them, or for logits pass .{remedy}."
        )
