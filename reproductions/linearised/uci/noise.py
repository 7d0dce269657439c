"""The noise of a Gaussian likelihood, chosen on validation data.

Index legend: S draws, n inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
FEWEST = 1e-4  # the smallest noise, in standardised units
GOLDEN = (math.sqrt(5) - 1) / 2


def mixture_nll(outputs: Tensor, y: Tensor, noise: float) -> float:
    """−log of the mean density of draws [S, n, 1], mean over inputs."""
    away = (outputs - y).double().square() / (2 * noise**2)
    density = torch.logsumexp(-away, 0) - math.log(len(outputs))
    return float(-density.mean()) + math.log(noise) + HALF_LOG_2PI


def best_noise(outputs: Tensor, y: Tensor) -> tuple[float, float]:
    """The noise with the lowest NLL of the mixture over draws, and that NLL."""
    return lowest(lambda noise: mixture_nll(outputs, y, noise), float((outputs.mean(0) - y).square().mean().sqrt()))


def lowest(nll: Callable[[float], float], about: float) -> tuple[float, float]:
    """The best noise from a tenth of ``about`` to three times it: a grid, then a golden section."""
    about = max(about, FEWEST)
    grid = [math.log(about) + math.log(0.1) + i * math.log(30) / 16 for i in range(17)]
    scores = [nll(math.exp(at)) for at in grid]
    middle = min(range(17), key=scores.__getitem__)
    low, high = grid[max(middle - 1, 0)], grid[min(middle + 1, 16)]
    for _ in range(20):
        one, two = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, two) if nll(math.exp(one)) < nll(math.exp(two)) else (one, high)
    noise = max(math.exp((low + high) / 2), FEWEST)
    return noise, nll(noise)


def scaled_nll(errors: Tensor, variance: Tensor) -> tuple[float, float]:
    """The σ with the lowest NLL of y ~ N(f, σ² (1 + v)), in closed form, and that NLL."""
    relative = 1 + variance.double()
    noise = max(math.sqrt(float((errors.double().square() / relative).mean())), FEWEST)
    fit = 0.5 * float((errors.double().square() / relative).mean()) / noise**2
    return noise, fit + 0.5 * float(relative.log().mean()) + math.log(noise) + HALF_LOG_2PI
