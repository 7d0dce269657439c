"""Posteriors, evidence and predictives from dense matrices.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""

import math

import torch
from torch import Tensor

from .kronecker import root
from .likelihoods import noise_variance


def posterior_covariance(h: Tensor, delta: Tensor) -> Tensor:
    """(H + diag(delta))^-1, [P, P]."""
    return torch.linalg.inv(h + torch.diag(delta))


def log_evidence(h: Tensor, delta: Tensor, theta: Tensor, mu0: float | Tensor, log_lik: float | Tensor) -> Tensor:
    """log_lik - ((theta - mu0)^T Delta (theta - mu0) + logdet(H + Delta) - logdet(Delta)) / 2."""
    offset = theta - mu0
    scatter = (offset * delta * offset).sum()
    return log_lik - 0.5 * (scatter + torch.logdet(h + torch.diag(delta)) - torch.log(delta).sum())


def linearised_covariance(jac: Tensor, sigma: Tensor) -> Tensor:
    """J_n Sigma J_n^T per example, [N, C, C]."""
    return torch.stack([j @ sigma @ j.T for j in jac])


def joint_covariance(jac: Tensor, sigma: Tensor) -> Tensor:
    """J Sigma J^T over all examples together, [N C, N C], index n * C + c."""
    flat = jac.reshape(-1, jac.shape[-1])
    return flat @ sigma @ flat.T


def logit_samples(mean: Tensor, cov: Tensor, draws: int, seed: int) -> Tensor:
    """Plain draws from N(mean_n, cov_n), [S, N, C]."""
    generator = torch.Generator().manual_seed(seed)
    columns = []
    for mu, c in zip(mean, cov, strict=True):
        noise = torch.randn(draws, mu.shape[0], generator=generator, dtype=mean.dtype)
        columns.append(mu + noise @ root(c).T)
    return torch.stack(columns, dim=1)


def softmax_monte_carlo(mean: Tensor, cov: Tensor, draws: int = 200_000, seed: int = 0) -> Tensor:
    """E softmax(f) under f ~ N(mean_n, cov_n) by averaging draws, [N, C]."""
    return torch.softmax(logit_samples(mean, cov, draws, seed), dim=-1).mean(dim=0)


def sigmoid_monte_carlo(mean: Tensor, cov: Tensor, draws: int = 200_000, seed: int = 0) -> Tensor:
    """E sigmoid(f) under f ~ N(mean_n, cov_n) by averaging draws, [N, C]."""
    return torch.sigmoid(logit_samples(mean, cov, draws, seed)).mean(dim=0)


def probit_logits(mean: Tensor, cov: Tensor) -> Tensor:
    """kappa f with kappa = 1 / sqrt(1 + pi / 8 v) and v the logits' variances, [N, C]."""
    rows = []
    for mu, c in zip(mean, cov, strict=True):
        rows.append(mu / torch.sqrt(1 + math.pi / 8 * torch.diag(c)))
    return torch.stack(rows)


def probit_softmax(mean: Tensor, cov: Tensor) -> Tensor:
    """softmax(kappa f), [N, C]."""
    return torch.softmax(probit_logits(mean, cov), dim=-1)


def probit_sigmoid(mean: Tensor, cov: Tensor) -> Tensor:
    """sigmoid(kappa f) per logit, [N, C]."""
    return torch.sigmoid(probit_logits(mean, cov))


def zero_sum(mu: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """The Gaussian conditioned on 1^T f = 0.

    mu - Sigma 1 1^T mu / (1^T Sigma 1) and Sigma - Sigma 1 1^T Sigma / (1^T Sigma 1).
    """
    one = torch.ones_like(mu)
    scale = one @ sigma @ one
    return mu - sigma @ one * (one @ mu) / scale, sigma - torch.outer(sigma @ one, one @ sigma) / scale


def bridge_alpha(mean: Tensor, cov: Tensor) -> Tensor:
    """Laplace bridge (Hobbhahn et al. 2022), Dirichlet parameters [N, C].

    alpha_k = (1 - 2 / C + exp(mu_k) / C^2 sum_l exp(-mu_l)) / Sigma_kk, after zero_sum.
    """
    rows = []
    for mu, c in zip(mean, cov, strict=True):
        mu, c = zero_sum(mu, c)
        n_classes = mu.shape[0]
        top = 1 - 2 / n_classes + torch.exp(mu) / n_classes**2 * torch.exp(-mu).sum()
        rows.append(top / torch.diag(c))
    return torch.stack(rows)


def bridge_softmax(mean: Tensor, cov: Tensor) -> Tensor:
    """alpha / sum alpha, [N, C]."""
    alpha = bridge_alpha(mean, cov)
    return alpha / alpha.sum(dim=-1, keepdim=True)


def gaussian_predictive(mean: Tensor, cov: Tensor, sigma: float | Tensor) -> tuple[Tensor, Tensor]:
    """Mean [N, C] and variance diag(cov_n) + sigma^2 [N, C]."""
    noise = noise_variance(sigma, mean.shape[1])
    return mean, torch.stack([torch.diag(c) + noise for c in cov])
