"""The plain network recalibrated on validation data: temperatures and noises against a plain search."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import whence
from whence.errors import NotDefined
from whence.predictive.recalibration import recalibrated

GRID = torch.logspace(-1.5, 1.5, 3001, dtype=torch.float64)  # temperatures


def logits(seed: int = 0, size: int = 400, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Logits three times too large, and labels drawn from the right ones."""
    gen = torch.Generator().manual_seed(seed)
    right = 1.5 * torch.randn(size, classes, generator=gen, dtype=torch.float64)
    return 3 * right, torch.multinomial(right.softmax(1), 1, generator=gen).squeeze(1)


def test_the_temperature_minimises_the_log_loss() -> None:
    z, y = logits()
    found = recalibrated(whence.Categorical(), z, y)
    losses = torch.stack([F.cross_entropy(z / t, y) for t in GRID])
    best = float(GRID[losses.argmin()])
    assert best == pytest.approx(3.0, rel=0.25)
    assert 1 / float(found.factor) == pytest.approx(best, rel=2e-3)
    assert found.words == f"temperature {1 / float(found.factor):.3g}"
    prediction = found.predict(z)
    torch.testing.assert_close(prediction.probs, (z * found.factor).softmax(1))
    assert float(whence.metrics.nll(prediction, y)) <= float(losses.min()) + 1e-9


def test_ignored_targets_and_classes_in_another_dimension_do_not_matter() -> None:
    z, y = logits()
    wanted = recalibrated(whence.Categorical(), z, y).factor
    maps, labels = z.reshape(100, 4, 4), y.reshape(100, 4).clone()  # [N, T, C]
    found = recalibrated(whence.Categorical(class_dim=-1), maps, labels)
    torch.testing.assert_close(found.factor, wanted)
    more = torch.cat([z, 100 * torch.randn(50, 4).double()])
    ignored = torch.cat([y, torch.full((50,), -100)])
    torch.testing.assert_close(recalibrated(whence.Categorical(), more, ignored).factor, wanted)


def test_every_label_has_its_own_temperature() -> None:
    gen = torch.Generator().manual_seed(0)
    right = torch.randn(600, 3, generator=gen, dtype=torch.float64)
    y = (torch.rand(600, 3, generator=gen) < right.sigmoid()).double()
    z = right * torch.tensor([0.5, 1.0, 4.0]).double()
    found = recalibrated(whence.Bernoulli(), z, y)
    for k in range(3):
        losses = torch.stack([F.binary_cross_entropy_with_logits(z[:, k] / t, y[:, k]) for t in GRID])
        assert 1 / float(found.factor.flatten()[k]) == pytest.approx(float(GRID[losses.argmin()]), rel=2e-3)
    torch.testing.assert_close(found.predict(z).probs, (z * found.factor).sigmoid())


def test_noise_of_the_validation_residuals() -> None:
    gen = torch.Generator().manual_seed(0)
    mean, sigma = torch.randn(500, 2, generator=gen).double(), torch.tensor([0.3, 2.0]).double()
    y = mean + sigma * torch.randn(500, 2, generator=gen).double()
    found = recalibrated(whence.Gaussian(noise=1.0), mean, y)
    wanted = (y - mean).square().mean(0)
    torch.testing.assert_close(found.predict(mean).aleatoric, wanted.expand(500, 2))
    outputs = torch.cat([mean, torch.zeros(500, 2).double()], 1)  # log variances of 0
    again = recalibrated(whence.HeteroscedasticGaussian(), outputs, y)
    torch.testing.assert_close(again.predict(outputs).aleatoric, wanted.expand(500, 2))
    torch.testing.assert_close(again.predict(outputs).mean, mean)


def test_separable_data_end_at_the_edge_of_the_range() -> None:
    z = torch.tensor([[2.0, 0.0], [0.0, 2.0]]).double()
    found = recalibrated(whence.Categorical(), z, torch.tensor([0, 1]))
    assert float(found.factor) == pytest.approx(1e3, rel=1e-6)


def test_other_likelihoods_have_none() -> None:
    with pytest.raises(NotDefined, match="Poisson"):
        recalibrated(whence.Poisson(), torch.zeros(3, 1), torch.ones(3, 1))
