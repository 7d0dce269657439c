"""Negative log likelihood of targets under a predictive distribution, on a grid of data scales.

Index legend: S samples, N examples, C outputs, L labels or values of an example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from whence.engine.memory import chunks
from whence.engine.randomness import quasi_normals
from whence.likelihoods import Gaussian, Likelihood
from whence.linalg.dense import psd_root


def mixture_loss(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor:
    """−log of the mean likelihood over draws of the outputs [S, N, …], summed over labels: [N]."""
    count = len(outputs)
    repeated = targets.unsqueeze(0).expand(count, *targets.shape).flatten(0, 1)
    elements = likelihood.elements(outputs.flatten(0, 1), repeated)
    log_p = -elements.reshape(count, outputs.shape[1], -1)
    return -(log_p.logsumexp(0) - math.log(count)).sum(1)


def gaussian_losses(
    likelihood: Likelihood, mean: Tensor, covs: Tensor, targets: Tensor, scales: Sequence[float], count: int
) -> Tensor:
    """Loss of Gaussians over outputs [N, C] with covariances [R, N, C, C], divided by each scale: [R, scales, N]."""
    divisors = mean.new_tensor(scales)
    if isinstance(likelihood, Gaussian):
        variance = covs.diagonal(dim1=-2, dim2=-1).unsqueeze(1) / divisors[:, None, None]  # [R, scales, N, C]
        total = likelihood.variance(mean).reshape(mean.shape) + variance
        off = (targets.reshape(mean.shape) - mean).square()
        return (0.5 * off / total + 0.5 * torch.log(2 * math.pi * total)).double().sum(-1)
    points = quasi_normals(count, mean.shape[-1], mean.device, mean.dtype)
    spread = torch.einsum("rncd,sd->srnc", psd_root(covs), points)
    if mean.device.type == "cpu":  # one scale at a time fits the cache
        losses = [_spread_loss(likelihood, mean, spread / math.sqrt(s), targets) for s in scales]
        return torch.stack(losses, dim=1)
    return _spread_loss(likelihood, mean, spread.unsqueeze(2) / divisors.sqrt()[:, None, None], targets)


def direction_losses(
    likelihood: Likelihood, mean: Tensor, moved: Tensor, targets: Tensor, scales: Sequence[float], count: int
) -> Tensor:
    """Loss of Gaussians over outputs [N, …] with covariance Σ_s m_s m_sᵀ / S of derivatives m [S, N, …]: [scales, N].

    ``count`` points of the Gaussian are mixtures of the S derivatives, so that they cost no further pass.
    """
    if isinstance(likelihood, Gaussian):
        off = (targets.reshape(mean.shape) - mean).square()
        noise, variance = likelihood.variance(mean).reshape(mean.shape), moved.square().mean(0)
        totals = [noise + variance / scale for scale in scales]
        losses = [0.5 * off / total + 0.5 * torch.log(2 * math.pi * total) for total in totals]
        return torch.stack([loss.double().flatten(1).sum(1) for loss in losses])
    points = quasi_normals(count, len(moved), mean.device, mean.dtype) / math.sqrt(len(moved))
    found = []
    for some in chunks(len(mean), 4 * count * mean[0].numel() * mean.element_size(), mean.device):
        spread = torch.tensordot(points, moved[:, some], 1)  # [count, N, …]
        draws = (mean[some] + spread / math.sqrt(scale) for scale in scales)
        found.append(torch.stack([mixture_loss(likelihood, outputs, targets[some]).double() for outputs in draws]))
    return torch.cat(found, 1)


def _spread_loss(likelihood: Likelihood, mean: Tensor, spread: Tensor, targets: Tensor) -> Tensor:
    """Loss of draws mean + spread, [S, …, N, C] → [..., N]."""
    outputs = (mean + spread).flatten(1, -3) if spread.dim() > 3 else (mean + spread).unsqueeze(1)
    several = outputs.shape[1]
    repeated = targets.unsqueeze(0).expand(several, *targets.shape).flatten(0, 1)
    losses = mixture_loss(likelihood, outputs.flatten(1, 2), repeated).double()
    return losses.reshape(*spread.shape[1:-1])
