"""From a Gaussian over outputs to a prediction: Monte Carlo, probit, Laplace bridge.

Index legend: S samples, N examples, C outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from whence.errors import BadOption, one_of
from whence.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood
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
from whence.randomness import Points

Link = Literal["mc", "probit", "bridge"]
LINKS = ("mc", "probit", "bridge")
SPLIT = (
    "the split into aleatoric and epistemic parts needs draws, and link={link!r} has none; use link='mc', whose "
    "three entropies come from the same draws."
)


def output_draws(mean: Tensor, cov: Tensor, points: Points) -> Tensor:
    """Draws of the outputs, [S, N, C]: a function of mean and covariance."""
    normals = points.normals(mean.shape[-1], mean.device, mean.dtype)
    return mean + torch.einsum("ncd,sd->snc", psd_root(cov), normals)


def predict_gaussian(
    likelihood: Likelihood,
    mean: Tensor,
    cov: Tensor,
    link: Link,
    points: Points,
    covariance: Callable[[], Tensor],
) -> Prediction:
    """The prediction that a Gaussian over the outputs [N, C] gives; probit needs the diagonal of ``cov`` only."""
    one_of(link, LINKS, "link")
    task = likelihood.task
    if task not in ("classification", "binary") and link != "mc":
        raise BadOption(f"link={link!r} is for classification; a Gaussian over regression outputs needs none.")
    if task == "classification":
        return _classification(mean, cov, link, points, covariance)
    if task == "binary":
        return _binary(mean, cov, link, points, covariance)
    variance = cov.diagonal(dim1=-2, dim2=-1)
    lazy = _Lazy(covariance)
    if isinstance(likelihood, Gaussian):
        noise = likelihood.variance(mean).reshape(mean.shape)
        return RegressionPrediction(mean, noise, variance, _lazy=lazy)
    if isinstance(likelihood, HeteroscedasticGaussian):
        return _heteroscedastic(mean, variance, output_draws(mean, cov, points), lazy)
    if task == "count":
        return count_from(mean, variance, output_draws(mean, cov, points))
    return OutputPrediction(mean, variance, _lazy=lazy)


def _classification(
    mean: Tensor, cov: Tensor, link: Link, points: Points, covariance: Callable[[], Tensor]
) -> ClassificationPrediction:
    if link == "mc":
        samples = output_draws(mean, cov, points).softmax(-1)
        lazy = _Lazy(covariance, lambda: output_draws(mean, covariance(), points).softmax(-1))
        return ClassificationPrediction(samples.mean(0), mean, entropy_of(samples).mean(0), lazy)
    lazy = _Lazy(covariance, None, SPLIT.format(link=link))
    probs = probit(mean, cov) if link == "probit" else bridge(mean, cov)
    return ClassificationPrediction(probs, mean, None, lazy)


def _binary(
    mean: Tensor, cov: Tensor, link: Link, points: Points, covariance: Callable[[], Tensor]
) -> BinaryPrediction:
    if link == "bridge":
        raise BadOption("link='bridge' is for several classes; use 'mc' or 'probit' for binary logits.")
    variance = variance_of(cov)
    if link == "probit":
        probs = (mean / (1 + math.pi / 8 * variance).sqrt()).sigmoid()
        return BinaryPrediction(probs, mean, None, _Lazy(covariance, None, SPLIT.format(link=link)))

    def draws(v: Tensor) -> Tensor:
        normals = points.normals(mean.shape[-1], mean.device, mean.dtype)
        return (mean + v.clamp(min=0).sqrt() * normals.unsqueeze(1)).sigmoid()

    samples = draws(variance)
    lazy = _Lazy(covariance, lambda: draws(covariance().diagonal(dim1=-2, dim2=-1)))
    return BinaryPrediction(samples.mean(0), mean, binary_entropy(samples).mean(0), lazy)


def variance_of(cov: Tensor) -> Tensor:
    """The diagonal of [N, C, C], or what is already one, [N, C]."""
    return cov if cov.dim() == 2 else cov.diagonal(dim1=-2, dim2=-1)


def probit(mean: Tensor, cov: Tensor) -> Tensor:
    """softmax(m / √(1 + π/8 v)), v the marginal variances (MacKay 1992; Gibbs 1998)."""
    variance = variance_of(cov)
    return (mean / (1 + math.pi / 8 * variance).sqrt()).softmax(-1)


def bridge(mean: Tensor, cov: Tensor) -> Tensor:
    """Mean of the Dirichlet that the Laplace bridge gives (Hobbhahn et al. 2022, eq. 7).

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


def count_from(mean: Tensor, variance: Tensor, log_rates: Tensor) -> CountPrediction:
    """A log-normal rate: E[λ] = exp(m + v/2), Var[λ] = (e^v − 1) E[λ]²."""
    expected = (mean + variance / 2).exp()
    return CountPrediction(expected, torch.expm1(variance) * expected.square(), log_rates.exp(), mean, variance)


def _heteroscedastic(mean: Tensor, variance: Tensor, draws: Tensor, lazy: _Lazy) -> RegressionPrediction:
    """A log-normal noise variance: E[σ²] = exp(m + v/2); the draws are for quantiles alone."""
    size = mean.shape[-1] // 2
    noise = (mean[..., size:] + variance[..., size:] / 2).exp()
    means, log_vars = draws.chunk(2, dim=-1)
    return RegressionPrediction(mean[..., :size], noise, variance[..., :size], means, log_vars.exp(), lazy)


def heteroscedastic_from(outputs: Tensor) -> RegressionPrediction:
    """Draws of (means, log variances) [S, N, 2K] → law of total variance."""
    means, log_vars = outputs.chunk(2, dim=-1)
    noise = log_vars.exp()
    return RegressionPrediction(means.mean(0), noise.mean(0), means.var(0, correction=0), means, noise)


def predict_draws(likelihood: Likelihood, outputs: Tensor) -> Prediction:
    """The prediction that draws of the raw outputs [S, N, …] give, as an equal mixture."""
    task = likelihood.task
    flat_ok = outputs.dim() == 3
    centre = outputs.mean(0)

    def covariance() -> Tensor:
        off = outputs - centre
        return torch.einsum("snc,snd->ncd", off, off) / len(outputs)

    lazy_cov = covariance if flat_ok else None
    if task == "classification":
        dim = getattr(likelihood, "class_dim", 1)
        dim = dim if dim < 0 else dim + 1
        samples = outputs.softmax(dim)
        inner = dim if dim < 0 else dim - 1
        lazy = _Lazy(lazy_cov, lambda: samples)
        aleatoric = entropy_of(samples, dim).mean(0)
        return ClassificationPrediction(samples.mean(0), centre, aleatoric, lazy, inner)
    if task == "binary":
        probs = outputs.sigmoid()
        lazy = _Lazy(lazy_cov, lambda: probs)
        return BinaryPrediction(probs.mean(0), centre, binary_entropy(probs).mean(0), lazy)
    lazy = _Lazy(lazy_cov)
    if isinstance(likelihood, HeteroscedasticGaussian):
        return heteroscedastic_from(outputs)
    if isinstance(likelihood, Gaussian):
        noise = likelihood.variance(centre).reshape(centre.shape)
        return RegressionPrediction(centre, noise, outputs.var(0, correction=0), outputs, None, lazy)
    if task == "count":
        rates = outputs.exp()
        spread = outputs.var(0, correction=0)
        return CountPrediction(rates.mean(0), rates.var(0, correction=0), rates, centre, spread)
    return OutputPrediction(centre, outputs.var(0, correction=0), outputs, lazy)
