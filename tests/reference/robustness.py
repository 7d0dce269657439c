"""Slow, obvious twins of the attacks: averages by loops over draws, gradients by finite differences, in float64.

Index legend: S draws, N inputs, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LogProbs = Callable[[Tensor], Tensor]  # one input → log p̄ of every class, [C]


def averaged(functions: Sequence[Callable[[Tensor], Tensor]], weights: Sequence[float] | None = None) -> LogProbs:
    """log Σ_s w_s softmax f_s(x), one input and one draw at a time."""

    def log_probs(x: Tensor) -> Tensor:
        total = 0.0
        for s, function in enumerate(functions):
            logits = function(x.unsqueeze(0))[0].detach()
            odds = [math.exp(float(v - logits.max())) for v in logits]
            weight = 1 / len(functions) if weights is None else weights[s]
            total = total + weight * torch.tensor([o / sum(odds) for o in odds], dtype=torch.float64)
        return total.log()

    return log_probs


def gradient(log_probs: LogProbs, x: Tensor, y: int, h: float = 1e-5) -> Tensor:
    """∇ₓ log p̄(y|x) of one input by central differences."""
    found = torch.zeros(x.numel(), dtype=torch.float64)
    for i in range(x.numel()):
        ends = []
        for sign in (1, -1):
            moved = x.clone().flatten()
            moved[i] += sign * h
            ends.append(float(log_probs(moved.reshape(x.shape))[y]))
        found[i] = (ends[0] - ends[1]) / (2 * h)
    return found.reshape(x.shape)


def fgsm(
    log_probs: LogProbs, x: Tensor, step: float, away: Sequence[int] | None = None, target: int | None = None, scale=1.0
) -> Tensor:
    """x ∓ η · scale · sgn ∇, input by input."""
    found = []
    for n, one in enumerate(x):
        y = int(log_probs(one).argmax()) if away is None else away[n]
        slope = gradient(log_probs, one, y if target is None else target)
        found.append(one + (-1 if target is None else 1) * step * scale * slope.sign())
    return torch.stack(found)


def iterative(log_probs: LogProbs, x: Tensor, target: int, step: float, steps: int, scale=1.0) -> Tensor:
    for _ in range(steps):
        x = fgsm(log_probs, x, step, target=target, scale=scale)
    return x
