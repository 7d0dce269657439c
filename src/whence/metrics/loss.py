"""The log loss of any prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.distributions import Distribution

from whence.errors import BadData, BadOption
from whence.metrics.bootstrap import mean
from whence.metrics.classification import log_losses
from whence.metrics.elements import ArrayLike, ForLabels, Options, read, squeezed, tensor
from whence.metrics.estimate import Estimate
from whence.metrics.labels import is_binary, labels
from whence.metrics.regression import numbers
from whence.predictive.predictions import BinaryPrediction, ClassificationPrediction


def nll(prediction: Any, targets: ArrayLike, **common: Unpack[ForLabels]) -> Estimate:
    """Mean negative log likelihood of the targets, in nats.

    Of probabilities −log p; of a regression its normal density, or the mixture over its draws; of a count
    prediction the mixture of Poissons; of a distribution −log_prob.
    """
    options = read("nll", common, labels=True)
    if predicts_labels(prediction, targets, options):
        found = labels(prediction, targets, options)
        return mean("nll", log_losses(found), found.elements, options, (0.0, float("inf")))
    refuse_class_keywords(common)
    forecast, y, members = numbers(prediction, targets, options)
    losses = forecast.log_losses(y)
    if not bool(torch.isfinite(losses).all()):
        raise BadData(f"{int((~torch.isfinite(losses)).sum())} of {len(y)} targets have density 0: nll is infinite.")
    return mean("nll", losses, members, options)


def refuse_class_keywords(common: Mapping[str, Any]) -> None:
    """Predicted numbers have no classes."""
    for key, remedy in (("class_weights", "weights="), ("ignore_index", "mask=")):
        if common.get(key) is not None:
            raise BadOption(f"{key} goes with classes; for predicted numbers pass {remedy}.")


def predicts_labels(prediction: Any, targets: ArrayLike, options: Options) -> bool:
    """Whether a prediction is one of labels: by its type; a tensor, by its shape."""
    if isinstance(prediction, (ClassificationPrediction, BinaryPrediction)):
        return True
    if isinstance(prediction, Distribution) or hasattr(prediction, "epistemic"):
        return False
    given, truth = tensor(prediction, "predictions"), tensor(targets, "targets")
    if given.dim() == 0 or is_binary(given, truth):
        return True
    return _per_class(given, truth, options) or squeezed(given.shape[1:]) != squeezed(truth.shape)


def _per_class(given: Tensor, truth: Tensor, options: Options) -> bool:
    """Whether the shape is that of the targets and a class dimension."""
    dim = options.class_dim
    if not -given.dim() <= dim < given.dim():
        return False
    return squeezed(given.movedim(dim, -1).shape[:-1]) == squeezed(truth.shape)
