"""The leapfrog integrator and plain HMC.

Index legend: K chains, P parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence.posteriors.hmc.mass import Mass
from whence.posteriors.hmc.state import DIVERGENCE, Info, State, Streams, Target

JITTER = 0.2  # of the step size of plain HMC, so that no trajectory is periodic (Neal 2011, section 3.2)


def leapfrog(target: Target, state: State, momentum: Tensor, step: Tensor, mass: Mass) -> tuple[State, Tensor]:
    """One step of size ``step`` [K], negative for backwards (Neal 2011, eq. 2.28–2.30)."""
    step = step.unsqueeze(1)
    half = torch.addcmul(momentum, step, state.gradient, value=-0.5)
    position = torch.addcmul(state.position, step, mass.velocity(half))
    moved = State(position, *target(position))
    return moved, torch.addcmul(half, step, moved.gradient, value=-0.5)


def hmc_transition(
    target: Target, state: State, step: Tensor, mass: Mass, streams: Streams, steps: int
) -> tuple[State, Info]:
    """``steps`` leapfrogs with a jittered step size, then accepted with probability min(1, exp(−ΔH))."""
    momentum = mass.momentum(streams.normals(state.position.shape[1], state.position))
    uniform = streams.uniforms(2, state.position)
    step = step * (1 + JITTER * (2 * uniform[:, 0].to(step.dtype) - 1))
    before = state.potential + mass.kinetic(momentum)
    moved, end = state, momentum
    for _ in range(steps):
        moved, end = leapfrog(target, moved, end, step, mass)
    after = moved.potential + mass.kinetic(end)
    error = torch.nan_to_num(after - before, nan=torch.inf, posinf=torch.inf)
    accept = (-error).clamp(max=0).exp()
    taken = uniform[:, 1] < accept
    info = Info(
        accept=accept,
        energy=torch.where(taken, after, before),
        divergent=error > DIVERGENCE,
        depth=torch.zeros_like(taken, dtype=torch.long),
        leapfrogs=torch.full_like(taken, steps, dtype=torch.long),
    )
    return moved.where(taken, state), info
