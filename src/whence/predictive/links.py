"""Predictions from a Gaussian over the outputs or from draws of them, for each likelihood.

A Gaussian over logits becomes probabilities by one of three links: Monte Carlo, probit, Laplace bridge.

Index legend: S samples, N examples, C outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Literal, TypedDict

import torch
from torch import Tensor

from whence.engine.options import Option
from whence.engine.randomness import Points
from whence.errors import BadOption
from whence.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, Likelihood, Poisson, standard
from whence.linalg.dense import psd_root
from whence.predictive.predictions import (
    BinaryPrediction,
    ClassificationPrediction,
    CountPrediction,
    OutputPrediction,
    Prediction,
    RegressionPrediction,
    _Lazy,
    binary_entropy,
    entropy_of,
)

LinkName = Literal["mc", "probit", "bridge"]


class PredictOptions(TypedDict, total=False):
    """Keywords of ``predict``."""

    method: Literal["linearised", "sampled"] | None
    link: LinkName
    num_samples: int | None
    generator: torch.Generator | None
    probes: Literal["auto", "exact"] | int


LINK_POINTS = 256  # of the Monte Carlo link, unless asked for another number


class Link(Option):
    """How a Gaussian over logits becomes probabilities."""

    MC = "mc"
    PROBIT = "probit"
    BRIDGE = "bridge"

    @property
    def no_split(self) -> str:
        """Why there is no split into aleatoric and epistemic parts."""
        return (
            f"the split into aleatoric and epistemic parts needs draws, but link={self!r} has none; use link='mc', "
            "which has them."
        )


@dataclass(frozen=True)
class OutputGaussian:
    """The Gaussian N(mean, cov) over the outputs, with the link and points of a prediction."""

    mean: Tensor  # [N, C]
    cov: Tensor  # [N, C, C]; the probit link needs only the diagonal [N, C]
    points: Points
    link: Link = Link.MC
    whole: Callable[[], Tensor] | None = None  # the covariance of all inputs, if this is one piece

    def covariance(self) -> Tensor:
        """The covariance [N, C, C]."""
        return self.cov if self.whole is None else self.whole()

    def draws(self, cov: Tensor | None = None) -> Tensor:
        """Draws of the outputs, [S, N, C]."""
        return output_draws(self.mean, self.cov if cov is None else cov, self.points)

    @property
    def variance(self) -> Tensor:
        """[N, C]."""
        return variance_of(self.cov)

    def without_link(self) -> OutputGaussian:
        """The same Gaussian; an error if a link other than the default was requested."""
        if self.link is not Link.MC:
            raise BadOption(f"link={self.link!r} applies only to classification; regression outputs need no link.")
        return self


def output_draws(mean: Tensor, cov: Tensor, points: Points) -> Tensor:
    """Draws of the outputs, [S, N, C]: a function of mean and covariance."""
    normals = points.normals(mean.shape[-1], mean.device, mean.dtype)
    return mean + torch.einsum("ncd,sd->snc", psd_root(cov), normals)


# From a Gaussian


@singledispatch
def predict_gaussian(likelihood: Likelihood, outputs: OutputGaussian) -> Prediction:
    """The prediction from a Gaussian over the outputs; for a custom likelihood by its ``task``."""
    known = standard(likelihood)
    if known is not None:
        return predict_gaussian(known, outputs)
    return OutputPrediction(outputs.without_link().mean, outputs.variance, _lazy=_Lazy(outputs.covariance))


@predict_gaussian.register
def _(likelihood: Categorical, outputs: OutputGaussian) -> ClassificationPrediction:
    mean, cov, covariance = outputs.mean, outputs.cov, outputs.covariance
    if outputs.link is Link.MC:
        samples = outputs.draws().softmax(-1)
        lazy = _Lazy(covariance, lambda: outputs.draws(covariance()).softmax(-1))
        return ClassificationPrediction(samples.mean(0), mean, entropy_of(samples).mean(0), lazy)
    probs = probit(mean, cov) if outputs.link is Link.PROBIT else bridge(mean, cov)
    return ClassificationPrediction(probs, mean, None, _Lazy(covariance, None, outputs.link.no_split))


@predict_gaussian.register
def _(likelihood: Bernoulli, outputs: OutputGaussian) -> BinaryPrediction:
    mean, covariance = outputs.mean, outputs.covariance
    if outputs.link is Link.BRIDGE:
        raise BadOption("link='bridge' applies only to several classes; use 'mc' or 'probit' for binary logits.")
    if outputs.link is Link.PROBIT:
        probs = (mean / (1 + math.pi / 8 * outputs.variance).sqrt()).sigmoid()
        return BinaryPrediction(probs, mean, None, _Lazy(covariance, None, outputs.link.no_split))

    def draws(variance: Tensor) -> Tensor:  # labels are independent given the weights
        normals = outputs.points.normals(mean.shape[-1], mean.device, mean.dtype)
        return (mean + variance.clamp(min=0).sqrt() * normals.unsqueeze(1)).sigmoid()

    samples = draws(outputs.variance)
    lazy = _Lazy(covariance, lambda: draws(variance_of(covariance())))
    return BinaryPrediction(samples.mean(0), mean, binary_entropy(samples).mean(0), lazy)


@predict_gaussian.register
def _(likelihood: Gaussian, outputs: OutputGaussian) -> RegressionPrediction:
    mean = outputs.without_link().mean
    noise = likelihood.variance(mean).reshape(mean.shape)
    return RegressionPrediction(mean, noise, outputs.variance, _lazy=_Lazy(outputs.covariance))


@predict_gaussian.register
def _(likelihood: HeteroscedasticGaussian, outputs: OutputGaussian) -> RegressionPrediction:
    """A log-normal noise variance: E[σ²] = exp(m + v/2); the draws are used only for quantiles."""
    mean, variance = outputs.without_link().mean, outputs.variance
    size = mean.shape[-1] // 2
    noise = (mean[..., size:] + variance[..., size:] / 2).exp()
    means, log_vars = outputs.draws().chunk(2, dim=-1)
    lazy = _Lazy(outputs.covariance)
    return RegressionPrediction(mean[..., :size], noise, variance[..., :size], means, log_vars.exp(), lazy)


@predict_gaussian.register
def _(likelihood: Poisson, outputs: OutputGaussian) -> CountPrediction:
    """A log-normal rate: E[λ] = exp(m + v/2), Var[λ] = (e^v − 1) E[λ]²."""
    mean, variance = outputs.without_link().mean, outputs.variance
    expected = (mean + variance / 2).exp()
    spread = torch.expm1(variance) * expected.square()
    return CountPrediction(expected, spread, outputs.draws().exp(), mean, variance)


# From draws


@singledispatch
def predict_draws(likelihood: Likelihood, outputs: Tensor) -> Prediction:
    """The prediction from draws of the raw outputs [S, N, …], as an equally weighted mixture."""
    known = standard(likelihood)
    if known is not None:
        return predict_draws(known, outputs)
    return OutputPrediction(outputs.mean(0), outputs.var(0, correction=0), outputs, _Lazy(_covariance(outputs)))


@predict_draws.register
def _(likelihood: Categorical, outputs: Tensor) -> ClassificationPrediction:
    inner = likelihood.class_dim
    dim = inner if inner < 0 else inner + 1
    samples = outputs.softmax(dim)
    lazy = _Lazy(_covariance(outputs), lambda: samples)
    return ClassificationPrediction(samples.mean(0), outputs.mean(0), entropy_of(samples, dim).mean(0), lazy, inner)


@predict_draws.register
def _(likelihood: Bernoulli, outputs: Tensor) -> BinaryPrediction:
    probs = outputs.sigmoid()
    lazy = _Lazy(_covariance(outputs), lambda: probs)
    return BinaryPrediction(probs.mean(0), outputs.mean(0), binary_entropy(probs).mean(0), lazy)


@predict_draws.register
def _(likelihood: Gaussian, outputs: Tensor) -> RegressionPrediction:
    centre = outputs.mean(0)
    noise, lazy = likelihood.variance(centre).reshape(centre.shape), _Lazy(_covariance(outputs))
    return RegressionPrediction(centre, noise, outputs.var(0, correction=0), outputs, None, lazy)


@predict_draws.register
def _(likelihood: HeteroscedasticGaussian, outputs: Tensor) -> RegressionPrediction:
    """Draws of (means, log variances) [S, N, 2K]: the law of total variance."""
    means, log_vars = outputs.chunk(2, dim=-1)
    noise = log_vars.exp()
    return RegressionPrediction(means.mean(0), noise.mean(0), means.var(0, correction=0), means, noise)


@predict_draws.register
def _(likelihood: Poisson, outputs: Tensor) -> CountPrediction:
    rates = outputs.exp()
    spread = outputs.var(0, correction=0)
    return CountPrediction(rates.mean(0), rates.var(0, correction=0), rates, outputs.mean(0), spread)


def _covariance(outputs: Tensor) -> Callable[[], Tensor] | None:
    """The covariance of draws [S, N, C] over S; None for dense outputs."""
    if outputs.dim() != 3:
        return None

    def compute() -> Tensor:
        off = outputs - outputs.mean(0)
        return torch.einsum("snc,snd->ncd", off, off) / len(outputs)

    return compute


# Links


def variance_of(cov: Tensor) -> Tensor:
    """The diagonal [N, C] of a covariance [N, C, C] or of a diagonal [N, C]."""
    return cov if cov.dim() == 2 else cov.diagonal(dim1=-2, dim2=-1)


def probit(mean: Tensor, cov: Tensor) -> Tensor:
    """softmax(m / √(1 + π/8 v)), v the marginal variances (MacKay 1992; Gibbs 1998)."""
    variance = variance_of(cov)
    return (mean / (1 + math.pi / 8 * variance).sqrt()).softmax(-1)


def bridge(mean: Tensor, cov: Tensor) -> Tensor:
    """Mean of the Dirichlet distribution of the Laplace bridge (Hobbhahn et al. 2022, eq. 7).

    The Gaussian is first conditioned on Σ_c f_c = 0, the subspace that the bridge is defined on.
    """
    classes = mean.shape[-1]
    row = cov.sum(-1)  # Σ 1
    total = row.sum(-1, keepdim=True)  # 1ᵀ Σ 1
    safe = torch.where(total > 1e-12, total, torch.ones_like(total))
    shift = torch.where(total > 1e-12, row / safe, torch.full_like(row, 1 / classes))
    centred = mean - shift * mean.sum(-1, keepdim=True)
    variance = cov.diagonal(dim1=-2, dim2=-1) - row.square() / safe * (total > 1e-12)
    variance = variance.clamp(min=torch.finfo(mean.dtype).tiny ** 0.5)
    log_sum = (-centred).logsumexp(-1, keepdim=True)
    offset = torch.tensor(1 - 2 / classes, dtype=mean.dtype, device=mean.device).log()  # −∞ for two classes
    log_alpha = torch.logaddexp(offset, centred + log_sum - 2 * math.log(classes)) - variance.log()
    return log_alpha.softmax(-1)
