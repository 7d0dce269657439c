"""The Laplace evidence, and the prior (and noise) that maximise it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.errors import NotDefined
from whence.likelihoods import Gaussian
from whence.linalg.gaussian import Damping
from whence.posteriors.laplace.joint_evidence import best_jointly, is_dense
from whence.recording.blocks import Block

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace


def deviation(posterior: Laplace, blocks: Sequence[Block]) -> Tensor:
    """θ − μ₀ of some blocks, flat, in float64; θ are the trained weights, or those of the refined linear model."""
    pieces, shift = [], posterior.network.shift or {}
    for block in blocks:
        for p in block.params:
            theta = posterior.network.params[p.name].detach().double()
            theta = theta + shift[p.name].double() if p.name in shift else theta
            mean = posterior.prior_mean if isinstance(posterior.prior_mean, float) else posterior.prior_mean[p.name]
            pieces.append((theta - mean).reshape(-1))
    flat = torch.cat(pieces)
    return flat if posterior.curvature.keep is None else flat[posterior.curvature.keep]


def scatter(posterior: Laplace, blocks: Sequence[Block]) -> float:
    """(θ* − μ₀)ᵀ Δ (θ* − μ₀) of some blocks."""
    params = [p for b in blocks for p in b.params]
    delta = posterior.prior.flat(params).to(posterior.network.device)
    delta = delta if posterior.curvature.keep is None else delta[posterior.curvature.keep]
    return float((deviation(posterior, blocks).square() * delta).sum())


def log_evidence(posterior: Laplace) -> Tensor:
    """s log p(D|θ*) − ½ [(θ*−μ₀)ᵀ Δ (θ*−μ₀) + log det(s H + Δ) − log det Δ], in float64."""
    if posterior.damping is Damping.FACTORED:
        raise NotDefined("the evidence is not defined for damping='factored'; use damping='exact'.")
    total = torch.tensor(-posterior.record.loss * posterior.data_scale, dtype=torch.float64)
    for gaussian, blocks in posterior.gaussians():
        total -= 0.5 * (scatter(posterior, blocks) + gaussian.log_det_ratio().cpu())
    return total


def occam(values: Tensor, kernel: int, squares: float, scale: float) -> Callable[[float], tuple[float, float]]:
    """−½ [δ q + Σ log(1 + s λ / δ)] and its derivative in log δ, for δ times the current prior.

    ``values`` are curvature eigenvalues relative to the current prior, ``squares`` is q = (θ*−μ₀)ᵀ Δ (θ*−μ₀).
    The derivative vanishes at MacKay's fixed point δ = γ / q.
    """
    lam = scale * values.double()

    def value(log_delta: float) -> tuple[float, float]:
        delta = math.exp(log_delta)
        ratio = lam / delta
        evidence = -0.5 * (delta * squares + float(torch.log1p(ratio).sum()))
        gamma = float((ratio / (1 + ratio)).sum())
        return evidence, 0.5 * (gamma - delta * squares)

    return value


def maximise(objective: Callable[[float], tuple[float, float]], low: float = -30.0, high: float = 30.0) -> float:
    """The log δ where the derivative γ − δ q vanishes (γ decreases with δ and δ q increases, so there is one root)."""
    return root(lambda log_delta: objective(log_delta)[1], low, high)


def root(falling: Callable[[float], float], low: float, high: float) -> float:
    """The root of a decreasing function, by bisection."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def best_dense(posterior: Laplace, noisy: bool) -> Laplace:
    """The precision of every layer, and the noise, where one dense curvature is that of all layers."""
    squares = [scatter(posterior, [block]) for block in posterior.blocks]
    return best_jointly(posterior, torch.tensor(squares, dtype=torch.float64), noisy)


def best_precision(posterior: Laplace, per_layer: bool) -> Laplace:
    """The posterior whose prior maximises the evidence: one factor for all layers, or one per layer."""
    if per_layer and is_dense(posterior):
        return best_dense(posterior, noisy=False)
    spectra = []
    for gaussian, blocks in posterior.gaussians():
        values = gaussian.spectral.values.clamp(min=0) / gaussian.delta
        spectra.append((values.flatten(), gaussian.spectral.kernel, scatter(posterior, blocks), blocks))
    if not per_layer:
        values = torch.cat([v for v, _, _, _ in spectra])
        squares = sum(q for _, _, q, _ in spectra)
        factor = math.exp(maximise(occam(values, 0, squares, posterior.scale)))
        return _with(posterior, {p.name: factor for b in posterior.blocks for p in b.params})
    if posterior.curvature.joint:
        return _per_layer_joint(posterior)
    factors: dict[str, float] = {}
    for values, kernel, squares, blocks in spectra:
        factor = math.exp(maximise(occam(values, kernel, squares, posterior.scale)))
        factors.update({p.name: factor for b in blocks for p in b.params})
    return _with(posterior, factors)


def _per_layer_joint(posterior: Laplace, rounds: int = 200) -> Laplace:
    """MacKay's fixed point δ_b ← γ_b / q_b where layers are correlated, γ_b = Σ_i (1 − δ_b Σ_ii)."""
    if posterior.curvature.keep is not None:
        raise NotDefined("per-layer priors inside a subnetwork mask are not defined; use per_layer=False.")
    for _ in range(rounds):
        variance = posterior.variance()
        factors, moved = {}, 0.0
        for block in posterior.blocks:
            flat = block.gather(variance).double().cpu()
            delta = posterior.prior.flat(list(block.params))
            gamma = float((1 - delta * flat).sum())
            factor = max(gamma, 1e-8) / max(scatter(posterior, [block]), 1e-300)
            factor = min(max(factor, 1e-3), 1e3)
            moved = max(moved, abs(math.log(factor)))
            factors.update({p.name: factor for p in block.params})
        posterior = _with(posterior, factors)
        if moved < 1e-6:
            break
    return posterior


def _with(posterior: Laplace, factors: dict[str, float]) -> Laplace:
    limited = {name: min(max(f, 1e-12), 1e12) for name, f in factors.items()}
    return posterior.under(posterior.prior.scaled_by(limited))


def best_noise(posterior: Laplace) -> Laplace:
    """The Gaussian noise σ that maximises the evidence at this prior.

    Its derivative in log σ is SSE / σ² − n + k γ(σ), with k = 1 (2 for the empirical Fisher, which is ∝ 1 / σ⁴).
    Each term decreases with σ, so there is one root, found by bisection.
    """
    record, scale = posterior.record, posterior.data_scale
    assert isinstance(posterior.likelihood, Gaussian)
    known = float(posterior.likelihood.noise)
    power = posterior.curvature.options.curvature.noise_power // 2
    spectra = [(g.spectral.values.double().clamp(min=0).flatten() * g.scale, g.delta) for g, _ in posterior.gaussians()]
    errors, count = record.squares * scale, record.targets * scale

    def slope(log_noise: float) -> float:
        moved = (known / math.exp(log_noise)) ** (2 * power)
        gamma = sum(float((moved * v / (moved * v + delta)).sum()) for v, delta in spectra)
        return errors / math.exp(2 * log_noise) - count + power * gamma

    middle = 0.5 * math.log(max(errors / max(count, 1e-300), 1e-30))
    noise = math.exp(root(slope, middle - 40.0, middle + 40.0))
    return replace(posterior, likelihood=Gaussian(noise))
