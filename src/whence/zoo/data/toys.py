"""Toy sets, drawn by the seed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from whence.errors import BadOption
from whence.randomness import normal_from_uniform
from whence.zoo.data.splits import TOYS, uniform

NOISE = {"two-moons": 0.1, "cubic": 3.0}


def cubic(size: int, seed: int, part: int, noise: float) -> tuple[Tensor, Tensor]:
    """x uniform in (−4, 4), y = x³ + noise, both (N, 1)."""
    u = uniform(size, 2, seed, TOYS + part)
    x = 8 * u[:, :1] - 4
    return x, x**3 + noise * normal_from_uniform(u[:, 1:])


def cubic_grid(size: int) -> tuple[Tensor, Tensor]:
    """x³ without noise on an even grid in (−6, 6)."""
    x = torch.linspace(-6, 6, size, dtype=torch.float64).unsqueeze(1)
    return x, x**3


def two_moons(size: int, seed: int, part: int, noise: float) -> tuple[Tensor, Tensor]:
    """Points (N, 2) about two half circles, and which one; the classes take turns."""
    u = uniform(size, 3, seed, TOYS + part)
    lower = torch.arange(size) % 2
    angle = math.pi * u[:, 0]
    sign = 1.0 - 2.0 * lower
    x = torch.stack([lower + sign * angle.cos(), 0.5 * lower + sign * angle.sin()], dim=1)
    return x + noise * normal_from_uniform(u[:, 1:]), lower


def noise_of(name: str, noise: float | None) -> float:
    """The noise asked for, or that of the set."""
    if noise is None:
        return NOISE[name]
    if not (isinstance(noise, (int, float)) and noise >= 0 and math.isfinite(noise)):
        raise BadOption(f"noise={noise!r}: must be a number, 0 or more.")
    return float(noise)
