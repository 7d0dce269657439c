"""Negative log likelihood of targets under a predictive distribution, on a grid of data scales.

Index legend: S samples, N examples, C outputs, L labels or values of an example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from whence.likelihoods import Gaussian, Likelihood
from whence.linalg.dense import psd_root
from whence.randomness import quasi_normals


def mixture_loss(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor:
    """−log of the mean likelihood over draws of the outputs [S, N, …], summed over labels: [N]."""
    count = len(outputs)
    repeated = targets.unsqueeze(0).expand(count, *targets.shape).flatten(0, 1)
    elements = likelihood.elements(outputs.flatten(0, 1), repeated)
    log_p = -elements.reshape(count, outputs.shape[1], -1)
    return -(log_p.logsumexp(0) - math.log(count)).sum(1)


def gaussian_losses(
    likelihood: Likelihood, mean: Tensor, cov: Tensor, targets: Tensor, scales: Sequence[float], count: int
) -> Tensor:
    """Loss of a Gaussian over outputs [N, C] whose covariance is divided by each scale, [len(scales), N]."""
    if isinstance(likelihood, Gaussian):
        variance = cov.diagonal(dim1=-2, dim2=-1)
        noise = likelihood.variance(mean).reshape(mean.shape)
        off = (targets.reshape(mean.shape) - mean).square()
        totals = [noise + variance / s for s in scales]
        return torch.stack([(0.5 * off / v + 0.5 * torch.log(2 * math.pi * v)).double().sum(1) for v in totals])
    points = quasi_normals(count, mean.shape[-1], mean.device, mean.dtype)
    spread = torch.einsum("ncd,sd->snc", psd_root(cov), points)
    return torch.stack([mixture_loss(likelihood, mean + spread / math.sqrt(s), targets).double() for s in scales])
