"""Convolutions and batch normalisation: the exact evidence of classifiers, by their Jacobians.

Linearised at θ*, f(x) = f*(x) + J(x) (θ − θ*) with θ ~ N(0, Δ⁻¹) is a Gaussian process with mean m = f* − Jθ* and
kernel K = Σ_b J_b J_bᵀ / δ_b. Its Laplace evidence at outputs f with Λ = R Rᵀ there is

    log p(y | f) − ½ Σ_b δ_b q_b − ½ log det(I + Rᵀ K R).

- **At the trained weights** f = f* and q_b = ‖θ*_b‖².
- **At the linear model's optimum** f = m + K a with a = ∇ log p(y | f), found by Newton's method (Rasmussen and
  Williams 2006, "Gaussian processes for machine learning", section 3.5), and q_b = aᵀ K_b a / δ_b².

Index legend: N examples, C classes, L layers, P weights, M = N C, S draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from reproductions.linearised.depth.config import Config
from reproductions.linearised.depth.kernels import BOUND
from reproductions.linearised.depth.networks import IMAGE_NETWORKS, image_network, loss, trained
from reproductions.linearised.depth.subjects import Subject, subject
from reproductions.store import Values

CHUNK = 50  # examples whose Jacobians are held at a time
DRAWS = 500  # of the outputs, for the predictive
NEWTON = 30
CLOSE = 1e-6  # nats


@dataclass(frozen=True)
class Jacobian:
    """Of all outputs in the weights of each layer that has any."""

    blocks: dict[str, Tensor]  # [N, C, P_b]
    outputs: Tensor  # [N, C]
    squares: Tensor  # ‖θ*_b‖², [L]
    along: Tensor  # J θ*, [N, C]

    def kernels(self, other: Jacobian) -> Tensor:
        """[L, M, M']."""
        return torch.stack([a.flatten(0, 1) @ other.blocks[n].flatten(0, 1).T for n, a in self.blocks.items()])

    def variances(self, precisions: Tensor) -> Tensor:
        """Of the outputs of each example, [N, C, C]."""
        return torch.stack([a @ a.mT / d for a, d in zip(self.blocks.values(), precisions, strict=True)]).sum(0)


def jacobian_of(network: nn.Module, x: Tensor) -> Jacobian:
    """In evaluation mode, so that examples do not depend on each other."""
    params = {n: p.detach() for n, p in network.named_parameters()}
    buffers = dict(network.named_buffers())

    def outputs(weights: dict[str, Tensor], one: Tensor) -> Tensor:
        found: Tensor = functional_call(network, (weights, buffers), (one.unsqueeze(0),))
        return found.squeeze(0)

    network.eval()
    each = vmap(jacrev(outputs), in_dims=(None, 0), chunk_size=CHUNK)(params, x)  # by parameter [N, C, *shape]
    layers = list(dict.fromkeys(n.rpartition(".")[0] for n in params))
    names = {layer: [n for n in params if n.rpartition(".")[0] == layer] for layer in layers}
    blocks = {layer: torch.cat([each[n].flatten(2) for n in own], 2) for layer, own in names.items()}
    theta = {layer: torch.cat([params[n].flatten() for n in own]) for layer, own in names.items()}
    along = torch.stack([blocks[layer] @ theta[layer] for layer in layers]).sum(0)
    squares = torch.stack([value.square().sum() for value in theta.values()])
    with torch.no_grad():
        return Jacobian(blocks, network(x), squares, along)


@dataclass(frozen=True)
class Found:
    """The largest evidence, its parts, and what predictions need."""

    fit: float  # log p(y | f)
    penalty: float  # −½ Σ δ q
    volume: float  # −½ log det(I + Rᵀ K R)
    gamma: float
    precisions: Tensor  # [L]
    push: Tensor  # a with f − m = K a at the linear optimum; unused at the trained weights, [M]
    p: Tensor  # probabilities at f, [N, C]

    @property
    def value(self) -> float:
        return self.fit + self.penalty + self.volume


def times_root(rows: Tensor, p: Tensor) -> Tensor:
    """A R for some rows A, [..., M], with R = diag(√p) − p √pᵀ of each example: Λ = R Rᵀ = diag(p) − p pᵀ."""
    each = rows.unflatten(-1, p.shape)
    return ((each - (each * p).sum(-1, keepdim=True)) * p.sqrt()).flatten(-2)


def root_times(column: Tensor, p: Tensor) -> Tensor:
    """R v of each example, [N, C] → [N, C]."""
    half = p.sqrt() * column
    return half - p * half.sum(1, keepdim=True)


def sandwiched(kernels: Tensor, p: Tensor) -> Tensor:
    """Rᵀ K_b R, [L, M, M]."""
    half = times_root(kernels, p)  # K_b R
    return times_root(half.mT, p).mT


def log_likelihood(outputs: Tensor, y: Tensor) -> float:
    return -float(nn.functional.cross_entropy(outputs, y, reduction="sum"))


def best_precisions(inner: Tensor, squares: Tensor, start: Tensor, iterations: int) -> tuple[Tensor, float, float]:
    """log δ_b with the highest −½ Σ δ q − ½ log det(I + Σ_b S_b / δ_b); that log det, and γ.

    The derivative in log δ_b is ½ (γ_b − δ_b q_b), γ_b = tr((I + S)⁻¹ S_b) / δ_b.
    """
    free = start.clone().requires_grad_()
    search = torch.optim.LBFGS([free], max_iter=iterations, line_search_fn="strong_wolfe")
    eye = torch.eye(inner.shape[1], dtype=inner.dtype)

    def at(logs: Tensor) -> tuple[float, Tensor, Tensor]:
        inside = logs.clamp(-BOUND, BOUND)
        chol = torch.linalg.cholesky(eye + torch.einsum("l,lmn->mn", (-inside).exp(), inner))
        gamma = (torch.cholesky_inverse(chol) * inner).sum((1, 2)) * (-inside).exp()
        return 2 * float(chol.diagonal().log().sum()), gamma, inside

    def closure() -> Tensor:
        volume, gamma, inside = at(free.detach())
        penalty, beyond = inside.exp() * squares, free.detach() - inside
        free.grad = 0.5 * (penalty - gamma) + beyond
        return 0.5 * (penalty.sum() + volume + beyond.square().sum())

    search.step(closure)
    volume, gamma, inside = at(free.detach())
    return inside, volume, float(gamma.sum())


def at_trained(config: Config, data: Subject, own: Jacobian, kernels: Tensor) -> Found:
    p = own.outputs.softmax(1)
    start = torch.zeros(len(own.blocks), dtype=torch.float64)
    logs, volume, gamma = best_precisions(sandwiched(kernels, p), own.squares, start, config.iterations)
    precisions = logs.exp()
    penalty = -0.5 * float(precisions @ own.squares)
    fit = log_likelihood(own.outputs, data.y)
    return Found(fit, penalty, -0.5 * volume, gamma, precisions, torch.zeros(own.outputs.numel()).double(), p)


def at_optimum(config: Config, data: Subject, own: Jacobian, kernels: Tensor, start: Found) -> Found:
    """Precisions and optimum in turns, from those at the trained weights."""
    mean = own.outputs - own.along
    logs, found = start.precisions.log(), start
    for _ in range(config.rounds):
        kernel = torch.einsum("l,lmn->mn", (-logs).exp(), kernels)
        push = newton(mean, kernel, data.y)
        outputs = mean + (kernel @ push).view_as(mean)
        p = outputs.softmax(1)
        squares = torch.einsum("m,lmn,n->l", push, kernels, push) * (-2 * logs).exp()
        inner = sandwiched(kernels, p)
        volume, gamma = _volume(inner, logs)
        penalty = -0.5 * float(logs.exp() @ squares)
        found = Found(log_likelihood(outputs, data.y), penalty, -0.5 * volume, gamma, logs.exp(), push, p)
        logs = best_precisions(inner, squares, logs, config.iterations)[0]
    return found


def _volume(inner: Tensor, logs: Tensor) -> tuple[float, float]:
    chol = torch.linalg.cholesky(
        torch.eye(inner.shape[1], dtype=inner.dtype) + torch.einsum("l,lmn->mn", (-logs).exp(), inner)
    )
    gamma = len(chol) - float(torch.cholesky_inverse(chol).diagonal().sum())
    return 2 * float(chol.diagonal().log().sum()), gamma


def newton(mean: Tensor, kernel: Tensor, y: Tensor) -> Tensor:
    """a with f = m + K a and a = ∇ log p(y | f): the maximum of log p(y | f) − ½ aᵀ K a, [M]."""
    target = nn.functional.one_hot(y, mean.shape[1]).double()
    push = torch.zeros(mean.numel(), dtype=torch.float64)
    eye = torch.eye(mean.numel(), dtype=torch.float64)

    def objective(push: Tensor) -> tuple[float, Tensor]:
        away = kernel @ push
        outputs = mean + away.view_as(mean)
        return log_likelihood(outputs, y) - 0.5 * float(push @ away), outputs

    value, outputs = objective(push)
    for _ in range(NEWTON):
        p = outputs.softmax(1)
        away = outputs - mean
        wide = (p * away - p * (p * away).sum(1, keepdim=True) + target - p).flatten()  # Λ (f − m) + ∇
        chol = torch.linalg.cholesky(eye + sandwiched(kernel.unsqueeze(0), p)[0])
        inside = times_root(kernel @ wide, p)  # Rᵀ K (…)
        solved = torch.cholesky_solve(inside.unsqueeze(1), chol).view_as(mean)
        whole = wide - root_times(solved, p).flatten()
        step = 1.0
        for _ in range(20):  # halve the step until the objective does not fall
            trial = push + step * (whole - push)
            reached, there = objective(trial)
            if reached >= value - 1e-9:
                break
            step *= 0.5
        gained, push, value, outputs = reached - value, trial, reached, there
        if gained < CLOSE:
            break
    return push


@dataclass(frozen=True)
class Predictive:
    """Test probabilities of the linear model: the mean over draws of its outputs."""

    own: Jacobian
    found: Found
    moved: bool  # to the linear model's optimum
    chol: Tensor  # of I + Rᵀ K R

    @classmethod
    def of(cls, own: Jacobian, kernels: Tensor, found: Found, moved: bool) -> Predictive:
        kernel = torch.einsum("l,lmn->mn", 1 / found.precisions, kernels)
        inner = torch.eye(len(kernel), dtype=kernel.dtype) + sandwiched(kernel.unsqueeze(0), found.p)[0]
        return cls(own, found, moved, torch.linalg.cholesky(inner))

    def probabilities(self, test: Jacobian, across: Tensor) -> Tensor:
        """[N', C]; ``across`` are the kernels of test and training outputs, [L, M', M]."""
        across = torch.einsum("l,lmn->mn", 1 / self.found.precisions, across)
        mean, count = test.outputs, len(test.outputs)
        if self.moved:
            mean = mean - test.along + (across @ self.found.push).view_as(mean)
        rooted = times_root(across, self.found.p)  # K* R
        part = torch.linalg.solve_triangular(self.chol, rooted.T, upper=False).T.reshape(count, mean.shape[1], -1)
        cov = test.variances(self.found.precisions) - part @ part.mT
        values, vectors = torch.linalg.eigh(cov)
        spread = vectors * values.clamp(min=0).sqrt().unsqueeze(1)
        noise = torch.randn(DRAWS, mean.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return (mean.unsqueeze(1) + noise @ spread.mT).softmax(2).mean(1)


def by_image_network(config: Config, name: str, seed: int) -> Values:
    """Every network: evidence and test NLL at the trained weights and at the linear model's optimum."""
    data = subject(config, name, seed)
    return {kind: measured(config, data, kind, seed) for kind in IMAGE_NETWORKS}


def measured(config: Config, data: Subject, kind: str, seed: int) -> Values:
    torch.manual_seed(seed)
    network = image_network(kind, tuple(data.x.shape[1:]), config.widths[-1])
    single = replace(data, x=data.x.float(), y=data.y)
    trained(config, network.float(), single, config.image_decay).double()
    own = jacobian_of(network, data.x)
    kernels = own.kernels(own)
    at_weights = at_trained(config, data, own, kernels)
    best = at_optimum(config, data, own, kernels, at_weights)
    found: Values = {"train loss": float(loss(data, own.outputs))}
    with torch.no_grad():
        outputs = torch.cat([network(part) for part in data.test_x.split(CHUNK)])
    found["alone"] = float(nn.functional.cross_entropy(outputs, data.test_y))
    found["accuracy"] = float((outputs.argmax(1) == data.test_y).double().mean())
    predictives = {
        "trained": Predictive.of(own, kernels, at_weights, moved=False),
        "refined": Predictive.of(own, kernels, best, moved=True),
    }
    nll = dict.fromkeys(predictives, 0.0)
    for part, y in zip(data.test_x.split(CHUNK), data.test_y.split(CHUNK), strict=True):
        test = jacobian_of(network, part)
        across = test.kernels(own)
        for where, predictive in predictives.items():
            probs = predictive.probabilities(test, across)
            nll[where] -= float(probs.gather(1, y.unsqueeze(1)).clamp(min=1e-300).log().sum())
    for where, given in (("trained", at_weights), ("refined", best)):
        found[where] = {
            "evidence": given.value, "fit": given.fit, "penalty": given.penalty, "volume": given.volume,
            "occam": given.penalty + given.volume, "gamma": given.gamma, "precisions": given.precisions.tolist(),
            "nll": nll[where] / len(data.test_y),
        }  # fmt: skip
    assert all(math.isfinite(found[where]["evidence"]) for where in nll)
    return found
