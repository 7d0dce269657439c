"""What the parts of the sampler hand to each other.

Index legend: K chains, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from whence.randomness import derived_seed

Target = Callable[[Tensor], tuple[Tensor, Tensor]]  # positions [K, P] → potential U [K], its gradient [K, P]

DIVERGENCE = 1000.0  # energy error at which a trajectory is given up, as in Stan


@dataclass(frozen=True)
class State:
    """Where every chain is."""

    position: Tensor  # [K, P]
    potential: Tensor  # [K]
    gradient: Tensor  # [K, P]

    @classmethod
    def at(cls, target: Target, position: Tensor) -> State:
        return cls(position, *target(position))

    def where(self, mask: Tensor, other: State) -> State:
        """This state for the chains in ``mask`` [K], the other one for the rest."""
        rows = mask.unsqueeze(1)
        return State(
            torch.where(rows, self.position, other.position),
            torch.where(mask, self.potential, other.potential),
            torch.where(rows, self.gradient, other.gradient),
        )


@dataclass(frozen=True)
class Info:
    """How a transition went, [K] each."""

    accept: Tensor  # acceptance probability, averaged over the trajectory
    energy: Tensor  # H of the state that was taken, with the momentum it was reached with
    divergent: Tensor
    depth: Tensor  # of the tree; 0 for plain HMC
    leapfrogs: Tensor

    def columns(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


class Streams:
    """One generator for each chain, on the CPU: a chain draws the same numbers whatever others there are."""

    def __init__(self, seed: int, chains: int, purpose: str = "chain") -> None:
        self.generators = [torch.Generator().manual_seed(derived_seed(seed, purpose, k)) for k in range(chains)]

    def normals(self, size: int, like: Tensor) -> Tensor:
        """[K, size]."""
        drawn = [torch.randn(size, generator=g, dtype=torch.float64) for g in self.generators]
        return torch.stack(drawn).to(like.device, like.dtype)

    def uniforms(self, size: int, like: Tensor) -> Tensor:
        """[K, size], in [0, 1)."""
        drawn = [torch.rand(size, generator=g, dtype=torch.float64) for g in self.generators]
        return torch.stack(drawn).to(like.device, torch.float64)

    def get(self) -> Tensor:
        """The states of the generators, [K, bytes]."""
        return torch.stack([g.get_state() for g in self.generators])

    def put(self, states: Tensor) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state.clone())
