"""Mean probability beside frequency: the exact test against convolution and simulation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from whence.metrics.in_the_large import _quantiles, in_the_large


def slow_distribution(probs: Tensor) -> Tensor:
    """P(Y = k), one probability after the other."""
    mass = torch.zeros(len(probs) + 1, dtype=torch.float64)
    mass[0] = 1.0
    for p in probs.tolist():
        mass[1:], mass[0] = mass[1:] * (1 - p) + mass[:-1] * p, mass[0] * (1 - p)
    return mass


@pytest.mark.parametrize("size", [1, 7, 60, 400])
@pytest.mark.parametrize("rare", [1.0, 0.02])
def test_quantiles_of_the_number_of_ones(size: int, rare: float) -> None:
    probs = rare * torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    probs[:1] = 0.5
    mass = slow_distribution(probs)
    for tail in (0.025, 0.0005):
        low, high = _quantiles(probs, tail)
        below, above = mass.cumsum(0), mass.flip(0).cumsum(0).flip(0)
        every = range(size + 1)
        wanted = next(k for k in every if below[k] > tail), next(k for k in reversed(every) if above[k] > tail)
        assert (low, high) == pytest.approx(wanted, abs=1.0 if float((probs * (1 - probs)).sum()) >= 100 else 0.0)


def test_the_normal_approximation_joins_the_exact_distribution() -> None:
    probs = torch.full((900,), 0.14, dtype=torch.float64)  # variance 108
    mass = slow_distribution(probs).cumsum(0)
    low, high = _quantiles(probs, 0.025)
    assert low == pytest.approx(int((mass <= 0.025).sum()), abs=1.0)
    assert high == pytest.approx(int((1 - mass > 0.025).sum()), abs=1.0)


@pytest.mark.parametrize(("size", "shift"), [(40, -4.0), (300, -3.0), (2000, -1.0)])
def test_calibrated_predictions_are_rejected_as_rarely_as_stated(size: int, shift: float) -> None:
    gen = torch.Generator().manual_seed(0)
    probs = (torch.randn(500, size, generator=gen, dtype=torch.float64) + shift).sigmoid()
    truth = (torch.rand(500, size, generator=gen, dtype=torch.float64) < probs).double()
    found = [in_the_large(p, y) for p, y in zip(probs, truth, strict=True)]
    rejected = sum(not e.low <= 0 <= e.high for e in found)
    assert rejected <= 38  # 25 are expected at most; 38 is exceeded by chance once in 200 runs
    assert float(found[0]) == pytest.approx(float(probs[0].mean() - truth[0].mean()))


def test_probabilities_of_zero_and_one() -> None:
    probs, truth = torch.tensor([0.0, 1.0, 1.0, 0.0]), torch.tensor([0, 1, 1, 0])
    found = in_the_large(probs, truth)
    assert (float(found), found.low, found.high) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    wrong = in_the_large(probs, torch.tensor([1, 1, 1, 0]))
    assert wrong.high < 0
