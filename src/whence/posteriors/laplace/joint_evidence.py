"""The precision of every layer, and the noise, that maximise the evidence under one dense curvature of all layers.

With a_b the log factor of layer b, u the log factor of the noise and D = Δ exp(a), the evidence is

    s log p(D|θ*, u) − ½ [Σ_b exp(a_b) q_b + log det M],   M = I + s e^{−κu} D^{-1/2} H D^{-1/2},

with q_b = (θ*−μ₀)ᵀ Δ (θ*−μ₀) of the layer, and κ = 2 (4 for the empirical Fisher). Its derivatives are
½ (γ_b − exp(a_b) q_b) with γ_b = Σ_{i∈b} (1 − (M⁻¹)_ii), and SSE / σ² − n + ½ κ γ. Each value needs a Cholesky
factor of M; MacKay's fixed point, whose maximum is the same, needs thousands of eigendecompositions.

Index legend: B layers, P weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.likelihoods import Gaussian
from whence.linalg.spectral import DenseSpectral
from whence.linalg.structures import Dense, Symmetric

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

BOUND = math.log(1e12)  # of the log factor of a precision
NOISE_BOUND = 40.0  # of that of the noise, around the root mean square of the residuals
EVALUATIONS = 400


def is_dense(posterior: Laplace) -> bool:
    """Whether one positive semi-definite matrix is the curvature of all layers (a Hessian may be indefinite)."""
    curvature = posterior.curvature
    structure = curvature.structures[0]
    whole = curvature.joint and curvature.keep is None
    return whole and isinstance(structure, Dense) and not isinstance(structure, Symmetric)


def best_jointly(posterior: Laplace, squares: Tensor, noisy: bool) -> Laplace:
    """The maximum over precisions, and over the noise where it is free; ``squares`` are the q_b, [B]."""
    objective = _Objective.of(posterior, squares, noisy)
    free = torch.zeros(len(squares) + noisy, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS(
        [free], lr=1.0, max_iter=EVALUATIONS, max_eval=EVALUATIONS, tolerance_grad=1e-8, tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        value, slope = objective.at(free.detach())
        free.grad = -slope
        return -value

    search.step(closure)
    found = objective.bounded(free.detach())[0]
    factors = found[: len(squares)].exp().tolist()
    by_name = {p.name: f for block, f in zip(posterior.blocks, factors, strict=True) for p in block.params}
    chosen = posterior.under(posterior.prior.scaled_by(by_name))
    return replace(chosen, likelihood=Gaussian(objective.noise * math.exp(float(found[-1])))) if noisy else chosen


@dataclass(frozen=True)
class _Objective:
    """The evidence, up to a constant, and its derivatives."""

    whitened: Tensor  # s Δ^{-1/2} H Δ^{-1/2}, [P, P]
    layer: Tensor  # of every weight, [P]
    squares: Tensor  # [B]
    power: float  # κ
    noise: float  # at u = 0
    errors: float  # SSE / σ² at u = 0
    count: float  # targets; 0 where the noise is not free
    middle: float  # u of the residuals

    @classmethod
    def of(cls, posterior: Laplace, squares: Tensor, noisy: bool) -> _Objective:
        ((gaussian, _),) = posterior.gaussians()
        spectral = gaussian.spectral
        assert isinstance(spectral, DenseSpectral)
        # Δ^{-1/2} H Δ^{-1/2} = Q diag(λ) Qᵀ / δ with Q = D^{1/2} B: no eigenvalue is below 0, unlike rounded ones of H
        vectors = spectral.vectors.double()
        vectors = vectors if spectral.ratio is None else vectors / spectral.ratio.root().to(vectors).unsqueeze(1)
        whitened = vectors * (posterior.scale / gaussian.delta * spectral.values.double().clamp(min=0)) @ vectors.mT
        sizes = torch.tensor([sum(p.numel for p in b.params) for b in posterior.blocks])
        layer = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(whitened.device)
        noise, errors, count, middle = 1.0, 0.0, 0.0, 0.0
        if noisy:
            assert isinstance(posterior.likelihood, Gaussian)
            noise = float(posterior.likelihood.noise)
            errors = posterior.record.squares * posterior.data_scale / noise**2
            count = posterior.record.targets * posterior.data_scale
            middle = 0.5 * math.log(max(errors / max(count, 1e-300), 1e-30))
        power = float(posterior.curvature.options.curvature.noise_power)
        return cls(whitened, layer, squares.to(whitened.device), power, noise, errors, count, middle)

    def bounded(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """Inside the bounds, and how far it was beyond them."""
        count = len(self.squares)
        low, high = torch.full_like(free, -BOUND), torch.full_like(free, BOUND)
        low[count:], high[count:] = self.middle - NOISE_BOUND, self.middle + NOISE_BOUND
        inside = free.clamp(low, high)
        return inside, free - inside

    def at(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """Value and derivatives; beyond the bounds a parabola leads back."""
        inside, beyond = (t.to(self.whitened.device) for t in self.bounded(free))
        logs, log_noise = inside[: len(self.squares)], float(inside[len(self.squares) :].sum())
        root = (-0.5 * logs).exp()[self.layer]
        whole = math.exp(-self.power * log_noise) * root.unsqueeze(1) * self.whitened * root
        whole.diagonal().add_(1.0)
        chol = _cholesky(whole)
        left = torch.cholesky_inverse(chol).diagonal()  # of the variance under the prior, [P]
        gamma = torch.zeros_like(self.squares).index_add_(0, self.layer, 1 - left)  # [B]
        penalty = logs.exp() * self.squares
        errors = self.errors * math.exp(-2 * log_noise)
        value = -0.5 * (penalty.sum() + 2 * chol.diagonal().log().sum() + errors + beyond.square().sum())
        slopes = [0.5 * (gamma - penalty)]
        if len(free) > len(self.squares):
            value = value - self.count * log_noise
            slopes.append((errors - self.count + 0.5 * self.power * gamma.sum()).reshape(1))
        return value.cpu(), (torch.cat(slopes) - beyond).cpu()


def _cholesky(matrix: Tensor) -> Tensor:
    """Of a matrix with eigenvalues from 1 up; where a step of the search made it huge, rounding is covered."""
    chol, failed = torch.linalg.cholesky_ex(matrix)
    extra = torch.finfo(matrix.dtype).eps * len(matrix) * float(matrix.diagonal().amax())
    while int(failed):
        matrix.diagonal().add_(extra)
        chol, failed = torch.linalg.cholesky_ex(matrix)
        extra *= 10
    return chol
