"""Negative log likelihoods (summed over the batch) and their output Hessians, by formula.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""

import math
from functools import partial

import torch
from torch import Tensor

from .curvature import Nll

IGNORE = -100


def categorical_nll(outputs: Tensor, targets: Tensor, ignore_index: int = IGNORE) -> Tensor:
    """sum_n logsumexp(f_n) - f_n[y_n], leaving out examples with y_n = ignore_index."""
    total = (outputs * 0).sum()
    for f, y in zip(outputs, targets, strict=True):
        if int(y) != ignore_index:
            total = total + torch.logsumexp(f, 0) - f[int(y)]
    return total


def bernoulli_nll(outputs: Tensor, targets: Tensor) -> Tensor:
    """sum_{n,c} -y log sigmoid(f) - (1 - y) log sigmoid(-f)."""
    log_p = torch.nn.functional.logsigmoid(outputs)
    log_q = torch.nn.functional.logsigmoid(-outputs)
    return -(targets * log_p + (1 - targets) * log_q).sum()


def gaussian_nll(outputs: Tensor, targets: Tensor, sigma: float | Tensor = 1.0) -> Tensor:
    """sum_{n,c} (y - f)^2 / (2 sigma^2) + log(2 pi sigma^2) / 2; sigma a number or [C]."""
    var = noise_variance(sigma, outputs.shape[1])
    return (0.5 * (targets - outputs) ** 2 / var + 0.5 * torch.log(2 * math.pi * var)).sum()


def heteroscedastic_nll(outputs: Tensor, targets: Tensor) -> Tensor:
    """sum_{n,k} (y - m)^2 / (2 exp(s)) + (log(2 pi) + s) / 2 with f = (m_1..m_K, s_1..s_K)."""
    k = outputs.shape[1] // 2
    mean, log_var = outputs[:, :k], outputs[:, k:]
    return (0.5 * (targets - mean) ** 2 / torch.exp(log_var) + 0.5 * (math.log(2 * math.pi) + log_var)).sum()


def poisson_nll(outputs: Tensor, targets: Tensor) -> Tensor:
    """sum_{n,c} exp(f) - y f + lgamma(y + 1)."""
    return (torch.exp(outputs) - targets * outputs + torch.lgamma(targets + 1)).sum()


def noise_variance(sigma: float | Tensor, n_outputs: int) -> Tensor:
    """sigma^2 as a vector [C]."""
    return torch.as_tensor(sigma, dtype=torch.float64).expand(n_outputs) ** 2


def categorical_hessian(outputs: Tensor, targets: Tensor | None = None, ignore_index: int = IGNORE) -> Tensor:
    """Lambda_n = diag(p_n) - p_n p_n^T, [N, C, C]; zero where the target is ignore_index."""
    blocks = []
    for n, f in enumerate(outputs):
        p = torch.exp(f - torch.logsumexp(f, 0))
        ignored = targets is not None and int(targets[n]) == ignore_index
        blocks.append((torch.diag(p) - torch.outer(p, p)) * (0.0 if ignored else 1.0))
    return torch.stack(blocks)


def bernoulli_hessian(outputs: Tensor) -> Tensor:
    """Lambda_n = diag(p_n (1 - p_n)), [N, C, C]."""
    return torch.stack([torch.diag(torch.sigmoid(f) * torch.sigmoid(-f)) for f in outputs])


def gaussian_hessian(outputs: Tensor, sigma: float | Tensor = 1.0) -> Tensor:
    """Lambda_n = diag(1 / sigma^2), [N, C, C]."""
    return torch.stack([torch.diag(1 / noise_variance(sigma, outputs.shape[1])) for _ in outputs])


def heteroscedastic_fisher(outputs: Tensor) -> Tensor:
    """Lambda_n = diag(1 / var_1..1 / var_K, 1/2..1/2), [N, 2K, 2K]."""
    k = outputs.shape[1] // 2
    half = torch.full((k,), 0.5, dtype=outputs.dtype)
    return torch.stack([torch.diag(torch.cat([torch.exp(-f[k:]), half])) for f in outputs])


def poisson_hessian(outputs: Tensor) -> Tensor:
    """Lambda_n = diag(exp(f_n)), [N, C, C]."""
    return torch.stack([torch.diag(torch.exp(f)) for f in outputs])


def autograd_hessian(outputs: Tensor, targets: Tensor, nll: Nll) -> Tensor:
    """Lambda_n = d^2 nll(f_n, y_n) / d f_n^2 for any nll, [N, C, C]."""
    blocks = []
    for n, f in enumerate(outputs):
        y = targets[n : n + 1]
        blocks.append(torch.autograd.functional.hessian(lambda v, y=y: nll(v[None], y), f.detach()))
    return torch.stack(blocks)


def residual_outer(outputs: Tensor, targets: Tensor, nll: Nll) -> Tensor:
    """Lambda_n = r_n r_n^T with r_n = d nll / d f_n: turns a GGN into the empirical Fisher, [N, C, C]."""
    blocks = []
    for n, f in enumerate(outputs):
        v = f.detach().clone().requires_grad_(True)
        (r,) = torch.autograd.grad(nll(v[None], targets[n : n + 1]), v)
        blocks.append(torch.outer(r, r))
    return torch.stack(blocks)


def nll_for(likelihood: str, sigma: float | Tensor = 1.0) -> Nll:
    """The nll of a named likelihood."""
    return {
        "classification": categorical_nll,
        "binary": bernoulli_nll,
        "regression": partial(gaussian_nll, sigma=sigma),
        "heteroscedastic": heteroscedastic_nll,
        "poisson": poisson_nll,
    }[likelihood]


def hessian_for(likelihood: str, outputs: Tensor, sigma: float | Tensor = 1.0) -> Tensor:
    """Lambda [N, C, C] of a named likelihood."""
    if likelihood == "regression":
        return gaussian_hessian(outputs, sigma)
    return {
        "classification": categorical_hessian,
        "binary": bernoulli_hessian,
        "heteroscedastic": heteroscedastic_fisher,
        "poisson": poisson_hessian,
    }[likelihood](outputs)
