"""Draws without structure from dense matrices, and distances of covariances by loops.

Index legend: N examples, C outputs, P parameters, S samples.
"""

import torch
from torch import Tensor


def linear_map(jac: Tensor, lam: Tensor, delta: Tensor, scale: float) -> Tensor:
    """M with z = M eps, [P, N C + P]: A^-1 [sqrt(s) J^T Lambda^(1/2), Delta^(1/2)] with A = s H + Delta."""
    columns = []
    for j, block in zip(jac, lam, strict=True):
        values, vectors = torch.linalg.eigh(block)
        columns.append(j.T @ (vectors * values.clamp(min=0).sqrt()))
    perturbation = torch.cat([scale**0.5 * torch.cat(columns, dim=1), torch.diag(delta.sqrt())], dim=1)
    h = sum(j.T @ block @ j for j, block in zip(jac, lam, strict=True))
    return torch.linalg.solve(scale * h + torch.diag(delta), perturbation)


def squared_distance(y: Tensor, k: Tensor) -> tuple[float, float]:
    """Unbiased sum_n ||V_n - K_n||^2 and sum_n ||V_n||^2 from draws y [S, N, C] with mean 0, by loops over pairs."""
    draws, norm, inner = len(y), 0.0, 0.0
    for n in range(y.shape[1]):
        for s in range(draws):
            inner += float(y[s, n] @ k[n] @ y[s, n]) / draws
            for t in range(draws):
                if s != t:
                    norm += float(y[s, n] @ y[t, n]) ** 2 / (draws * (draws - 1))
    return norm - 2 * inner + float(k.square().sum()), norm


def centred(k: Tensor) -> Tensor:
    """P K P with P = I - 1 1^T / C, [N, C, C]."""
    size = k.shape[-1]
    p = torch.eye(size, dtype=k.dtype) - torch.full((size, size), 1 / size, dtype=k.dtype)
    return torch.stack([p @ block @ p for block in k])
