"""Labels, values and counts that are independent given the outputs: Λ is diagonal."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.engine.checks import refuse
from whence.engine.randomness import normal_from_uniform
from whence.errors import BadData, BadOption
from whence.likelihoods.base import Likelihood, Task, match_shape

FEW_VALUES = 8  # of the noise that a repr shows


class Independent(Likelihood):
    """A likelihood whose Λ is diagonal in the outputs."""

    @abstractmethod
    def weight(self, outputs: Tensor) -> Tensor:
        """Diagonal of Λ in the flat layout, [N, M, C]."""

    def root(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.diag_embed(self.weight(outputs).sqrt())

    def hessian_sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.diag(self.weight(outputs).sum((0, 1)))

    def hessian_diagonal(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.weight(outputs)


class Bernoulli(Independent):
    """Independent logits, one for each label (one for binary classification, several for multi-label)."""

    task: Task = "binary"

    def check(self, outputs: Tensor, targets: Tensor, index: int = 0) -> Tensor:
        targets = match_shape(outputs, targets, "Bernoulli", index).to(outputs.dtype)
        refuse(torch.stack(torch.aminmax(targets)), lambda seen: _outside(seen, index))
        return targets

    def quality(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor | float]:
        p, truth = self.flatten(outputs).sigmoid(), self.flatten(targets)
        return {
            "targets": p.numel(),
            "correct": ((p > 0.5) == (truth > 0.5)).sum(dtype=torch.float64),
            "confidence": torch.maximum(p, 1 - p).sum(dtype=torch.float64),
        }

    def looks_like_probabilities(self, outputs: Tensor) -> str:
        if outputs.numel() < 8 or not bool(((outputs >= 0) & (outputs <= 1)).all()):
            return ""
        return (
            "the outputs all lie in [0, 1] and look like probabilities, but logits are meant: remove the sigmoid at "
            "the end of the network, or the uncertainties will be wrong."
        )

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return loss.reshape(len(loss), -1)

    def weight(self, outputs: Tensor) -> Tensor:
        p = self.flatten(outputs).sigmoid()
        return p * (1 - p)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        drawn = uniform.to(outputs.dtype) < self.flatten(outputs).sigmoid()
        return drawn.to(outputs.dtype).reshape(outputs.shape)


class Gaussian(Independent):
    """Normal targets with known standard deviation ``noise``: a number, or one for each output."""

    task: Task = "regression"

    def __init__(self, noise: float | Tensor | list[float] = 1.0) -> None:
        value = torch.as_tensor(noise, dtype=torch.float64).detach().cpu()
        if value.dim() > 1 or not bool(torch.isfinite(value).all()) or bool((value <= 0).any()):
            raise BadOption(f"the noise must be a positive number or a vector of them, not {noise!r}.")
        self.noise = value

    def spec(self) -> dict[str, Any]:
        return {"name": "Gaussian", "noise": self.noise.tolist()}

    def __repr__(self) -> str:
        values = self.noise.tolist() if self.noise.dim() else None
        if values is None or len(values) <= FEW_VALUES:
            return super().__repr__()
        return f"Gaussian(noise=[{values[0]:.3g}, {values[1]:.3g}, … {len(values)} values])"

    def variance(self, outputs: Tensor) -> Tensor:
        """σ² broadcast to the flat layout [N, M, C]."""
        flat = self.flatten(outputs)
        if self.noise.dim() and len(self.noise) != flat.shape[-1]:
            raise BadData(f"{len(self.noise)} noise values for {flat.shape[-1]} outputs.")
        return self.noise.to(flat.device, flat.dtype).square().expand_as(flat)

    def quality(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor | float]:
        return {"targets": outputs.numel(), "squares": (outputs - targets).double().square().sum()}

    @property
    def number(self) -> float | None:
        """The noise of all outputs, if it is one number."""
        return None if self.noise.dim() else float(self.noise)

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        var = self.variance(outputs)
        squares = (self.flatten(outputs) - self.flatten(targets)).square()
        return (0.5 * squares / var + 0.5 * torch.log(2 * math.pi * var)).flatten(1)

    def weight(self, outputs: Tensor) -> Tensor:
        return 1 / self.variance(outputs)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (self.flatten(outputs) - self.flatten(targets)) / self.variance(outputs)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        z = normal_from_uniform(uniform).to(outputs.dtype)
        return (self.flatten(outputs) + self.variance(outputs).sqrt() * z).reshape(outputs.shape)


class HeteroscedasticGaussian(Independent):
    """Outputs (mean₁ … mean_K, log σ₁² … log σ_K²). The NLL is not convex in them, so Λ is the Fisher."""

    task: Task = "regression"

    def halves(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance, [N, K] each."""
        flat = outputs.reshape(len(outputs), -1)
        if flat.shape[1] % 2:
            raise BadData(
                f"a heteroscedastic Gaussian needs an even number of outputs (means, then log variances); "
                f"the network has {flat.shape[1]}."
            )
        mean, log_var = flat.chunk(2, dim=1)
        return mean, log_var

    def check(self, outputs: Tensor, targets: Tensor, index: int = 0) -> Tensor:
        return match_shape(self.halves(outputs)[0], targets.reshape(len(targets), -1), type(self).__name__, index)

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        mean, log_var = self.halves(outputs)
        return 0.5 * (math.log(2 * math.pi) + log_var + (targets - mean).square() * (-log_var).exp())

    def weight(self, outputs: Tensor) -> Tensor:
        _, log_var = self.halves(outputs)
        return torch.cat([(-log_var).exp(), torch.full_like(log_var, 0.5)], dim=1).unsqueeze(1)

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        mean, log_var = self.halves(outputs)
        z = normal_from_uniform(uniform.reshape(len(outputs), -1)[:, : mean.shape[1]]).to(outputs.dtype)
        return mean + (0.5 * log_var).exp() * z


