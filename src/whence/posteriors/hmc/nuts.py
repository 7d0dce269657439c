"""The No-U-Turn sampler with multinomial draws from the trajectory, without recursion, for all chains at once.

Hoffman & Gelman 2014; multinomial weights and the generalised U-turn criterion of Betancourt 2017 (appendix A);
iterative doubling of Phan, Pradhan & Jankowiak 2019. Active chains are always at the same leaf of the same
doubling, since a chain whose doubling ends early is finished; so depth and leaf are integers, and a mask says
which chains are active.

Index legend: K chains, P parameters, D checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.posteriors.hmc.kernels import DIVERGENCE, ChainGenerators, ChainState, Mass, Target, Transition, leapfrog


def checkpoints(leaf: int) -> tuple[int, int]:
    """(first, last) checkpoint of the subtrees that end at an odd leaf; an even one is stored at ``last``.

    ``last`` counts the ones in the binary form of leaf // 2; an odd leaf ends as many subtrees as it has trailing
    ones.
    """
    last = (leaf >> 1).bit_count()
    trailing = (~leaf & (leaf + 1)).bit_length() - 1
    return last - trailing + 1, last


def turns(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    """Whether an extension of a trajectory makes a U-turn: v · ρ ≤ 0 at either end, by velocities and ρ [..., P].

    ρ is the sum of momenta over the extension with its ends counted half.
    """
    return ((left * total).sum(-1) <= 0) | ((right * total).sum(-1) <= 0)


@dataclass(frozen=True)
class End:
    """An end of the trajectory."""

    state: ChainState
    momentum: Tensor  # [K, P]
    velocity: Tensor  # [K, P]

    def where(self, mask: Tensor, other: End) -> End:
        rows = mask.unsqueeze(1)
        return End(
            self.state.where(mask, other.state),
            torch.where(rows, self.momentum, other.momentum),
            torch.where(rows, self.velocity, other.velocity),
        )


@dataclass(frozen=True)
class Extension:
    """A doubling, with sums over its leaves."""

    end: End  # the leaf that was reached last
    proposal: ChainState  # one leaf, drawn with probability ∝ exp(−H)
    energy: Tensor  # of the proposal, [K]
    weight: Tensor  # log Σ exp(H₀ − H), [K]
    total: Tensor  # Σ momentum, [K, P]
    alive: Tensor  # chains whose doubling is still valid, [K]


@dataclass
class TrajectorySums:
    """Sums over all leaves of a transition."""

    accept: Tensor
    leapfrogs: Tensor
    divergent: Tensor


class Doubling:
    """Extends a trajectory by 2^depth leaves in a direction chosen per chain."""

    def __init__(
        self, target: Target, step: Tensor, mass: Mass, start: Tensor, sums: TrajectorySums, depth: int
    ) -> None:
        self.target, self.step, self.mass, self.start, self.sums, self.depth = target, step, mass, start, sums, depth
        like = mass.inverse
        shape = (max(depth, 1), len(step), like.shape[1])
        self._momenta, self._velocities, self._totals = (like.new_empty(shape) for _ in range(3))

    def run(self, end: End, active: Tensor, uniform: Tensor) -> Extension:
        """``uniform`` [2^depth, K] choose the proposal among the leaves."""
        extension = Extension(
            end, end.state, torch.zeros_like(self.start), torch.full_like(self.start, -torch.inf),
            torch.zeros_like(end.momentum), active,
        )  # fmt: skip
        for leaf in range(2**self.depth):
            extension = self._leaf(extension, leaf, uniform[leaf])
            if not bool(extension.alive.any()):
                break
        return extension

    def _leaf(self, extension: Extension, leaf: int, uniform: Tensor) -> Extension:
        state, momentum = leapfrog(self.target, extension.end.state, extension.end.momentum, self.step, self.mass)
        velocity = self.mass.velocity(momentum)
        energy = state.potential + 0.5 * (momentum * velocity).sum(1)
        gain = torch.nan_to_num(self.start - energy, nan=-torch.inf)  # H₀ − H
        divergent = gain < -DIVERGENCE
        self._count(extension.alive, gain, divergent)
        weight = torch.logaddexp(extension.weight, gain)
        taken = uniform.log() < gain - weight
        total = extension.total + momentum
        alive = extension.alive & ~divergent & ~self._turning(leaf, momentum, velocity, total)
        return Extension(
            End(state, momentum, velocity),
            state.where(taken, extension.proposal),
            torch.where(taken, energy, extension.energy),
            weight,
            total,
            alive,
        )

    def _count(self, alive: Tensor, gain: Tensor, divergent: Tensor) -> None:
        self.sums.accept = self.sums.accept + torch.where(alive, gain.clamp(max=0).exp(), 0.0)
        self.sums.leapfrogs = self.sums.leapfrogs + alive
        self.sums.divergent = self.sums.divergent | (alive & divergent)

    def _turning(self, leaf: int, momentum: Tensor, velocity: Tensor, total: Tensor) -> Tensor:
        """Whether a subtree that ends at this leaf makes a U-turn, [K]."""
        first, last = checkpoints(leaf)
        if leaf % 2 == 0:
            if self.depth:
                self._momenta[last], self._velocities[last], self._totals[last] = momentum, velocity, total
            return torch.zeros_like(self.sums.divergent)
        begin = self._momenta[first : last + 1]
        inside = total - self._totals[first : last + 1] + begin - 0.5 * (begin + momentum)
        return turns(self._velocities[first : last + 1], velocity, inside).any(0)


@dataclass(frozen=True)
class Tree:
    """The trajectory so far."""

    left: End
    right: End
    proposal: ChainState
    energy: Tensor  # [K]
    weight: Tensor  # [K]
    total: Tensor  # [K, P]
    active: Tensor  # chains that continue, [K]
    depth: Tensor  # [K]

    def joined(self, extension: Extension, forward: Tensor, uniform: Tensor) -> Tree:
        """With a doubling: biased progressive sampling (Betancourt 2017, A.3.2), then a check of the whole."""
        whole = extension.alive
        taken = whole & (uniform.log() < extension.weight - self.weight)
        left = extension.end.where(whole & ~forward, self.left)
        right = extension.end.where(whole & forward, self.right)
        total = torch.where(whole.unsqueeze(1), self.total + extension.total, self.total)
        inside = total - 0.5 * (left.momentum + right.momentum)
        return Tree(
            left,
            right,
            extension.proposal.where(taken, self.proposal),
            torch.where(taken, extension.energy, self.energy),
            torch.where(whole, torch.logaddexp(self.weight, extension.weight), self.weight),
            total,
            whole & ~turns(left.velocity, right.velocity, inside),
            self.depth + self.active,
        )


def nuts_transition(
    target: Target, state: ChainState, step: Tensor, mass: Mass, generators: ChainGenerators, max_depth: int
) -> tuple[ChainState, Transition]:
    """One transition of every chain."""
    position = state.position
    momentum = mass.momentum(generators.normals(position.shape[1], position))
    uniform = generators.uniforms(2**max_depth + 2 * max_depth, position).T.contiguous()
    leaves, turn, join = uniform.split([2**max_depth, max_depth, max_depth])
    end = End(state, momentum, mass.velocity(momentum))
    start = state.potential + 0.5 * (momentum * end.velocity).sum(1)
    active = torch.ones_like(start, dtype=torch.bool)
    sums = TrajectorySums(torch.zeros_like(start), torch.zeros_like(start, dtype=torch.long), ~active)
    tree = Tree(end, end, state, start, torch.zeros_like(start), momentum, active, sums.leapfrogs)
    for depth in range(max_depth):
        forward = turn[depth] < 0.5
        doubling = Doubling(target, torch.where(forward, step, -step), mass, start, sums, depth)
        extension = doubling.run(tree.right.where(forward, tree.left), tree.active, leaves[2**depth - 1 :])
        tree = tree.joined(extension, forward, join[depth])
        if not bool(tree.active.any()):
            break
    info = Transition(
        accept=sums.accept / sums.leapfrogs,
        energy=tree.energy,
        divergent=sums.divergent,
        depth=tree.depth,
        leapfrogs=sums.leapfrogs,
    )
    return tree.proposal, info
