"""State of the chains, mass matrices, the leapfrog integrator, and plain HMC.

Index legend: K chains, P parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from whence.engine.options import Option
from whence.engine.randomness import derived_seed

Target = Callable[[Tensor], tuple[Tensor, Tensor]]  # positions [K, P] → potential U [K], its gradient [K, P]


class MassKind(Option):
    """What is adapted of the mass matrix."""

    IDENTITY = "identity"
    DIAG = "diag"
    DENSE = "dense"


DIVERGENCE = 1000.0  # energy error at which a trajectory is stopped, as in Stan
JITTER = 0.2  # jitter of plain HMC's step size, against periodic trajectories (Neal 2011, section 3.2)


@dataclass(frozen=True)
class ChainState:
    """Position, potential and gradient of every chain."""

    position: Tensor  # [K, P]
    potential: Tensor  # [K]
    gradient: Tensor  # [K, P]

    @classmethod
    def at(cls, target: Target, position: Tensor) -> ChainState:
        return cls(position, *target(position))

    def tensors(self) -> dict[str, Tensor]:
        return {"position": self.position, "potential": self.potential, "gradient": self.gradient}

    def where(self, mask: Tensor, other: ChainState) -> ChainState:
        """This state for the chains in ``mask`` [K], the other state for all others."""
        rows = mask.unsqueeze(1)
        return ChainState(
            torch.where(rows, self.position, other.position),
            torch.where(mask, self.potential, other.potential),
            torch.where(rows, self.gradient, other.gradient),
        )


@dataclass(frozen=True)
class Transition:
    """Statistics of a transition, [K] each."""

    accept: Tensor  # acceptance probability, averaged over the trajectory
    energy: Tensor  # H of the new state, with its momentum
    divergent: Tensor
    depth: Tensor  # of the tree; 0 for plain HMC
    leapfrogs: Tensor

    def columns(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


class ChainGenerators:
    """One generator for each chain, on the CPU: a chain's numbers do not depend on the other chains."""

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


# Mass matrices M by their inverse, one per chain; ideally M⁻¹ is the posterior covariance


class Mass(ABC):
    """Kinetic energy ½ rᵀ M⁻¹ r."""

    inverse: Tensor  # M⁻¹: [K, P] its diagonal, or [K, P, P]

    @staticmethod
    def of(inverse: Tensor) -> Mass:
        """From a diagonal or a full matrix per chain."""
        return Diagonal(inverse) if inverse.dim() == 2 else Dense(inverse, torch.linalg.cholesky(inverse))

    @abstractmethod
    def velocity(self, momentum: Tensor) -> Tensor:
        """M⁻¹ r, [K, P]."""

    @abstractmethod
    def momentum(self, noise: Tensor) -> Tensor:
        """White noise [K, P] → draws from N(0, M)."""

    def kinetic(self, momentum: Tensor) -> Tensor:
        """[K]."""
        return 0.5 * (momentum * self.velocity(momentum)).sum(1)


@dataclass(frozen=True)
class Diagonal(Mass):
    """M⁻¹ = diag(inverse)."""

    inverse: Tensor  # [K, P]

    def velocity(self, momentum: Tensor) -> Tensor:
        return self.inverse * momentum

    def momentum(self, noise: Tensor) -> Tensor:
        return noise * self.inverse.rsqrt()


@dataclass(frozen=True)
class Dense(Mass):
    """M⁻¹ = L Lᵀ."""

    inverse: Tensor  # [K, P, P]
    root: Tensor  # L, lower triangular

    def velocity(self, momentum: Tensor) -> Tensor:
        return torch.bmm(self.inverse, momentum.unsqueeze(2)).squeeze(2)

    def momentum(self, noise: Tensor) -> Tensor:
        """L⁻ᵀ z has covariance (L Lᵀ)⁻¹ = M."""
        return torch.linalg.solve_triangular(self.root.mT, noise.unsqueeze(2), upper=True).squeeze(2)


@dataclass(frozen=True)
class Moments:
    """Mean and centred sums of squares of the positions so far, by Welford's update."""

    count: int
    mean: Tensor  # [K, P]
    squares: Tensor  # [K, P], or [K, P, P] for a dense mass

    @classmethod
    def empty(cls, kind: MassKind, like: Tensor) -> Moments:
        shape = (*like.shape, like.shape[1]) if kind is MassKind.DENSE else tuple(like.shape)
        return cls(0, torch.zeros_like(like), like.new_zeros(shape))

    def add(self, position: Tensor) -> Moments:
        count = self.count + 1
        before = position - self.mean
        mean = self.mean + before / count
        after = position - mean
        if self.squares.dim() == 3:
            return Moments(count, mean, torch.baddbmm(self.squares, before.unsqueeze(2), after.unsqueeze(1)))
        return Moments(count, mean, self.squares + before * after)

    def mass(self) -> Mass:
        """Covariance, shrunk towards 10⁻³ I as in Stan: n/(n+5) Σ + 10⁻³ · 5/(n+5) I."""
        n = self.count
        covariance = self.squares / max(n - 1, 1) * (n / (n + 5.0))
        floor = 1e-3 * 5.0 / (n + 5.0)
        if covariance.dim() == 3:
            eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
            return Mass.of((covariance + covariance.mT) / 2 + floor * eye)
        return Mass.of(covariance + floor)


# Transitions


def leapfrog(
    target: Target, state: ChainState, momentum: Tensor, step: Tensor, mass: Mass
) -> tuple[ChainState, Tensor]:
    """One step of size ``step`` [K], negative for backwards (Neal 2011, eq. 2.28–2.30)."""
    step = step.unsqueeze(1)
    half = torch.addcmul(momentum, step, state.gradient, value=-0.5)
    position = torch.addcmul(state.position, step, mass.velocity(half))
    moved = ChainState(position, *target(position))
    return moved, torch.addcmul(half, step, moved.gradient, value=-0.5)


def hmc_transition(
    target: Target, state: ChainState, step: Tensor, mass: Mass, generators: ChainGenerators, steps: int
) -> tuple[ChainState, Transition]:
    """``steps`` leapfrogs with a jittered step size, then accepted with probability min(1, exp(−ΔH))."""
    momentum = mass.momentum(generators.normals(state.position.shape[1], state.position))
    uniform = generators.uniforms(2, state.position)
    step = step * (1 + JITTER * (2 * uniform[:, 0].to(step.dtype) - 1))
    before = state.potential + mass.kinetic(momentum)
    moved, end = state, momentum
    for _ in range(steps):
        moved, end = leapfrog(target, moved, end, step, mass)
    after = moved.potential + mass.kinetic(end)
    error = torch.nan_to_num(after - before, nan=torch.inf, posinf=torch.inf)
    accept = (-error).clamp(max=0).exp()
    taken = uniform[:, 1] < accept
    info = Transition(
        accept=accept,
        energy=torch.where(taken, after, before),
        divergent=error > DIVERGENCE,
        depth=torch.zeros_like(taken, dtype=torch.long),
        leapfrogs=torch.full_like(taken, steps, dtype=torch.long),
    )
    return moved.where(taken, state), info
