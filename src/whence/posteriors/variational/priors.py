"""Priors over weights: a Gaussian with a diagonal precision, or Blundell's mixture of two scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import BadOption
from whence.priors import PriorPrecision, resolve_prior
from whence.recording.blocks import Block

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class ScaleMixture:
    """π N(0, σ₁²) + (1 − π) N(0, σ₂²) for every weight: Blundell et al. (2015), eq. 7."""

    pi: float = 0.5
    sigma1: float = 1.0
    sigma2: float = math.exp(-6)

    def __post_init__(self) -> None:
        if not isinstance(self.pi, (int, float)) or not 0 < self.pi < 1:
            raise BadOption(f"pi={self.pi!r} of the scale mixture is not between 0 and 1.")
        for name in ("sigma1", "sigma2"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise BadOption(f"{name}={value!r} of the scale mixture must be positive and finite.")

    def log_prob(self, values: Tensor) -> Tensor:
        """Log density of each value."""
        wide = math.log(self.pi) - math.log(self.sigma1) - 0.5 * (values / self.sigma1).square()
        narrow = math.log(1 - self.pi) - math.log(self.sigma2) - 0.5 * (values / self.sigma2).square()
        return torch.logaddexp(wide, narrow) - HALF_LOG_2PI

    @property
    def variance(self) -> float:
        """π σ₁² + (1 − π) σ₂²."""
        return self.pi * self.sigma1**2 + (1 - self.pi) * self.sigma2**2

    def describe(self) -> str:
        return f"scale mixture {self.pi:.3g} · {self.sigma1:.3g} + {1 - self.pi:.3g} · {self.sigma2:.3g}"


WeightPrior = PriorPrecision | ScaleMixture


def make_prior(given: Any, layers: Sequence[Block]) -> WeightPrior:
    """The prior for the option ``prior_precision``."""
    return given if isinstance(given, ScaleMixture) else resolve_prior(given, layers)


def precision_of(prior: PriorPrecision, name: str, like: Tensor) -> float | Tensor:
    """The precision of one parameter, on the device of ``like``."""
    value = prior.values[name]
    return value.to(like.device, like.dtype) if isinstance(value, Tensor) else value
