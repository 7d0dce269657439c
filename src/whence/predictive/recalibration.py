"""The plain network with what validation data give it cheaply: a temperature, or the noise of its residuals.

The baseline that a posterior has to beat. Temperature scaling (Guo et al. 2017) divides all logits by one number, those
of independent labels each by its own; the noise of a regression becomes the root mean square of the validation
residuals.

Index legend: N examples, M positions, C classes, K outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from whence.errors import NotDefined
from whence.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from whence.predictive.links import predict_draws
from whence.predictive.predictions import Prediction

RANGE = math.log(1e3)  # largest change of a logarithm of the temperature
STEPS = 60  # of a bisection


@dataclass(frozen=True)
class Recalibrated:
    """A likelihood and a change of the outputs, fitted to validation data."""

    likelihood: Likelihood
    label: str  # of the method
    words: str  # with its numbers
    factor: Tensor | None = None  # of the outputs, by output
    shift: Tensor | None = None

    def outputs(self, outputs: Tensor) -> Tensor:
        """The outputs [N, …] of the plain network, changed."""
        flat = self.likelihood.flatten(outputs.double())
        flat = flat if self.factor is None else flat * self.factor
        flat = flat if self.shift is None else flat + self.shift
        return self.likelihood.unflatten(flat, outputs).to(outputs.dtype)

    def predict(self, outputs: Tensor) -> Prediction:
        return predict_draws(self.likelihood, self.outputs(outputs)[None])


@singledispatch
def recalibrated(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Recalibrated:
    """Fit the outputs [N, …] of the plain network to validation targets."""
    raise NotDefined(f"there is no cheap recalibration for {type(likelihood).__name__}.")


@recalibrated.register
def _(likelihood: Categorical, outputs: Tensor, targets: Tensor) -> Recalibrated:
    labels = likelihood.check(outputs, targets)  # [N, M]
    flat, counted = likelihood.flatten(outputs.double()), likelihood.mask(labels)
    rows = flat if counted is None else flat[counted]
    chosen = labels if counted is None else labels[counted]
    rows, chosen = rows.reshape(-1, flat.shape[-1]), chosen.reshape(-1, 1)
    own = rows.gather(1, chosen).squeeze(1)

    def slope(beta: Tensor) -> Tensor:  # of the log loss, which is convex in the inverse temperature
        return ((torch.softmax(beta * rows, 1) * rows).sum(1) - own).mean()

    beta = _bisect(slope, torch.zeros((), dtype=torch.float64))
    return Recalibrated(likelihood, "temperature scaling", f"temperature {1 / float(beta):.3g}", beta)


@recalibrated.register
def _(likelihood: Bernoulli, outputs: Tensor, targets: Tensor) -> Recalibrated:
    flat = likelihood.flatten(outputs.double())  # [N, 1, K]
    truth = likelihood.check(outputs, targets).double().reshape(flat.shape)

    def slope(beta: Tensor) -> Tensor:
        return (flat * (torch.sigmoid(beta * flat) - truth)).mean(0)

    beta = _bisect(slope, torch.zeros(flat.shape[1:], dtype=torch.float64))
    found = (1 / beta).flatten().tolist()
    words = f"temperature {found[0]:.3g}" if len(found) == 1 else f"temperatures {min(found):.3g} to {max(found):.3g}"
    return Recalibrated(likelihood, "temperature scaling", words, beta)


@recalibrated.register
def _(likelihood: Gaussian, outputs: Tensor, targets: Tensor) -> Recalibrated:
    off = likelihood.flatten(outputs.double()) - likelihood.flatten(targets.double().reshape(outputs.shape))
    noise = off.square().mean((0, 1)).sqrt().clamp(min=torch.finfo(torch.float32).tiny)  # [K]
    least, most = float(noise.min()), float(noise.max())
    words = f"noise {most:.3g}" if len(noise) == 1 else f"noise {least:.3g} to {most:.3g}"
    own = Gaussian(float(noise[0]) if len(noise) == 1 else noise)
    return Recalibrated(own, "re-estimating its noise", words)


@recalibrated.register
def _(likelihood: HeteroscedasticGaussian, outputs: Tensor, targets: Tensor) -> Recalibrated:
    mean, log_variance = likelihood.halves(outputs.double())  # [N, K] each
    off = targets.double().reshape(mean.shape) - mean
    ratio = (off.square() / log_variance.exp()).mean(0).clamp(min=torch.finfo(torch.float32).tiny)
    shift = torch.cat([torch.zeros_like(ratio), ratio.log()])
    least, most = (float(v) for v in (ratio.min().sqrt(), ratio.max().sqrt()))
    words = f"noise times {most:.3g}" if len(ratio) == 1 else f"noise times {least:.3g} to {most:.3g}"
    return Recalibrated(likelihood, "re-estimating its noise", words, shift=shift)


def _bisect(slope: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """Where an increasing function of e^t is 0, for each element; at an end of the range if it nowhere is."""
    low, high = torch.full_like(like, -RANGE), torch.full_like(like, RANGE)
    for _ in range(STEPS):
        middle = (low + high) / 2
        above = slope(middle.exp()) > 0
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return ((low + high) / 2).exp()
