"""Slow, obvious twins for the variational posterior: exact linear regression, KL by dense matrices, weights by hand.

Index legend: N examples, D inputs, O outputs, P weights.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class LinearRegression:
    """y = W x + b + noise, with independent Gaussian priors; everything is known exactly."""

    x: Tensor  # [N, D]
    y: Tensor  # [N, O]
    noise: float
    prior: float
    bias: bool = True

    @classmethod
    def make(cls, seed: int = 0, n: int = 30, d: int = 3, o: int = 1, noise: float = 0.5, prior: float = 0.7):
        gen = torch.Generator().manual_seed(seed)
        mix = torch.randn(d, d, generator=gen, dtype=torch.float64)
        x = torch.randn(n, d, generator=gen, dtype=torch.float64) @ (torch.eye(d, dtype=torch.float64) + 0.5 * mix)
        w = torch.randn(o, d, generator=gen, dtype=torch.float64)
        y = x @ w.T + noise * torch.randn(n, o, generator=gen, dtype=torch.float64)
        return cls(x, y, noise, prior)

    def features(self) -> Tensor:
        """[N, D + 1]."""
        return torch.cat([self.x, torch.ones(len(self.x), 1, dtype=torch.float64)], dim=1)

    def precision(self) -> Tensor:
        """Of one output's (weights, bias): Φᵀ Φ / σ² + δ I."""
        phi = self.features()
        return phi.T @ phi / self.noise**2 + self.prior * torch.eye(phi.shape[1], dtype=torch.float64)

    def mean(self) -> Tensor:
        """[O, D + 1]."""
        return torch.linalg.solve(self.precision(), self.features().T @ self.y / self.noise**2).T

    def covariance(self) -> Tensor:
        """In the order (weight [O, D], bias [O]), [P, P]."""
        o, d = self.y.shape[1], self.x.shape[1]
        native = torch.kron(torch.eye(o, dtype=torch.float64), torch.linalg.inv(self.precision()).contiguous())
        at = torch.arange(o * (d + 1)).reshape(o, d + 1)
        order = torch.cat([at[:, :d].flatten(), at[:, d]])
        return native[order][:, order]

    def log_evidence(self) -> float:
        """log N(y; 0, σ² I + Φ Φᵀ / δ), summed over outputs."""
        phi = self.features()
        cov = self.noise**2 * torch.eye(len(phi), dtype=torch.float64) + phi @ phi.T / self.prior
        density = torch.distributions.MultivariateNormal(torch.zeros(len(phi), dtype=torch.float64), cov)
        return float(density.log_prob(self.y.T).sum())

    def network(self) -> nn.Linear:
        model = nn.Linear(self.x.shape[1], self.y.shape[1]).double()
        with torch.no_grad():
            model.weight.zero_(), model.bias.zero_()
        return model


def gaussian_kl(mean: Tensor, cov: Tensor, precision: Tensor) -> float:
    """KL(N(mean, cov) ‖ N(0, diag(precision)⁻¹)), by its definition."""
    size = len(mean)
    trace = (torch.diag(precision) @ cov).trace()
    return float(0.5 * (trace + (precision * mean.square()).sum() - size - cov.logdet() - precision.log().sum()))


def normal_log_prob(value: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return -0.5 * ((value - mean) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)
