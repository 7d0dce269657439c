"""The same Laplace posteriors, slow and obvious: plain torch, dense matrices, no whence.

Index legend: N examples, P parameters, S draws, D inputs of a layer with its 1, O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from reproductions.ritter2018.toy.methods import predicted
from reproductions.ritter2018.toy.names import DIAGONAL, FULL
from reproductions.ritter2018.toy.problem import Problem

LAYERS = (0, 2, 4)
SETS = 20  # of draws


def compared(problem: Problem, net: nn.Sequential, method: str, posterior: Any) -> dict[str, float]:
    """Largest relative error of the covariance; largest of the linearised, mean of the sampled standard deviation.

    Draws differ, so the last is small but not zero; ``of_draws`` is how far a set of as many draws is off at most.
    """
    covariance = dense(problem, net, method, posterior.prior_precision, posterior.data_scale)
    theirs = posterior.covariance()
    jacobian = torch.cat([gradient(net, x) for x in problem.grid])  # [N, P]
    straight = torch.einsum("np,pq,nq->n", jacobian, covariance, jacobian)
    sets = torch.stack([spread_of_draws(problem, net, covariance, seed) for seed in range(SETS)])  # [sets, N]
    pooled = sets.square().mean(0).sqrt()
    library = predicted(problem, posterior, problem.grid).epistemic.flatten().sqrt()
    linearised = predicted(problem, posterior, problem.grid, "linearised").epistemic.flatten()
    return {
        "covariance": float((theirs - covariance).abs().max() / covariance.abs().max()),
        "linearised": float((linearised / straight).sqrt().sub(1).abs().max()),
        "sampled": float((library / pooled).sub(1).abs().mean()),
        "of_draws": float((sets / pooled).sub(1).abs().mean(1).max()),
    }


def gradient(net: nn.Sequential, x: Tensor) -> Tensor:
    """∂f/∂θ at one input, [1, P]."""
    found = torch.autograd.grad(net(x.unsqueeze(0)).sum(), list(net.parameters()))
    return torch.cat([g.flatten() for g in found]).unsqueeze(0)


def dense(problem: Problem, net: nn.Sequential, method: str, precision: float, scale: float) -> Tensor:
    """Σ in the order of the parameters, [P, P]; the curvature of a Gaussian is Jᵀ J / σ²."""
    jacobian = torch.cat([gradient(net, x) for x in problem.train[0]])
    curvature = scale * jacobian.mT @ jacobian / problem.noise**2
    identity = torch.eye(len(curvature), dtype=curvature.dtype, device=curvature.device)
    if method == FULL:
        return torch.linalg.inv(curvature + precision * identity)
    if method == DIAGONAL:
        return torch.diag(1 / (curvature.diagonal() + precision))
    blocks = [torch.linalg.inv(kronecker(problem, net, layer, precision, scale)) for layer in LAYERS]
    return torch.block_diag(*blocks)


def kronecker(problem: Problem, net: nn.Sequential, layer: int, precision: float, scale: float) -> Tensor:
    """Eq. 9: (√N E[H] + √τ I) ⊗ (√N E[Q] + √τ I), its rows in the order weight, then bias."""
    x, weight = problem.train[0], net[layer].weight
    before = net[:layer](x).detach()
    entering = torch.cat([before, torch.ones_like(x)], dim=1)  # [N, D]
    out = net[layer](before).detach().requires_grad_()
    leaving = torch.autograd.grad(net[layer + 1 :](out).sum(), out)[0] / problem.noise  # [N, O]
    count, root = len(x), precision**0.5

    def factor(rows: Tensor) -> Tensor:
        inner = (scale * count) ** 0.5 * (rows.mT @ rows) / count
        return inner + root * torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)

    both = torch.kron(factor(leaving), factor(entering))
    outs, ins = weight.shape
    places = torch.arange(outs * (ins + 1), device=x.device).reshape(outs, ins + 1)
    order = torch.cat([places[:, :ins].flatten(), places[:, ins]])
    return both[order][:, order]


def spread_of_draws(problem: Problem, net: nn.Sequential, covariance: Tensor, seed: int) -> Tensor:
    """Standard deviation of the output under draws θ* + L ε, [N], in the scaled unit."""
    generator = torch.Generator().manual_seed(10_000 + 100 * problem.seed + seed)
    noise = torch.randn(problem.config.draws, len(covariance), generator=generator, dtype=torch.float64)
    mean = torch.cat([p.detach().flatten() for p in net.parameters()])
    theta = mean + noise.to(mean.device) @ torch.linalg.cholesky(covariance).mT  # [S, P]
    pieces = theta.split([p.numel() for p in net.parameters()], dim=1)
    hidden = problem.grid.expand(len(theta), -1, -1)
    for place, layer in enumerate(LAYERS):
        weight = pieces[2 * place].unflatten(1, net[layer].weight.shape)
        hidden = hidden @ weight.mT + pieces[2 * place + 1].unsqueeze(1)
        if layer != LAYERS[-1]:
            hidden = net[layer + 1](hidden)
    return hidden.squeeze(-1).std(0)
