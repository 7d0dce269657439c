"""Losses along directions of the linearised network, written plainly."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.engine.randomness import quasi_normals
from whence.likelihoods import Gaussian, Likelihood


def losses_of_directions(
    likelihood: Likelihood, mean: Tensor, moved: Tensor, targets: Tensor, count: int, scale: float = 1.0
) -> Tensor:
    """−log ∫ p(y | f) N(f; mean, Σ_s m_s m_sᵀ / (S · scale)) df of each example, one after another: [N].

    The integral is exact for a Gaussian likelihood (with independent outputs), otherwise the mean over ``count``
    fixed points f = mean + Σ_s ε_s m_s / √(S · scale).
    """
    size, found = len(moved), []
    for n in range(len(mean)):
        if isinstance(likelihood, Gaussian):
            total = (moved[:, n] ** 2).sum(0) / (size * scale) + likelihood.noise**2
            off = targets[n].reshape(mean[n].shape) - mean[n]
            found.append((0.5 * off**2 / total + 0.5 * torch.log(2 * math.pi * total)).sum())
            continue
        logs = []
        for point in quasi_normals(count, size, mean.device, mean.dtype):
            output = mean[n].clone()
            for s in range(size):
                output += point[s] * moved[s, n] / math.sqrt(size * scale)
            logs.append(-likelihood.elements(output.unsqueeze(0), targets[n : n + 1]).flatten())
        found.append(-(torch.stack(logs).logsumexp(0) - math.log(count)).sum())
    return torch.stack(found)
