"""Is it ours? The Kronecker posterior of eq. 9 once more, in plain torch, without the library's curvature.

Index legend: N examples, C classes, D inputs and O outputs of a layer, S draws.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import whence
from reproductions.ritter2018.mnist import DETERMINISTIC, Subject
from reproductions.store import Values

if TYPE_CHECKING:
    from reproductions.ritter2018.ood.config import Config

GROUPS = 10  # of draws, for their standard error
Factors = list[tuple[Tensor, Tensor]]  # E[Q] [D + 1, D + 1] and E[H] [O, O] of each layer, float64


def check(subject: Subject, config: Config) -> Values:
    """Weight variances, accuracy and entropies of the library beside those by hand, with the tuned hyperparameters.

    Draws differ, so that entropies agree up to the standard error that groups of draws show.
    """
    tuned = subject.laplace("kron", damping="factored")
    tau, scale = float(tuned.prior_precision), tuned.data_scale  # type: ignore[arg-type]
    fitted = subject.laplace("kron", tuned=None, copies=config.check_copies)
    posterior = fitted.with_damping("factored").with_prior(tau).with_data_scale(scale)
    factors = by_hand(subject, config.check_copies)
    roots = [covariance_roots(q, h, tau, scale * subject.train.size) for q, h in factors]
    layers = linear_layers(subject.network)
    test = subject.data.test
    assert test is not None
    sets = {"test": test.inputs, config.setup.outside[0]: subject.outside(config.setup.outside[0]).inputs}
    value: Values = {"variance": variance_difference(posterior, subject.network, roots), "entropy": {}}
    groups = averages(layers, roots, sets, config.check_draws, subject.seed)
    for name, x in sets.items():
        probs = groups[name].mean(0)
        apart = torch.tensor([entropy(group) for group in groups[name]], dtype=torch.float64)
        generator = torch.Generator(subject.context.device).manual_seed(config.draws_seed)
        ours = posterior.predict(x, method="sampled", num_samples=config.check_draws, generator=generator)
        plain = subject.method(DETERMINISTIC).predict(x, 1)
        value["entropy"][name] = {
            "library": float(ours.entropy.double().mean()),
            "by_hand": entropy(probs),
            "by_hand_se": float(apart.std()) / math.sqrt(len(apart)),
            "library_by_hand": entropy(ours.probs.double()),
            "deterministic": entropy(torch.softmax(forward([(m.weight, m.bias) for m in layers], x).double(), 1)),
            "deterministic_library": float(plain.entropy.double().mean()),
        }
        if name == "test":
            value["accuracy"] = {
                "library": float((ours.labels == test.targets).double().mean()),
                "by_hand": float((probs.argmax(1) == test.targets).double().mean()),
            }
    return value


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """Of an MLP with ReLU between them, which is all that is assumed here."""
    return [module for module in network.modules() if isinstance(module, nn.Linear)]


@torch.no_grad()
def by_hand(subject: Subject, copies: int) -> Factors:
    """E[a aᵀ] and E[∂²loss/∂h²] (Gauss–Newton, all classes) of each layer: eq. 7 with the recursion of eq. 15.

    Over binarised copies; 0: over the grey images.
    """
    layers = linear_layers(subject.network)
    train = subject.train
    q = [torch.zeros(m.in_features + 1, m.in_features + 1, dtype=torch.float64, device=train.device) for m in layers]
    h = [torch.zeros(m.out_features, m.out_features, dtype=torch.float64, device=train.device) for m in layers]
    for x, _ in train.augmented(copies, seed=subject.seed) if copies else train:
        inputs, masks, a = [], [], x.flatten(1)
        for i, module in enumerate(layers):
            inputs.append(torch.cat([a, torch.ones_like(a[:, :1])], 1))
            out = a @ module.weight.mT + module.bias
            masks.append(out > 0)
            a = out if i == len(layers) - 1 else out.relu()
        p = torch.softmax(a, 1)
        # Λ = diag(p) − p pᵀ = R Rᵀ with R = (diag(p) − p pᵀ) diag(p)^{-1/2}; row c of g is column c of R.
        g = (torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)) / p.clamp(min=1e-30).sqrt().unsqueeze(1)
        g = g.mT  # [N, C, O]
        for i in reversed(range(len(layers))):
            q[i] += (inputs[i].mT @ inputs[i]).double()
            h[i] += (g.flatten(0, 1).mT @ g.flatten(0, 1)).double()
            if i:
                g = (g @ layers[i].weight) * masks[i - 1].unsqueeze(1)
    count = max(copies, 1) * train.size
    return [(a / count, b / count) for a, b in zip(q, h, strict=True)]


def covariance_roots(q: Tensor, h: Tensor, tau: float, n: float) -> tuple[Tensor, Tensor]:
    """Roots B of U⁻¹ = B Bᵀ for both factors U = √N E[·] + √τ I of eq. 9; with U = L Lᵀ, B = L⁻ᵀ."""

    def root(factor: Tensor) -> Tensor:
        eye = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        lower = torch.linalg.cholesky(math.sqrt(n) * factor + math.sqrt(tau) * eye)
        return torch.linalg.solve_triangular(lower.mT, eye, upper=True)

    return root(q), root(h)


def variance_difference(posterior: whence.Laplace, network: nn.Module, roots: list[tuple[Tensor, Tensor]]) -> Values:
    """Largest relative difference of a weight's variance, by layer."""
    found, value = posterior.variance(), {}
    names = {id(module): name for name, module in network.named_modules()}
    for module, (q, h) in zip(linear_layers(network), roots, strict=True):
        name = names[id(module)]
        mine = h.square().sum(1).unsqueeze(1) * q.square().sum(1)  # diag of H̃⁻¹ ⊗ Q̃⁻¹, [O, D + 1]
        theirs = torch.cat([found[f"{name}.weight"], found[f"{name}.bias"].unsqueeze(1)], 1).double()
        value[name] = float(((theirs - mine).abs() / mine).max())
    return value


