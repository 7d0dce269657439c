"""Negative log likelihood of targets under a prediction."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.errors import NotDefined
from whence.likelihoods import Categorical, Likelihood
from whence.predictive.predictions import (
    BinaryPrediction,
    ClassificationPrediction,
    CountPrediction,
    Prediction,
    RegressionPrediction,
)


def negative_log_likelihood(likelihood: Likelihood, prediction: Prediction, targets: Tensor) -> Tensor:
    """−log p(y) of each example, [N]; ``targets`` as :meth:`Likelihood.check` returns them."""
    if isinstance(prediction, ClassificationPrediction):
        assert isinstance(likelihood, Categorical)
        probs = likelihood.flatten(prediction.probs).clamp(min=torch.finfo(prediction.probs.dtype).tiny)
        keep = targets != likelihood.ignore_index
        chosen = probs.gather(-1, (targets * keep).clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return -(chosen.log() * keep).sum(1)
    if isinstance(prediction, BinaryPrediction):
        tiny = torch.finfo(prediction.probs.dtype).tiny
        p = prediction.probs.clamp(min=tiny)
        q = (1 - prediction.probs).clamp(min=tiny)
        return -(targets * p.log() + (1 - targets) * q.log()).flatten(1).sum(1)
    if isinstance(prediction, RegressionPrediction):
        return _regression(prediction, targets)
    if isinstance(prediction, CountPrediction):
        rates = prediction.samples
        log_p = targets * rates.log() - rates - torch.lgamma(targets + 1)
        return -(log_p.logsumexp(0) - math.log(len(rates))).flatten(1).sum(1)
    raise NotDefined(
        "the predictive likelihood of your own Likelihood is not known to whence, so it cannot be tuned on validation "
        "data; tune() without data uses the evidence."
    )


def _regression(prediction: RegressionPrediction, targets: Tensor) -> Tensor:
    targets = targets.reshape(prediction.mean.shape)
    if prediction.samples is None:
        variance = prediction.variance
        off = (targets - prediction.mean).square()
        return (0.5 * off / variance + 0.5 * torch.log(2 * math.pi * variance)).flatten(1).sum(1)
    noise = prediction.aleatoric if prediction.noise_samples is None else prediction.noise_samples
    log_p = -0.5 * (targets - prediction.samples).square() / noise - 0.5 * torch.log(2 * math.pi * noise)
    return -(log_p.logsumexp(0) - math.log(len(log_p))).flatten(1).sum(1)
