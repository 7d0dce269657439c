"""The exact evidence of a linearised network of Linear layers, with one prior precision for each layer.

f(x) ≈ f*(x) + J(x) (θ − θ*) with θ ~ N(0, Δ⁻¹) has the kernel Σ_b K_b / δ_b over layers, and for a Linear layer
K_b[(n, c), (m, d)] = (aₙ·aₘ + 1) gₙ꜀·gₘ𝒹, with its inputs a and the gradients g of the outputs in its outputs.

- **At the trained weights**: log p(y | f*) − ½ Σ δ_b ‖θ_b‖² − ½ log det(I + Rᵀ K R), with Λ = R Rᵀ.
- **At the linear model's own optimum** (numbers only): y − f* + Jθ* ~ N(0, K + σ² I), the exact marginal likelihood.

Index legend: N examples, C outputs, L layers, M = N C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reproductions.linearised.depth.subjects import Subject

LOG_2PI = math.log(2 * math.pi)
BOUND = 12.0  # of log precisions and log noise, up and down


@dataclass(frozen=True)
class Layers:
    """What the Linear layers of a network saw for some inputs."""

    names: tuple[str, ...]
    inputs: tuple[Tensor, ...]  # [N, D]
    gradients: tuple[Tensor, ...]  # [N, C, O]
    along: Tensor  # J θ*, [M]
    outputs: Tensor  # [N, C]

    def kernels(self, other: Layers) -> Tensor:
        """[L, M, M']."""
        found = []
        for a, g, b, h in zip(self.inputs, self.gradients, other.inputs, other.gradients, strict=True):
            inner = (a @ b.T + 1).repeat_interleave(g.shape[1], 0).repeat_interleave(h.shape[1], 1)
            found.append(inner * (g.flatten(0, 1) @ h.flatten(0, 1).T))
        return torch.stack(found)

    def variances(self) -> Tensor:
        """Diagonals of the kernels, [L, M]."""
        rows = [
            ((a.square().sum(1) + 1).unsqueeze(1) * g.square().sum(2)).flatten()
            for a, g in zip(self.inputs, self.gradients, strict=True)
        ]
        return torch.stack(rows)


def layers_of(network: nn.Module, x: Tensor) -> Layers:
    """By one forward pass, and one backward pass for each output."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    linear = {name: m for name, m in network.named_modules() if isinstance(m, nn.Linear)}
    handles = [
        m.register_forward_hook(lambda _, args, out, name=name: seen.__setitem__(name, (args[0], out)))
        for name, m in linear.items()
    ]
    try:
        outputs = network(x)
    finally:
        for handle in handles:
            handle.remove()
    after = [seen[name][1] for name in linear]
    by_output = [torch.autograd.grad(outputs[:, c].sum(), after, retain_graph=True) for c in range(outputs.shape[1])]
    gradients = [torch.stack(each, 1) for each in zip(*by_output, strict=True)]  # [N, C, O]
    along = sum((g * z.detach().unsqueeze(1)).sum(2) for g, z in zip(gradients, after, strict=True))
    assert isinstance(along, Tensor)
    inputs = tuple(seen[name][0].detach() for name in linear)
    return Layers(tuple(linear), inputs, tuple(gradients), along.flatten().detach(), outputs.detach())


@dataclass(frozen=True)
class Evidence:
    """The largest evidence, its parts, and the hyperparameters that reach it."""

    value: float
    fit: float  # log p(y | f*); at the linear model's optimum with the outputs there
    occam: float  # value − fit
    precisions: tuple[float, ...]  # by layer
    noise: float | None
    gamma: float  # effective parameters


def root(subject: Subject, outputs: Tensor) -> Tensor:
    """R of Λ = R Rᵀ for every example, [N, C, C]; of numbers without the noise."""
    if subject.classes == 0:
        return torch.ones_like(outputs).unsqueeze(2)
    if subject.classes == 2:
        p = outputs.sigmoid()
        return (p * (1 - p)).sqrt().unsqueeze(2)
    p = outputs.softmax(1)
    return torch.diag_embed(p.sqrt()) - p.unsqueeze(2) * p.sqrt().unsqueeze(1)


def rooted(kernels: Tensor, roots: Tensor) -> Tensor:
    """Rᵀ K_b R of every layer, [L, M, M]."""
    count, outputs = roots.shape[:2]
    blocks = kernels.unflatten(2, (count, outputs)).unflatten(1, (count, outputs))  # [L, N, C, N, C]
    return torch.einsum("ncr,lncmd,mds->lnrms", roots, blocks, roots).flatten(3, 4).flatten(1, 2)


def squares(network: nn.Module, layers: Layers) -> Tensor:
    """‖θ_b‖² of every layer, [L]."""
    params = {name: p.detach() for name, p in network.named_parameters()}
    pairs = [(params[f"{name}.weight"], params[f"{name}.bias"]) for name in layers.names]
    return torch.stack([weight.square().sum() + bias.square().sum() for weight, bias in pairs])


def log_likelihood(subject: Subject, outputs: Tensor, noise: Tensor | None) -> Tensor:
    """Summed over the training examples."""
    if subject.classes == 0:
        assert noise is not None
        away = (subject.y - outputs).square().sum() / noise.square()
        return -0.5 * away - subject.y.numel() * (noise.log() + 0.5 * LOG_2PI)
    if subject.classes == 2:
        return -nn.functional.binary_cross_entropy_with_logits(outputs, subject.y, reduction="sum")
    return -nn.functional.cross_entropy(outputs, subject.y, reduction="sum")


def at_trained_weights(subject: Subject, network: nn.Module, layers: Layers, iterations: int) -> Evidence:
    """The evidence where training ended, with the best precisions and noise."""
    kernels = rooted(layers.kernels(layers), root(subject, layers.outputs))
    sizes = squares(network, layers)
    eye = torch.eye(kernels.shape[1], dtype=torch.float64)

    def value(log_delta: Tensor, log_noise: Tensor) -> tuple[Tensor, Tensor]:
        noise = log_noise.exp() if subject.classes == 0 else None
        whole = torch.einsum("l,lmn->mn", (-log_delta).exp(), kernels)
        whole = whole / noise.square() if noise is not None else whole
        log_det = 2 * torch.linalg.cholesky(eye + whole).diagonal().log().sum()
        fit = log_likelihood(subject, layers.outputs, noise)
        return fit - 0.5 * (log_delta.exp() @ sizes) - 0.5 * log_det, fit

    return _best(subject, layers, kernels, value, iterations)


def at_linear_optimum(subject: Subject, layers: Layers, iterations: int) -> Evidence:
    """The exact marginal likelihood of the linear model, for numbers."""
    kernels = layers.kernels(layers)
    target = (subject.y - layers.outputs).flatten() + layers.along
    eye = torch.eye(len(target), dtype=torch.float64)

    def value(log_delta: Tensor, log_noise: Tensor) -> tuple[Tensor, Tensor]:
        noise = log_noise.exp()
        whole = torch.einsum("l,lmn->mn", (-log_delta).exp(), kernels) + noise.square() * eye
        chol = torch.linalg.cholesky(whole)
        alpha = torch.cholesky_solve(target.unsqueeze(1), chol).squeeze(1)
        total = -0.5 * target @ alpha - chol.diagonal().log().sum() - 0.5 * len(target) * LOG_2PI
        errors = noise.square() * alpha  # y − f at the optimum
        fit = -0.5 * errors.square().sum() / noise.square() - len(target) * (noise.log() + 0.5 * LOG_2PI)
        return total, fit

    return _best(subject, layers, kernels, value, iterations)


def _best(
    subject: Subject, layers: Layers, kernels: Tensor, value: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    iterations: int,
) -> Evidence:  # fmt: skip
    """The maximum over log precisions and the log noise, by L-BFGS."""
    log_delta = torch.zeros(len(layers.names), dtype=torch.float64, requires_grad=True)
    numbers = subject.classes == 0
    spread = (subject.y - layers.outputs).square().mean().sqrt().clamp(min=1e-3) if numbers else torch.ones(())
    log_noise = spread.log().double().clone().requires_grad_()
    free = [log_delta, log_noise] if numbers else [log_delta]
    search = torch.optim.LBFGS(free, lr=0.5, max_iter=iterations, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        beyond = sum((f.abs() - BOUND).clamp(min=0).square().sum() for f in free)
        lost = -value(log_delta.clamp(-BOUND, BOUND), log_noise.clamp(-BOUND, BOUND))[0] + beyond
        lost.backward()
        return lost

    search.step(closure)
    with torch.no_grad():
        total, fit = value(log_delta.clamp(-BOUND, BOUND), log_noise.clamp(-BOUND, BOUND))
        noise = float(log_noise.exp()) if numbers else None
        whole = torch.einsum("l,lmn->mn", (-log_delta).exp(), kernels) / (1 if noise is None else noise**2)
        eye = torch.eye(len(whole), dtype=torch.float64)
        gamma = len(whole) - float(torch.linalg.inv(eye + whole).diagonal().sum())
    return Evidence(float(total), float(fit), float(total - fit), tuple(log_delta.exp().tolist()), noise, gamma)


def refined_prediction(subject: Subject, layers: Layers, test: Layers, found: Evidence) -> tuple[Tensor, Tensor]:
    """Mean and variance of test targets under the linear model at its optimum, for numbers, [M'] each."""
    assert found.noise is not None
    weights = 1 / torch.tensor(found.precisions, dtype=torch.float64)
    target = (subject.y - layers.outputs).flatten() + layers.along
    whole = (
        torch.einsum("l,lmn->mn", weights, layers.kernels(layers)) + found.noise**2 * torch.eye(len(target)).double()
    )
    chol = torch.linalg.cholesky(whole)
    across = torch.einsum("l,lmn->mn", weights, test.kernels(layers))
    mean = test.outputs.flatten() - test.along + across @ torch.cholesky_solve(target.unsqueeze(1), chol).squeeze(1)
    explained = torch.linalg.solve_triangular(chol, across.T, upper=False).square().sum(0)
    return mean, weights @ test.variances() - explained + found.noise**2
