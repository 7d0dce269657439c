"""The noise of a regression: estimated, pooled, one for each output."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close


def mlp(inputs: int = 3, outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


@pytest.mark.parametrize("structure", ["kron", "diag", "full", "ekfac", "block"])
def test_estimated_noise_gives_the_fit_at_that_noise(structure: str) -> None:
    model = mlp(outputs=1).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    y = 1000 * torch.randn(20, 1, dtype=torch.float64)
    estimated = whence.laplace(model, (x, y), likelihood="regression", structure=structure, prior_precision=1e-6)
    given = whence.laplace(model, (x, y), likelihood=estimated.likelihood, structure=structure, prior_precision=1e-6)
    assert_close(estimated.covariance(), given.covariance(), 1e-7)


@pytest.mark.parametrize("structure", ["kron", "full", "diag"])
def test_update_pools_an_estimated_noise(structure: str) -> None:
    model = mlp(outputs=1).double()
    x, y = torch.randn(30, 3, dtype=torch.float64), torch.randn(30, 1, dtype=torch.float64)
    whole = whence.laplace(model, (x, y), likelihood="regression", structure=structure)
    part = whence.laplace(model, (x[:10], y[:10]), likelihood="regression", structure=structure)
    later = part.update((x[10:], y[10:]))
    assert float(later.likelihood.noise) == pytest.approx(float(whole.likelihood.noise))
    assert_close(later.covariance(), whole.covariance(), 1e-9)


def test_vector_noise() -> None:
    model = mlp(outputs=2).double()
    x, y = torch.randn(9, 3, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    noise = torch.tensor([0.3, 2.0], dtype=torch.float64)
    vector = whence.laplace(model, (x, y), likelihood=whence.Gaussian(noise), structure="full")
    scaled = nn.Sequential(model, _Divide(noise))
    unit = whence.laplace(scaled, (x, y / noise), likelihood=whence.Gaussian(1.0), structure="full")
    assert_close(vector.covariance(), unit.covariance())
    assert_close(vector.predict(x).aleatoric, noise.square().expand(9, 2))


class _Divide(nn.Module):
    def __init__(self, by: Tensor) -> None:
        super().__init__()
        self.register_buffer("by", by)

    def forward(self, x: Tensor) -> Tensor:
        return x / self.by


def test_a_noise_that_the_curvature_cannot_tell_is_announced() -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 4, dtype=torch.float64)
    y = x[:, :1].sin() + 0.1 * torch.randn(30, 1)
    layers = [nn.Linear(4, 20), *[nn.Linear(20, 20) for _ in range(4)], nn.Linear(20, 1)]
    deep = nn.Sequential(*[part for layer in layers for part in (layer, nn.Tanh())][:-1]).double()
    optimiser = torch.optim.Adam(deep.parameters(), lr=1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        (deep(x) - y).square().mean().backward()
        optimiser.step()
    posterior = whence.laplace(deep, (x, y), likelihood="regression", prior_precision=1.0, progress=False)
    with pytest.warns(whence.errors.Notice, match="times the training residuals"):
        tuned = posterior.tune(per_layer=True, progress=False)
    noise, before = (float(p.likelihood.noise) for p in (tuned, posterior))
    gamma = sum(float(g.effective_parameters()) for g, _ in tuned.gaussians())
    assert noise > 4 * before and gamma == pytest.approx(30 * (1 - (before / noise) ** 2), rel=1e-3)
