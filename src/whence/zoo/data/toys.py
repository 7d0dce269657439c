"""Toy sets, drawn by the seed."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from whence.engine.randomness import normal_from_uniform
from whence.errors import BadOption
from whence.zoo.data.splits import TOYS, uniform

NOISE = {"two-moons": 0.1, "cubic": 3.0}
Part = tuple[Tensor, Tensor]


def cubic(size: int, seed: int, part: int, noise: float) -> Part:
    """x uniform in (−4, 4), y = x³ + noise, both (N, 1)."""
    u = uniform(size, 2, seed, TOYS + part)
    x = 8 * u[:, :1] - 4
    return x, x**3 + noise * normal_from_uniform(u[:, 1:])


def cubic_grid(size: int) -> Part:
    """x³ without noise on an even grid in (−6, 6)."""
    x = torch.linspace(-6, 6, size, dtype=torch.float64).unsqueeze(1)
    return x, x**3


def two_moons(size: int, seed: int, part: int, noise: float) -> Part:
    """Points (N, 2) around two half circles, and their class; the classes alternate."""
    u = uniform(size, 3, seed, TOYS + part)
    lower = torch.arange(size) % 2
    angle = math.pi * u[:, 0]
    sign = 1.0 - 2.0 * lower
    x = torch.stack([lower + sign * angle.cos(), 0.5 * lower + sign * angle.sin()], dim=1)
    return x + noise * normal_from_uniform(u[:, 1:]), lower


def noise_of(name: str, noise: float | None) -> float:
    """The given noise, or the default of the set."""
    if noise is None:
        return NOISE[name]
    if not (isinstance(noise, (int, float)) and noise >= 0 and math.isfinite(noise)):
        raise BadOption(f"noise={noise!r}: must be a number, 0 or more.")
    return float(noise)


DRAWN: dict[str, Callable[[int, int, int, float], Part]] = {"cubic": cubic, "two-moons": two_moons}
