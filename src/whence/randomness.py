"""Random numbers that belong to an example, not to its batch; and fixed quasi-random normals."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import BadOption

_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    """The two's complement of a 64-bit constant, as torch's int64 wants it."""
    value &= _MASK
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64, a bijection of 64-bit integers with full avalanche."""
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _mix_number(x: int) -> int:
    """The same for one number, without a device."""
    x &= _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return _signed(x ^ (x >> 31))


def example_uniform(seed: int, draw: int, rows: Tensor, shape: tuple[int, ...], used: int | None = None) -> Tensor:
    """Uniform numbers in (0, 1), [N, *]: row n depends on (seed, draw, rows[n]) only.

    Where only the first ``used`` numbers of the last dimension are needed, the others are not made.
    """
    count = int(torch.Size(shape[1:]).numel())
    device = rows.device
    if used is None or used >= shape[-1]:
        places = torch.arange(count, device=device)
    else:
        places = torch.arange(used, device=device) + torch.arange(0, count, shape[-1], device=device).unsqueeze(1)
        places, shape = places.flatten(), (*shape[:-1], used)
    rows = rows.unsqueeze(1)
    golden = _signed(0x9E3779B97F4A7C15)
    start = _mix_number(seed + golden * (draw + 1))
    keys = _mix(start + golden * (rows + 1))
    bits = _mix(keys + golden * (places + 1))
    return ((_shift(bits, 11).double() + 0.5) / 2.0**53).reshape(shape)


def normal_from_uniform(uniform: Tensor) -> Tensor:
    """Standard normal numbers by the inverse distribution function."""
    return torch.special.ndtri(uniform.double())


def seed_from(generator: torch.Generator | None) -> int:
    """A seed drawn from the generator (torch's default one if None)."""
    device = generator.device if generator is not None else "cpu"
    return int(torch.randint(2**62, (1,), generator=generator, device=device))


@functools.lru_cache(maxsize=16)
def _sobol_normals(count: int, dims: int) -> Tensor:
    engine = torch.quasirandom.SobolEngine(dims, scramble=True, seed=20180430)
    points = engine.draw(count, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    normals = normal_from_uniform(points)
    normals = normals - normals.mean(0)
    return normals / normals.std(0, correction=0).clamp(min=1e-12)


@dataclass(frozen=True)
class Points:
    """Standard normal points: quasi-random and always the same, or random from a seed."""

    count: int
    seed: int | None = None

    def normals(self, dims: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """[count, dims]."""
        if self.seed is None:
            return quasi_normals(self.count, dims, device, dtype)
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(self.count, dims, generator=generator, dtype=torch.float64).to(device, dtype)


def quasi_normals(count: int, dims: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The same ``count`` standard normal points in ``dims`` dimensions every time, [S, dims]."""
    return _sobol_normals(count, dims).to(device, dtype)


def resolve_seed(seed: int | None, generator: torch.Generator | None) -> int:
    """The seed of a verb that draws: the one given, one drawn from ``generator``, or 0."""
    if generator is None:
        return 0 if seed is None else seed
    if seed is not None:
        raise BadOption("pass seed= or generator=, not both.")
    return seed_from(generator)


def derived_seed(seed: int, *what: object) -> int:
    """A seed of its own for each purpose, from one: independent of the order in which they are asked for."""
    text = "/".join(map(str, (seed, *what)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
