"""Mean-field variational inference of many networks together, with local reparametrisation.

Minimised for each network: the mean of ½ (y − f)² / σ² + log σ, plus KL(q ‖ p) / N; σ is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from reproductions.linearised.data import Part
from reproductions.linearised.stack import BLOCK, Job, Loss, Schedule, Streams, Weights, descend, detached, start

FIRST_STD = 0.05  # of every weight


@dataclass(frozen=True)
class MeanField:
    """Independent Gaussians of every weight of every network, and the noise that was learned with them."""

    mean: Weights
    std: Weights
    noise: Tensor  # [B]

    def draw(self, network: int, count: int, generator: torch.Generator) -> Weights:
        """Weights of one network, [S, *shape]."""
        found = {}
        for name, mean in self.mean.items():
            noise = torch.randn(count, *mean.shape[1:], generator=generator)
            found[name] = mean[network] + self.std[name][network] * noise
        return found


def kl(mean: Weights, std: Weights, precision: Tensor) -> Tensor:
    """KL(q ‖ N(0, 1/δ)) of each network, [B]."""
    total = torch.zeros_like(precision)
    for name, mu in mean.items():
        delta = precision.view(-1, *[1] * (mu.dim() - 1))
        each = 0.5 * (delta * (mu.square() + std[name].square()) - 1 - (delta * std[name].square()).log())
        total = total + each.flatten(1).sum(1)
    return total


def train_variational(part: Part, jobs: Sequence[Job], hidden: int, schedule: Schedule) -> MeanField:
    """The prior precision of a network is its job's ``decay``."""
    streams = Streams(jobs, part, "variational")
    mean = {n: v.requires_grad_() for n, v in start(streams, part.x.shape[2], hidden).items()}
    first = torch.tensor(FIRST_STD).expm1().log()
    rho = {n: torch.full_like(v, float(first)).requires_grad_() for n, v in mean.items()}
    log_noise = torch.full((len(jobs),), -1.0).requires_grad_()
    precision = torch.tensor([job.decay for job in jobs])
    sizes = torch.tensor([float(size) for size in streams.sizes])

    def prepare() -> Loss:
        noises = [streams.normal(BLOCK, schedule.batch, units) for units in (hidden, 1)]
        steps = iter(zip(*(noise.unbind(1) for noise in noises), strict=True))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            std = {n: softplus(v) for n, v in rho.items()}
            one, two = next(steps)
            inner = _layer("0", mean, std, x, one).relu()
            errors = (_layer("2", mean, std, inner, two) - y).square().mean((1, 2))
            fit = 0.5 * errors * (-2 * log_noise).exp() + log_noise
            return fit + kl(mean, std, precision) / sizes

        return loss

    descend(part, jobs, streams, [*mean.values(), *rho.values(), log_noise], prepare, schedule)
    std = {n: softplus(v.detach()) for n, v in rho.items()}
    return MeanField(detached(mean), std, log_noise.detach().exp())


def _layer(name: str, mean: Weights, std: Weights, x: Tensor, noise: Tensor) -> Tensor:
    """A draw of the layer's outputs, another one for each row: N(x μᵀ, x² (σ²)ᵀ)."""
    weight, bias = f"{name}.weight", f"{name}.bias"
    centre = torch.baddbmm(mean[bias].unsqueeze(1), x, mean[weight].transpose(1, 2))
    variance = torch.baddbmm(std[bias].square().unsqueeze(1), x.square(), std[weight].square().transpose(1, 2))
    return centre + variance.sqrt() * noise
