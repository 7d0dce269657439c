"""Warm-up: step size by dual averaging, mass by windows. Every chain adapts separately.

Index legend: K chains, P parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.posteriors.hmc.kernels import ChainGenerators, ChainState, Mass, MassKind, Moments, Target, leapfrog

GAMMA, START, KAPPA = 0.05, 10, 0.75  # γ, t₀, κ of Hoffman & Gelman 2014, section 3.2


@dataclass(frozen=True)
class DualAveraging:
    """Step sizes whose acceptance rate converges to ``target`` (Hoffman & Gelman 2014, eq. 6)."""

    target: float
    centre: Tensor  # μ, [K]
    log_step: Tensor
    log_average: Tensor
    error: Tensor  # H̄
    count: int = 0

    @classmethod
    def begin(cls, step: Tensor, target: float) -> DualAveraging:
        zero = torch.zeros_like(step)
        return cls(target, (10 * step).log(), step.log(), zero, zero)

    def update(self, accept: Tensor) -> DualAveraging:
        t = self.count + 1
        share = 1 / (t + START)
        error = (1 - share) * self.error + share * (self.target - accept)
        log_step = self.centre - math.sqrt(t) / GAMMA * error
        weight = t**-KAPPA
        average = weight * log_step + (1 - weight) * self.log_average
        return DualAveraging(self.target, self.centre, log_step, average, error, t)


def windows(warmup: int) -> list[int]:
    """Numbers of transitions after which the mass is estimated again, as in Stan: 75 first, 25 doubled, 50 last.

    Shorter warm-ups use 15%, 75% and 10%; below 20 transitions only the step size is adapted.
    """
    if warmup < 20:
        return []
    first, last, size = 75, 50, 25
    if first + last + size > warmup:
        first, last = int(0.15 * warmup), int(0.1 * warmup)
        size = warmup - first - last
    ends, at = [], first
    while at < warmup - last:
        left = warmup - last - at
        size = left if left < 3 * size else size
        at += size
        ends.append(at)
        size *= 2
    return ends


def reasonable_step(target: Target, state: ChainState, mass: Mass, generators: ChainGenerators, step: Tensor) -> Tensor:
    """Double or halve the step of each chain until one leapfrog is accepted about half of the time (algorithm 4)."""
    momentum = mass.momentum(generators.normals(state.position.shape[1], state.position))
    before = state.potential + mass.kinetic(momentum)

    def gain(size: Tensor) -> Tensor:
        moved, end = leapfrog(target, state, momentum, size, mass)
        return torch.nan_to_num(before - moved.potential - mass.kinetic(end), nan=-torch.inf)

    wanted = math.log(0.8)
    up = gain(step) > wanted
    going = torch.ones_like(up)
    for _ in range(60):
        trial = torch.where(going, torch.where(up, 2 * step, 0.5 * step), step)
        good = gain(trial) > wanted
        step = torch.where(going & (good | ~up), trial, step)
        going = going & (good == up)
        if not bool(going.any()):
            break
    return step


@dataclass
class Warmup:
    """Adaptation of step size and mass. The fields are the state: see ``tensors`` and ``restore``."""

    kind: MassKind
    target_accept: float
    length: int
    first: int  # transitions before the mass is first estimated
    ends: list[int]
    fixed_step: bool
    step: Tensor  # [K]
    mass: Mass
    averaging: DualAveraging
    moments: Moments

    @classmethod
    def begin(
        cls,
        kind: MassKind,
        target_accept: float,
        length: int,
        mass: Mass,
        step: Tensor,
        fixed_step: bool,
        like: Tensor,
    ) -> Warmup:
        ends = windows(length) if kind is not MassKind.IDENTITY else []
        first = (75 if length >= 150 else int(0.15 * length)) if ends else length
        averaging = DualAveraging.begin(step, target_accept)
        return cls(
            kind, target_accept, length, first, ends, fixed_step, step, mass, averaging, Moments.empty(kind, like)
        )

    def after(self, index: int, state: ChainState, accept: Tensor, target: Target, generators: ChainGenerators) -> None:
        """Adapt after transition ``index`` (from 0)."""
        if not self.fixed_step:
            self.averaging = self.averaging.update(accept)
            self.step = self.averaging.log_step.exp()
        done = index + 1
        if self.ends and self.first < done <= self.ends[-1]:
            self.moments = self.moments.add(state.position)
        if done in self.ends:
            self.mass = self.moments.mass()
            self.moments = Moments.empty(self.kind, state.position)
            if not self.fixed_step:
                self.step = reasonable_step(target, state, self.mass, generators, self.step)
                self.averaging = DualAveraging.begin(self.step, self.target_accept)
        if done == self.length and not self.fixed_step and self.averaging.count:
            self.step = self.averaging.log_average.exp()

    def tensors(self) -> dict[str, Tensor]:
        averaging, moments = self.averaging, self.moments
        return {
            "step": self.step,
            "mass": self.mass.inverse,
            "averaging": torch.stack([averaging.centre, averaging.log_step, averaging.log_average, averaging.error]),
            "moments.mean": moments.mean,
            "moments.squares": moments.squares,
            "counts": torch.tensor([averaging.count, moments.count]),
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        averaged, counted = (int(v) for v in tensors["counts"])
        centre, log_step, log_average, error = tensors["averaging"].unbind()
        self.step, self.mass = tensors["step"], Mass.of(tensors["mass"])
        self.averaging = DualAveraging(self.target_accept, centre, log_step, log_average, error, averaged)
        self.moments = Moments(counted, tensors["moments.mean"], tensors["moments.squares"])