class Poisson(Independent):
    """Counts; the outputs are log rates."""

    task: Task = "count"

    def check(self, outputs: Tensor, targets: Tensor, index: int = 0) -> Tensor:
        targets = match_shape(outputs, targets, "Poisson", index).to(outputs.dtype)
        wrong = (targets < 0) | (targets != targets.round())
        extremes = torch.stack(torch.aminmax(torch.where(wrong, targets, 0)))
        refuse(extremes, lambda seen: _no_count(seen, index))
        return targets

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = outputs.exp() - targets * outputs + torch.lgamma(targets + 1)
        return loss.reshape(len(loss), -1)

    def weight(self, outputs: Tensor) -> Tensor:
        return self.flatten(outputs).exp()

    def sample(self, outputs: Tensor, uniform: Tensor) -> Tensor:
        """Inverse distribution function by bisection on P(Y ≤ k) = Q(k + 1, rate)."""
        rate = self.flatten(outputs).exp().double()
        return poisson_quantile(rate, uniform.double()).to(outputs.dtype).reshape(outputs.shape)


def poisson_quantile(rate: Tensor, level: Tensor) -> Tensor:
    """Smallest k with P(Y ≤ k) > level, element by element, in float64."""
    low = torch.full_like(rate, -1.0)
    high = (rate + 12 * rate.sqrt() + 40).floor()
    while bool((high - low > 1).any()):
        mid = ((low + high) / 2).floor()
        above = torch.special.gammaincc(mid + 1, rate) > level
        high, low = torch.where(above, mid, high), torch.where(above, low, mid)
    return high


def _outside(extremes: list[float], index: int) -> str | None:
    bad = next((value for value in extremes if not 0 <= value <= 1), None)
    return None if bad is None else f"batch {index}: binary targets lie between 0 and 1, but {bad:g} was met."


def _no_count(extremes: list[float], index: int) -> str | None:
    bad = next((value for value in extremes if value), None)
    return None if bad is None else f"batch {index}: Poisson targets are counts (0, 1, 2, …), but {bad:g} was met."
