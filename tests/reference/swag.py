"""SWAG the slow, obvious way: all weights kept, moments by their definitions."""

from __future__ import annotations

import torch
from torch import Tensor


def swag_moments(thetas: list[Tensor], rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """θ̄, θ²̄ − θ̄² and D [K, P] of collected weight vectors; Maddox et al. 2019, section 3.2 and algorithm 1."""
    stacked = torch.stack(thetas)
    mean = stacked.mean(0)
    diagonal = stacked.square().mean(0) - mean.square()
    columns = [stacked[i] - stacked[: i + 1].mean(0) for i in range(len(thetas))]
    return mean, diagonal, torch.stack(columns[-rank:]) if rank else stacked.new_zeros(0, len(mean))


def swag_covariance(diagonal: Tensor, columns: Tensor, scale: float = 1.0) -> Tensor:
    """½ (diag + D Dᵀ / (K − 1)); without columns the diagonal."""
    if len(columns) == 0:
        return scale * torch.diag(diagonal)
    return scale * 0.5 * (torch.diag(diagonal) + columns.T @ columns / (len(columns) - 1))
