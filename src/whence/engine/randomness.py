"""Random numbers per example (independent of batches), fixed quasi-random normals, and torch's random state."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import BadOption

_MASK = (1 << 64) - 1


def _signed(value: int) -> int:
    """The two's complement of a 64-bit constant, for torch's int64."""
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
    """The same for a Python integer."""
    x &= _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return _signed(x ^ (x >> 31))


def example_uniform(
    seed: int, draw: int | range, rows: Tensor, shape: tuple[int, ...], used: int | None = None
) -> Tensor:
    """Uniform numbers in (0, 1), [N, *]: row n depends on (seed, draw, rows[n]) only.

    Of a ``range`` of draws [draws, N, *]. If only the first ``used`` numbers of the last dimension are needed, the
    others are not computed.
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
    start: int | Tensor
    if isinstance(draw, range):
        starts = [_mix_number(seed + golden * (one + 1)) for one in draw]
        start, shape = torch.tensor(starts).to(device, non_blocking=True)[:, None, None], (len(draw), *shape)
    else:
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
    """A separate seed for each purpose, derived from one seed; independent of the order of calls."""
    text = "/".join(map(str, (seed, *what)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


@contextmanager
def preserved_random_state() -> Iterator[list[int]]:
    """Restore the state of torch's CPU and GPU generators afterwards; yields the indices of the GPUs in use."""
    gpus = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(gpus):
        yield gpus


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators, and restore their state afterwards."""
    with preserved_random_state() as gpus:
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        yield


def normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers on the device of ``like``, for a generator on any device."""
    device = like.device if generator is None else generator.device
    return torch.randn(tuple(shape), generator=generator, device=device, dtype=like.dtype).to(like.device)