@torch.no_grad()
def averages(
    layers: list[nn.Linear], roots: list[tuple[Tensor, Tensor]], sets: dict[str, Tensor], count: int, seed: int
) -> dict[str, Tensor]:
    """The average of eq. 4 over groups of draws W = W* + B_H Z B_Qᵀ (appendix B), [GROUPS, N, C] for each set."""
    generator = torch.Generator(layers[0].weight.device).manual_seed(1_000_000 + seed)
    found: dict[str, list[Any]] = {name: [0.0] * GROUPS for name in sets}
    each = count // GROUPS
    for index in range(GROUPS * each):
        weights = draw_weights(layers, roots, generator)
        for name, x in sets.items():
            found[name][index % GROUPS] += torch.softmax(forward(weights, x).double(), 1) / each
    return {name: torch.stack(groups) for name, groups in found.items()}


@torch.no_grad()
def draw_weights(
    layers: list[nn.Linear], roots: list[tuple[Tensor, Tensor]], generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each layer: W* + B_H Z B_Qᵀ."""
    weights = []
    for module, (q, h) in zip(layers, roots, strict=True):
        z = torch.randn(len(h), len(q), generator=generator, device=q.device)
        change = h.float() @ z @ q.float().mT  # [O, D + 1]
        weights.append((module.weight + change[:, :-1], module.bias + change[:, -1]))
    return weights


def forward(weights: list[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    """Logits of an MLP with ReLU, [N, C]."""
    a = x.flatten(1)
    for i, (weight, bias) in enumerate(weights):
        a = torch.addmm(bias, a, weight.mT)
        a = a if i == len(weights) - 1 else a.relu()
    return a


def entropy(probs: Tensor) -> float:
    """Mean of −Σ p log p."""
    return float(-torch.where(probs > 0, probs * probs.clamp(min=1e-300).log(), 0.0).sum(1).mean())
