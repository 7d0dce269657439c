"""The No-U-Turn sampler with multinomial draws from the trajectory, without recursion, for all chains at once.

Hoffman & Gelman 2014; multinomial weights and the generalised U-turn criterion of Betancourt 2017 (appendix A);
iterative doubling of Phan, Pradhan & Jankowiak 2019. Chains that still grow are always at the same leaf of the same
doubling, since a chain whose doubling ends early is done; so depth and leaf are plain numbers, and a mask says
which chains go on.

Index legend: K chains, P parameters, D checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence.posteriors.hmc.kernels import leapfrog
from whence.posteriors.hmc.mass import Mass
from whence.posteriors.hmc.state import DIVERGENCE, Info, State, Streams, Target


def checkpoints(leaf: int) -> tuple[int, int]:
    """(first, last) checkpoint of the subtrees that end at an odd leaf; an even one is stored at ``last``.

    ``last`` counts the ones in the binary form of leaf // 2; an odd leaf ends as many subtrees as it has trailing
    ones.
    """
    last = (leaf >> 1).bit_count()
    trailing = (~leaf & (leaf + 1)).bit_length() - 1
    return last - trailing + 1, last


def turns(left: Tensor, right: Tensor, total: Tensor) -> Tensor:
    """Whether a piece of trajectory turns back: v · ρ ≤ 0 at either end, by velocities [..., P] and ρ [..., P].

    ρ is the sum of momenta over the piece with its ends counted half.
    """
    return ((left * total).sum(-1) <= 0) | ((right * total).sum(-1) <= 0)


@dataclass(frozen=True)
class End:
    """An end of the trajectory."""

    state: State
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
class Piece:
    """A doubling: its leaves summed up."""

    end: End  # the leaf that was reached last
    proposal: State  # one leaf, drawn with probability ∝ exp(−H)
    energy: Tensor  # of the proposal, [K]
    weight: Tensor  # log Σ exp(H₀ − H), [K]
    total: Tensor  # Σ momentum, [K, P]
    alive: Tensor  # chains whose doubling is still good, [K]


@dataclass
class Tally:
    """Sums over all leaves of a transition."""

    accept: Tensor
    leapfrogs: Tensor
    divergent: Tensor


class Doubling:
    """Extends a trajectory by 2^depth leaves in each chain's own direction."""

    def __init__(self, target: Target, step: Tensor, mass: Mass, start: Tensor, tally: Tally, depth: int) -> None:
        self.target, self.step, self.mass, self.start, self.tally, self.depth = target, step, mass, start, tally, depth
        like = mass.tensor()
        shape = (max(depth, 1), len(step), like.shape[1])
        self._momenta, self._velocities, self._totals = (like.new_empty(shape) for _ in range(3))

    def run(self, end: End, active: Tensor, uniform: Tensor) -> Piece:
        """``uniform`` [2^depth, K] choose the proposal among the leaves."""
        piece = Piece(
            end, end.state, torch.zeros_like(self.start), torch.full_like(self.start, -torch.inf),
            torch.zeros_like(end.momentum), active,
        )  # fmt: skip
        for leaf in range(2**self.depth):
            piece = self._leaf(piece, leaf, uniform[leaf])
            if not bool(piece.alive.any()):
                break
        return piece

    def _leaf(self, piece: Piece, leaf: int, uniform: Tensor) -> Piece:
        state, momentum = leapfrog(self.target, piece.end.state, piece.end.momentum, self.step, self.mass)
        velocity = self.mass.velocity(momentum)
        energy = state.potential + 0.5 * (momentum * velocity).sum(1)
        gain = torch.nan_to_num(self.start - energy, nan=-torch.inf)  # H₀ − H
        divergent = gain < -DIVERGENCE
        self._count(piece.alive, gain, divergent)
        weight = torch.logaddexp(piece.weight, gain)
        taken = uniform.log() < gain - weight
        total = piece.total + momentum
        alive = piece.alive & ~divergent & ~self._turning(leaf, momentum, velocity, total)
        return Piece(
            End(state, momentum, velocity),
            state.where(taken, piece.proposal),
            torch.where(taken, energy, piece.energy),
            weight,
            total,
            alive,
        )

    def _count(self, alive: Tensor, gain: Tensor, divergent: Tensor) -> None:
        self.tally.accept = self.tally.accept + torch.where(alive, gain.clamp(max=0).exp(), 0.0)
        self.tally.leapfrogs = self.tally.leapfrogs + alive
        self.tally.divergent = self.tally.divergent | (alive & divergent)

    def _turning(self, leaf: int, momentum: Tensor, velocity: Tensor, total: Tensor) -> Tensor:
        """Whether a subtree that ends at this leaf turns back, [K]."""
        first, last = checkpoints(leaf)
        if leaf % 2 == 0:
            if self.depth:
                self._momenta[last], self._velocities[last], self._totals[last] = momentum, velocity, total
            return torch.zeros_like(self.tally.divergent)
        begin = self._momenta[first : last + 1]
        inside = total - self._totals[first : last + 1] + begin - 0.5 * (begin + momentum)
        return turns(self._velocities[first : last + 1], velocity, inside).any(0)


