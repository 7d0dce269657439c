"""Slow, obvious twins for the sampler: exact posteriors, NUTS from a list of leaves, targets to sample.

Index legend: K chains, P parameters, N examples, D features.
"""

import math

import torch
from torch import Tensor


def linear_regression(x: Tensor, y: Tensor, noise: float, precision: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance of (weights, bias) of y = x w + b + noise, prior N(0, 1 / precision)."""
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    h = design.T @ design / noise**2 + precision * torch.eye(design.shape[1], dtype=x.dtype)
    covariance = torch.linalg.inv(h)
    return covariance @ design.T @ y / noise**2, covariance


class GaussianTarget:
    """U = (q - mean)^T A (q - mean) / 2."""

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        self.mean, self.covariance, self.precision = mean, covariance, torch.linalg.inv(covariance)

    def __call__(self, q: Tensor) -> tuple[Tensor, Tensor]:
        gradient = (q - self.mean) @ self.precision
        return 0.5 * ((q - self.mean) * gradient).sum(1), gradient

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        noise = torch.randn(count, len(self.mean), generator=generator, dtype=self.mean.dtype)
        return self.mean + noise @ torch.linalg.cholesky(self.covariance).T


def correlated(size: int, seed: int = 0) -> GaussianTarget:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    covariance = root @ root.T / size + 0.1 * torch.eye(size, dtype=torch.float64)
    return GaussianTarget(torch.randn(size, generator=generator, dtype=torch.float64), covariance)


class Anharmonic:
    """U = sum q^4 / 4 + q_0 q_1: not Gaussian, without constant curvature."""

    def __call__(self, q: Tensor) -> tuple[Tensor, Tensor]:
        coupling = torch.zeros_like(q)
        coupling[:, 0], coupling[:, 1] = q[:, 1], q[:, 0]
        return (q**4).sum(1) / 4 + q[:, 0] * q[:, 1], q**3 + coupling


class Funnel:
    """Neal's funnel: v ~ N(0, 9), the others ~ N(0, e^v)."""

    def __call__(self, q: Tensor) -> tuple[Tensor, Tensor]:
        v, rest = q[:, 0], q[:, 1:]
        scaled = rest * (-v).exp().unsqueeze(1)
        squares = (rest * scaled).sum(1)
        gradient = torch.cat([(v / 9 - 0.5 * squares + 0.5 * rest.shape[1]).unsqueeze(1), scaled], dim=1)
        return v.square() / 18 + 0.5 * squares + 0.5 * rest.shape[1] * v, gradient


def _turns(block: list[tuple], inverse: Tensor) -> bool:
    """The U-turn criterion of a list of leaves (q, r), with its ends counted half."""
    rho = sum(r for _, r in block) - 0.5 * (block[0][1] + block[-1][1])
    return bool((inverse * block[0][1]) @ rho <= 0) or bool((inverse * block[-1][1]) @ rho <= 0)


def nuts(target, q: Tensor, r: Tensor, step: float, inverse: Tensor, leaves: Tensor, turn: Tensor, join: Tensor):
    """One NUTS transition of one chain from momentum r: (draw, depth, leapfrogs, divergent).

    The whole trajectory is a list, in time order. ``leaves``, ``turn`` and ``join`` are the uniform numbers that
    choose inside a doubling, its direction, and between it and what was there.
    """

    def one(position: Tensor) -> tuple[float, Tensor]:
        value, gradient = target(position.unsqueeze(0))
        return float(value), gradient[0]

    def energy(position: Tensor, momentum: Tensor) -> float:
        return one(position)[0] + 0.5 * float(momentum @ (inverse * momentum))

    start = energy(q, r)
    trajectory, draw, total, used = [(q, r)], q, 0.0, 0  # total: log of the summed weights
    for depth in range(len(turn)):
        sign = 1.0 if turn[depth] < 0.5 else -1.0
        at, added, weight, proposal = trajectory[-1 if sign > 0 else 0], [], -math.inf, None
        for leaf in range(2**depth):
            position, momentum = at
            momentum = momentum - 0.5 * sign * step * one(position)[1]
            position = position + sign * step * inverse * momentum
            momentum = momentum - 0.5 * sign * step * one(position)[1]
            at = (position, momentum)
            added.append(at)
            gain = start - energy(*at)
            used += 1
            if not gain > -1000:
                return draw, depth + 1, used, True
            weight = float(torch.logaddexp(torch.tensor(weight).double(), torch.tensor(gain).double()))
            if math.log(leaves[2**depth - 1 + leaf]) < gain - weight:
                proposal = position
            size = 2
            while (leaf + 1) % size == 0:
                if _turns(added[-size:], inverse):
                    return draw, depth + 1, used, False
                size *= 2
        if math.log(join[depth]) < weight - total:
            draw = proposal
        total = float(torch.logaddexp(torch.tensor(total).double(), torch.tensor(weight).double()))
        trajectory = trajectory + added if sign > 0 else added[::-1] + trajectory
        if _turns(trajectory, inverse):
            return draw, depth + 1, used, False
    return draw, len(turn), used, False
