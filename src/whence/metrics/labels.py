"""Predictions of labels as the metrics read them: flat, checked, with what counts.

Index legend: N elements that count, C classes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import BadData, BadOption, notice
from whence.metrics.elements import (
    ArrayLike,
    Elements,
    Options,
    check_weights,
    elements,
    finite,
    fit,
    reweighted,
    squeezed,
    tensor,
)
from whence.predictive.predictions import BinaryPrediction, ClassificationPrediction


@dataclass(frozen=True)
class Labels:
    """Class probabilities and true classes of the elements that count."""

    probs: Tensor  # [N, C]; binary labels in float64, as (1 − p, p)
    truth: Tensor  # [N]
    elements: Elements
    binary: bool
    dtype: torch.dtype  # of the probabilities that were given
    shape: torch.Size  # of the targets

    @functools.cached_property
    def confidence(self) -> Tensor:
        """The largest probability, [N]."""
        return self.probs.amax(1).double()

    @functools.cached_property
    def correct(self) -> Tensor:
        """Whether the most probable class is the true one, [N] in float64."""
        return (self.probs.argmax(1) == self.truth).double()

    @functools.cached_property
    def of_truth(self) -> Tensor:
        """Probability of the true class, [N]."""
        return self.probs.gather(1, self.truth.unsqueeze(1)).squeeze(1).double()

    def column(self, c: int) -> Tensor:
        return self.probs[:, c].double().contiguous()

    def per_element(self, values: ArrayLike, what: str) -> Tensor:
        """Other values in the shape of the targets, for the elements that count, [N] in float64."""
        flat = fit(values, self.shape, what).to(self.elements.keep.device)
        return finite(flat[self.elements.keep].double(), what)


def labels(prediction: Any, targets: ArrayLike, options: Options) -> Labels:
    """Read a prediction of labels; binary where targets have the shape of the probabilities."""
    class_dim = options.class_dim
    if isinstance(prediction, ClassificationPrediction):
        prediction, class_dim = prediction.probs, prediction.class_dim
        binary: bool | None = False
    else:
        binary = True if isinstance(prediction, BinaryPrediction) else None
        prediction = prediction.probs if isinstance(prediction, BinaryPrediction) else prediction
    if hasattr(prediction, "mean") and not hasattr(prediction, "shape"):
        raise BadData(f"a {type(prediction).__name__} holds no class probabilities; use rmse, crps or coverage.")
    probs = tensor(prediction, "probabilities")
    truth = tensor(targets, "targets").to(probs.device)
    if not probs.is_floating_point():
        probs = probs.double()
    if probs.dim() == 0 or truth.dim() == 0:
        raise BadData("probabilities and targets need an example dimension: (N, C) and (N,), or (N,) and (N,).")
    if binary is None:
        binary = is_binary(probs, truth)
    return _binary(probs, truth, options) if binary else _classes(probs, truth, options, class_dim)


def is_binary(probs: Tensor, truth: Tensor) -> bool:
    """By the shapes: as many targets as probabilities."""
    return probs.dim() == 1 or squeezed(probs.shape) == squeezed(truth.shape) or probs.shape[1:].numel() == 1


def _classes(probs: Tensor, truth: Tensor, options: Options, class_dim: int) -> Labels:
    if not -probs.dim() <= class_dim < probs.dim() or class_dim % probs.dim() == 0:
        raise BadOption(f"class_dim={class_dim} is no class dimension of {tuple(probs.shape)}; take 1 or -1.")
    moved = probs.movedim(class_dim, -1)
    shape, count = moved.shape[:-1], moved.shape[-1]
    if squeezed(truth.shape) != squeezed(shape):
        hint = ""
        for other in (1, -1):
            if squeezed(truth.shape) == squeezed(probs.movedim(other, -1).shape[:-1]):
                hint = f" With class_dim={other} they would agree."
        raise BadData(
            f"targets of shape {tuple(truth.shape)} do not go with probabilities of shape {tuple(probs.shape)}, "
            f"whose classes lie along dimension {class_dim}: expected {tuple(shape)}.{hint}"
        )
    flat, truth = moved.reshape(-1, count), truth.reshape(-1)
    ignored = truth == options.ignore_index
    found = elements(shape, options, probs.device, ~ignored, f"ignore_index={options.ignore_index}")
    flat, truth = flat[found.keep], whole(truth[found.keep], count)
    check_rows(flat, "softmax(-1)" if class_dim == -1 else f"softmax({class_dim})")
    return _weighted(Labels(flat.clamp(0, 1), truth, found, False, probs.dtype, shape), options)


def _binary(probs: Tensor, truth: Tensor, options: Options) -> Labels:
    if squeezed(truth.shape) != squeezed(probs.shape):
        raise BadData(
            f"targets of shape {tuple(truth.shape)} do not go with binary probabilities of shape "
            f"{tuple(probs.shape)}: one target, 0 or 1, for each is expected."
        )
    shape = probs.shape
    flat, truth = probs.reshape(-1), truth.reshape(-1)
    found = elements(
        shape, options, probs.device, truth != options.ignore_index, f"ignore_index={options.ignore_index}"
    )
    if len(shape) == 2 and shape[1] > 1:
        _one_hot(probs, truth.reshape(shape))
    p, truth = flat[found.keep], whole(truth[found.keep], 2)
    check_range(p, ".sigmoid()")
    p = p.double().clamp(0, 1)
    return _weighted(Labels(torch.stack([1 - p, p], 1), truth, found, True, probs.dtype, shape), options)


def _one_hot(probs: Tensor, truth: Tensor) -> None:
    """Say so where binary labels look like one class out of many."""
    if bool(((probs.double().sum(1) - 1).abs() < 1e-3).all()) and bool((truth.sum(1) == 1).all()):
        notice(
            f"probabilities and targets sum to 1 in every row, but are scored as {probs.shape[1]} binary labels; "
            "for one class out of many pass targets.argmax(1)."
        )


def _weighted(found: Labels, options: Options) -> Labels:
    """Multiply the weight of every element by that of its true class."""
    if options.class_weights is None:
        return found
    count = found.probs.shape[1]
    per_class = tensor(options.class_weights, "class_weights").to(found.truth.device, torch.float64)
    if per_class.shape != (count,):
        raise BadOption(f"class_weights has shape {tuple(per_class.shape)}; there are {count} classes: ({count},).")
    check_weights(per_class, "class_weights")
    kept, left = reweighted(found.elements, per_class[found.truth])
    return Labels(found.probs[left], found.truth[left], kept, found.binary, found.dtype, found.shape)


def whole(truth: Tensor, count: int) -> Tensor:
    """Labels as integers in 0..C−1."""
    finite(truth, "targets")
    if truth.is_floating_point() and bool((truth != truth.round()).any()):
        odd = float(truth[truth != truth.round()][0])
        raise BadData(f"targets must be class numbers 0..{count - 1}; found {odd:.6g}.")
    truth = truth.long()
    low, high = int(truth.min()), int(truth.max())
    if low < 0 or high >= count:
        raise BadData(
            f"targets lie in {low}..{high}, but there are {count} classes: 0..{count - 1}. "
            "Leave out others by mask= or ignore_index=."
        )
    return truth


def tolerance(dtype: torch.dtype) -> float:
    """By which rows may miss 1: 1e-3, or twice the precision of half floats."""
    return max(1e-3, 2 * torch.finfo(dtype).eps)


def check_range(probs: Tensor, remedy: str) -> None:
    """Raise unless the probabilities are finite and within 0..1, up to rounding."""
    finite(probs, "probabilities")
    low, high = float(probs.min()), float(probs.max())
    slack = max(1e-6, 2 * torch.finfo(probs.dtype).eps)
    if low >= -slack and high <= 1 + slack:
        return
    if high <= slack and probs.dim() == 2 and bool(((probs.double().exp().sum(1) - 1).abs() < 1e-3).all()):
        raise BadData(f"probabilities lie in {low:.4g}..{high:.4g}: these look like log-probabilities: pass .exp().")
    raise BadData(f"probabilities lie in {low:.4g}..{high:.4g}, not in 0..1: these look like logits: pass {remedy}.")


def check_rows(probs: Tensor, remedy: str) -> None:
    """Raise unless every row is a distribution."""
    check_range(probs, f".{remedy}")
    totals = probs.sum(1, dtype=torch.float64)
    off = (totals - 1).abs()
    if float(off.max()) > tolerance(probs.dtype):
        worst = float(totals[off.argmax()])
        raise BadData(
            f"{int((off > tolerance(probs.dtype)).sum())} of {len(probs)} rows of probabilities do not sum to 1 "
            f"(one sums to {worst:.4g}). Normalise them, or for logits pass .{remedy}."
        )