@dataclass(frozen=True)
class Tree:
    """The trajectory so far."""

    left: End
    right: End
    proposal: State
    energy: Tensor  # [K]
    weight: Tensor  # [K]
    total: Tensor  # [K, P]
    active: Tensor  # chains that go on, [K]
    depth: Tensor  # [K]

    def joined(self, piece: Piece, forward: Tensor, uniform: Tensor) -> Tree:
        """With a doubling: biased progressive sampling (Betancourt 2017, A.3.2), then the whole is checked."""
        whole = piece.alive
        taken = whole & (uniform.log() < piece.weight - self.weight)
        left = piece.end.where(whole & ~forward, self.left)
        right = piece.end.where(whole & forward, self.right)
        total = torch.where(whole.unsqueeze(1), self.total + piece.total, self.total)
        inside = total - 0.5 * (left.momentum + right.momentum)
        return Tree(
            left,
            right,
            piece.proposal.where(taken, self.proposal),
            torch.where(taken, piece.energy, self.energy),
            torch.where(whole, torch.logaddexp(self.weight, piece.weight), self.weight),
            total,
            whole & ~turns(left.velocity, right.velocity, inside),
            self.depth + self.active,
        )


def nuts_transition(
    target: Target, state: State, step: Tensor, mass: Mass, streams: Streams, max_depth: int
) -> tuple[State, Info]:
    """One transition of every chain."""
    position = state.position
    momentum = mass.momentum(streams.normals(position.shape[1], position))
    uniform = streams.uniforms(2**max_depth + 2 * max_depth, position).T.contiguous()
    leaves, turn, join = uniform.split([2**max_depth, max_depth, max_depth])
    end = End(state, momentum, mass.velocity(momentum))
    start = state.potential + 0.5 * (momentum * end.velocity).sum(1)
    active = torch.ones_like(start, dtype=torch.bool)
    tally = Tally(torch.zeros_like(start), torch.zeros_like(start, dtype=torch.long), ~active)
    tree = Tree(end, end, state, start, torch.zeros_like(start), momentum, active, tally.leapfrogs)
    for depth in range(max_depth):
        forward = turn[depth] < 0.5
        doubling = Doubling(target, torch.where(forward, step, -step), mass, start, tally, depth)
        piece = doubling.run(tree.right.where(forward, tree.left), tree.active, leaves[2**depth - 1 :])
        tree = tree.joined(piece, forward, join[depth])
        if not bool(tree.active.any()):
            break
    info = Info(
        accept=tally.accept / tally.leapfrogs,
        energy=tree.energy,
        divergent=tally.divergent,
        depth=tree.depth,
        leapfrogs=tally.leapfrogs,
    )
    return tree.proposal, info
