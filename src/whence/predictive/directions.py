"""Directions in weight space for draws of the linearised network: held together, or drawn again some at a time.

Index legend: S directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.engine.memory import available, readable, sizes
from whence.engine.randomness import seed_from
from whence.errors import TooLarge
from whence.predictive.gaussian_weights import GaussianWeights

HELD = 2  # part of the free memory that all directions may take: one over this


@dataclass(frozen=True)
class Directions:
    """By parameter, [S, *shape]; ``parts`` gives some of them at a time, the same ones every time."""

    count: int
    parts: Callable[[], Iterator[Mapping[str, Tensor]]]

    @classmethod
    def held(cls, directions: Mapping[str, Tensor]) -> Directions:
        return cls(len(next(iter(directions.values()))), lambda: iter((directions,)))

    def together(self) -> Mapping[str, Tensor]:
        """All of them."""
        parts = list(self.parts())
        return parts[0] if len(parts) == 1 else {n: torch.cat([part[n] for part in parts]) for n in parts[0]}


def drawn(posterior: GaussianWeights, count: int, generator: torch.Generator) -> Directions:
    """Directions z ~ N(0, Σ). They follow from the generator alone, whether memory holds all of them or not."""
    device = posterior.network.device
    each = posterior.parameters * next(iter(posterior.network.params.values())).element_size()
    step = max(1, min(count, sizes().directions_drawn // max(each, 1)))
    if step == count:
        return Directions.held(posterior.deviations(count, generator))
    counts = [min(step, count - start) for start in range(0, count, step)]
    seeds = [seed_from(generator) for _ in counts]

    def parts() -> Iterator[Mapping[str, Tensor]]:
        for some, seed in zip(counts, seeds, strict=True):
            yield posterior.deviations(some, torch.Generator(device).manual_seed(seed))

    free = available(device)
    if free is not None and HELD * step * each > free:
        raise TooLarge(
            f"one direction of {posterior.parameters:,} weights takes {readable(each)}, and {readable(free)} of "
            f"{device} are free. Select fewer weights with layers=…."
        )
    whole = Directions(count, parts)
    return whole if free is not None and HELD * count * each > free else Directions.held(_filled(whole))


def _filled(directions: Directions) -> dict[str, Tensor]:
    """All directions, without a second copy of them on the way."""
    found: dict[str, Tensor] = {}
    done = 0
    for part in directions.parts():
        for name, values in part.items():
            if name not in found:
                found[name] = values.new_empty(directions.count, *values.shape[1:])
            found[name][done : done + len(values)] = values
        done += len(next(iter(part.values())))
    return found
