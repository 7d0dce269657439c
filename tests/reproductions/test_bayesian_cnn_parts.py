"""What the Bayesian CNN's numbers are made of: images, scores of reconstructions and samples, pieces of data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reproductions.bayesian_cnn.data import load, resized
from reproductions.bayesian_cnn.gan import networks, scores
from reproductions.bayesian_cnn.pruning.tables import at
from reproductions.bayesian_cnn.subjects import best
from reproductions.bayesian_cnn.superresolution import images
from reproductions.bayesian_cnn.superresolution.config import Task
from whence.posteriors.variational import ScaleMixture, VariationalModule


def test_images_are_enlarged_padded_and_cut() -> None:
    raw = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8)
    large = resized(raw, 16)
    assert torch.equal(large[0, 0, ::2, ::2], raw[0, 0]) and torch.equal(large[..., 0, 0], large[..., 1, 1])
    padded = resized(torch.ones(1, 1, 28, 28, dtype=torch.uint8), 32)
    assert int(padded.sum()) == 28**2 and int(padded[..., :2, :].sum()) == 0
    assert torch.equal(resized(raw, 7), raw[..., :7, :7])


def test_fractions_are_of_the_same_pool() -> None:
    whole, part = (load("digits", 0, "cpu", 8, fraction, novel=5) for fraction in (1.0, 0.1))
    assert part.train.size == round(0.1 * whole.train.size) and part.validation.size == whole.validation.size
    rows = {bytes(image.numpy().tobytes()) for image in whole.train.raw}
    assert all(bytes(image.numpy().tobytes()) in rows for image in part.train.raw)
    assert len(part.novel["inverted"]) == 5


def test_the_least_validation_loss_is_chosen() -> None:
    losses = {1: 0.5, 2: 0.3, 3: 0.4}
    found = best([{"rate": r} for r in losses], lambda choice: (choice["rate"], losses[choice["rate"]], 1.0), "cpu")
    assert (found.model, found.choice, found.losses, found.memory) == (2, {"rate": 2}, [0.5, 0.3, 0.4], None)


def test_a_mixture_of_equal_scales_is_the_described_prior() -> None:
    """Its KL by draws has the closed form of a Gaussian prior as its mean."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    by_draws = VariationalModule(layer, initial_std=0.1, prior_precision=ScaleMixture(0.5, 0.1, 0.1))
    closed = VariationalModule(layer, initial_std=0.1, prior_precision=100.0)
    assert float(by_draws.kl(20_000).detach()) == pytest.approx(float(closed.kl().detach()), rel=0.02)


# Reconstructions


def test_ssim_and_psnr_are_those_of_torchmetrics() -> None:
    other = pytest.importorskip("torchmetrics.functional.image")
    gen = torch.Generator().manual_seed(0)
    high = F.avg_pool2d(torch.rand(3, 3, 34, 34, generator=gen), 3, 1)
    mean = (high + 0.05 * torch.randn(high.shape, generator=gen)).clamp(0, 1)
    wanted = other.structural_similarity_index_measure(mean, high, data_range=1.0)
    assert images.ssim(mean, high) == pytest.approx(float(wanted), abs=1e-4)
    alone = [float(other.peak_signal_noise_ratio(m, h, data_range=1.0)) for m, h in zip(mean, high, strict=True)]
    assert images.psnr(mean, high) == pytest.approx(sum(alone) / 3, abs=1e-3)


def test_sparsification_against_the_oracle() -> None:
    error = torch.tensor([3.0, -1.0, 2.0, 0.5])
    curve = images.sparsification(error, error.abs(), steps=4)
    roots = [math.sqrt(sum(e * e for e in kept) / len(kept)) for kept in ([3, 1, 2, 0.5], [1, 2, 0.5], [1, 0.5], [0.5])]
    assert curve == pytest.approx([r / roots[0] for r in roots])
    assert images.ause(error, error.abs()) == 0.0
    assert images.ause(error, -error.abs()) > images.ause(error, torch.tensor([1.0, 3.0, 2.0, 0.5])) > 0
    assert images.correlation(error.abs(), torch.tensor([9.0, 2.0, 3.0, 1.0])) == pytest.approx(1.0)


def test_the_network_enlarges_by_its_factor() -> None:
    task = Task("x", "digits", 3, 27, 10, channels=3)
    assert images.espcn(task, (4, 4), 0.1)(torch.zeros(2, 3, 9, 9)).shape == (2, 3, 27, 27)
    flat = torch.full((1, 1, 5, 5), 0.3)
    assert float(images.slope(flat).max()) == 0.0
    ramp = torch.arange(5.0).expand(1, 1, 5, 5)
    assert images.slope(ramp)[0, 0, 2, 2] == 2.0  # from one neighbour to the other


# Samples


def test_the_frechet_distance_of_gaussians() -> None:
    """|μ₁ − μ₂|² + Σ (σ₁ − σ₂)² for diagonal covariances."""
    gen = torch.Generator().manual_seed(0)
    one = torch.randn(20_000, 3, dtype=torch.float64, generator=gen)
    other = 2 * torch.randn(20_000, 3, dtype=torch.float64, generator=gen) + torch.tensor([1.0, 0.0, 0.0])
    assert scores.frechet(one, other) == pytest.approx(1 + 3 * 1, rel=0.05)
    assert scores.frechet(one, one) == pytest.approx(0.0, abs=1e-6)


def test_precision_and_recall_of_what_overlaps_and_what_does_not() -> None:
    gen = torch.Generator().manual_seed(0)
    real = torch.randn(300, 2, generator=gen)
    same, far = torch.randn(300, 2, generator=gen), torch.randn(300, 2, generator=gen) + 100
    precision, recall = scores.precision_recall(real, same)
    assert precision > 0.85 and recall > 0.85
    assert scores.precision_recall(real, far) == (0.0, 0.0)
    narrow = 0.05 * same  # inside the real manifold, covering little of it
    precision, recall = scores.precision_recall(real, narrow)
    assert precision > 0.95 and recall < 0.2
    torch.testing.assert_close(
        scores.nearest(real[:3].double(), real.double()), torch.zeros(3).double(), rtol=0, atol=1e-6
    )


def test_the_control_is_as_large_as_two_bayesian_networks() -> None:
    pair = networks.generator(8, 6, 16, 1), networks.discriminator(6, 16, 1)
    wanted = 2 * networks.size(*pair)
    width = networks.width_of_size(wanted, 8, 16, 1, 6)
    found = networks.size(networks.generator(8, width, 16, 1, 0.1), networks.discriminator(width, 16, 1, 0.1))
    assert found == pytest.approx(wanted, rel=0.15)
    assert networks.size(VariationalModule(pair[0]), VariationalModule(pair[1])) == wanted
    assert pair[0](torch.zeros(2, 8)).shape == (2, 1, 16, 16) and pair[1](torch.zeros(2, 1, 16, 16)).shape == (2, 1)
    x = torch.randn(4, 3)
    assert not torch.equal(networks.Noise(0.1)(x), x) and torch.equal(networks.Noise(0.0)(x), x)


def test_curves_are_read_between_their_points() -> None:
    assert at({"fraction": [0.0, 0.5, 0.9], "test": [1.0, 0.8, 0.4]}, 0.7) == pytest.approx(0.6)
    assert at({"fraction": [0.0, 0.5], "test": [1.0, 0.8]}, 0.9) == 0.8
