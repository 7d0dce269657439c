"""Calibration in the large: the mean predicted probability beside the frequency of what it is the probability of.

Of a calibrated prediction the number of ones is Poisson-binomial, a sum of independent Bernoulli variables with the
predicted probabilities. The interval is found by inverting that test, so it is right for rare labels and few inputs,
where a bootstrap of the few ones is too narrow.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.metrics.intervals import Estimate

NORMAL = 100.0  # variance of the number of ones from which its distribution counts as normal
FAR = 12.0  # standard deviations beyond which it counts as 0


def in_the_large(probs: Tensor, truth: Tensor, level: float = 0.95) -> Estimate:
    """Mean of ``probs`` [N] minus the frequency of ones in ``truth`` [N]; 0 is outside the interval if that is unlikely
    under calibration.
    """
    probs, truth = probs.detach().double().cpu().reshape(-1), truth.double().cpu().reshape(-1)
    value = float((probs - truth).mean())
    low, high = (quantile - float(probs.sum()) for quantile in _quantiles(probs, (1 - level) / 2))
    count = len(probs)
    return Estimate(value, value + low / count, value + high / count, level, count, name="difference")


def _quantiles(probs: Tensor, tail: float) -> tuple[float, float]:
    """The smallest and largest number of ones outside of which less than ``tail`` lies on either side."""
    mean, spread = float(probs.sum()), math.sqrt(float((probs * (1 - probs)).sum()))
    if spread**2 >= NORMAL:
        away = -float(torch.special.ndtri(torch.tensor(tail, dtype=torch.float64))) * spread + 0.5
        return mean - away, mean + away
    length = min(len(probs), int(mean + FAR * spread) + 20) + 1  # more ones have no mass
    turns = 2 * math.pi / length * torch.arange(length // 2 + 1, dtype=torch.float64)  # the others are conjugate
    each, cosine, sine = probs.unsqueeze(1), turns.cos(), turns.sin()
    size = 0.5 * torch.log1p(-2 * each * (1 - each) * (1 - cosine)).sum(0)  # log |Π_n (1 − p_n + p_n e^{iω})|
    angle = torch.atan2(each * sine, 1 - each + each * cosine).sum(0)
    below = torch.fft.irfft(torch.polar(size.exp(), -angle), n=length).clamp(min=0).cumsum(0)
    low = int((below <= tail).sum())  # P(Y < low) ≤ tail
    high = int((1 - below > tail).sum())  # P(Y > high) ≤ tail
    return float(low), float(max(high, low))
