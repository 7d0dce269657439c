"""Running the chains: warm-up, then draws, with a checkpoint to resume from.

Index legend: K chains, T draws of each chain, P parameters.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from whence.engine.checkpoint import CheckpointFile
from whence.engine.options import Option
from whence.engine.progress import progress_bar
from whence.posteriors.hmc.adaptation import Warmup, reasonable_step
from whence.posteriors.hmc.kernels import (
    ChainGenerators,
    ChainState,
    Mass,
    MassKind,
    Target,
    Transition,
    hmc_transition,
)
from whence.posteriors.hmc.nuts import nuts_transition
from whence.training.checkpoint import part_of, prefixed, refuse_other

DESCRIBED = {
    "network": "another network: the values of model= are not the same",
    "data": "other examples: data= is not the same",
    "prior": "another prior: prior_precision= or prior_mean= is not the same",
}  # values that a checkpoint stores only as a digest

STATS = {
    "potential": torch.float64, "energy": torch.float64, "accept": torch.float64, "step": torch.float64,
    "divergent": torch.bool, "depth": torch.int64, "leapfrogs": torch.int64,
}  # fmt: skip


class Kernel(Option):
    """How a chain moves."""

    NUTS = "nuts"
    HMC = "hmc"


@dataclass(frozen=True)
class SamplerSettings:
    """Options of the sampler, checked by :func:`whence.hmc`."""

    kernel: Kernel = Kernel.NUTS
    chains: int = 4
    num_samples: int = 1000
    warmup: int = 1000
    thin: int = 1
    target_accept: float = 0.8
    max_depth: int = 10
    steps: int = 32
    step_size: float | None = None
    mass: MassKind = MassKind.DIAG
    seed: int = 0

    def __post_init__(self) -> None:  # a file has the names
        object.__setattr__(self, "kernel", Kernel.parse(self.kernel, "kernel"))
        object.__setattr__(self, "mass", MassKind.parse(self.mass, "mass"))

    def transition(
        self, target: Target, state: ChainState, step: Tensor, mass: Mass, generators: ChainGenerators
    ) -> tuple[ChainState, Transition]:
        if self.kernel is Kernel.HMC:
            return hmc_transition(target, state, step, mass, generators, self.steps)
        return nuts_transition(target, state, step, mass, generators, self.max_depth)


class Chains:
    """Running chains."""

    def __init__(self, target: Target, start: Tensor, scale: Tensor, settings: SamplerSettings) -> None:
        """From positions ``start`` [K, P]; ``scale`` [P] is the initial M⁻¹."""
        self.target, self.settings = target, settings
        self.generators = ChainGenerators(settings.seed, len(start))
        self.state = ChainState.at(target, start)
        diagonal = scale.expand_as(start).clone()
        mass = Mass.of(torch.diag_embed(diagonal) if settings.mass is MassKind.DENSE else diagonal)
        given = settings.step_size
        step = torch.full_like(start[:, 0], 0.1 if given is None else given)
        if given is None:
            step = reasonable_step(target, self.state, mass, self.generators, step)
        self.warmup = Warmup.begin(
            settings.mass, settings.target_accept, settings.warmup, mass, step, given is not None, start
        )
        self.done = 0  # transitions
        self.total = settings.warmup + settings.num_samples * settings.thin
        self.seconds = 0.0
        shape = (settings.num_samples, *start.shape)
        self.positions = torch.empty(shape, dtype=start.dtype, device=start.device)  # [T, K, P]
        self.stats = {n: torch.zeros(shape[:2], dtype=d, device=start.device) for n, d in STATS.items()}  # [T, K]

    def run(
        self,
        progress: bool,
        file: CheckpointFile | None = None,
        identity: Mapping[str, Any] = MappingProxyType({}),
        every: float = 30.0,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """All draws [K, T, P] and their statistics [K, T].

        A checkpoint is written every so many seconds; ``identity`` describes the run in it.
        """
        if file is not None:
            self._resume(file, identity)
        written = time.monotonic()
        with progress_bar(total=self.total, initial=self.done, label="hmc", unit="step", shown=progress) as bar:
            while self.done < self.total:
                self.advance()
                bar.update()
                if file is not None and (self.done == self.total or time.monotonic() - written >= every):
                    meta = {"identity": dict(identity), "done": self.done, "seconds": self.seconds}
                    file.write(self._tensors(), meta)
                    written = time.monotonic()
        stats = {n: v.mT.contiguous() for n, v in self.stats.items()}
        return self.positions.transpose(0, 1).contiguous(), stats

    def advance(self) -> None:
        """One transition of every chain."""
        began = time.perf_counter()
        settings, adapted = self.settings, self.warmup
        self.state, made = settings.transition(self.target, self.state, adapted.step, adapted.mass, self.generators)
        if self.done < settings.warmup:
            adapted.after(self.done, self.state, made.accept, self.target, self.generators)
        else:
            self._record((self.done - settings.warmup) // settings.thin, made)
        self.done += 1
        self.seconds += time.perf_counter() - began

    def _record(self, row: int, made: Transition) -> None:
        """Keep the last position of thinned transitions, and whether any of them diverged."""
        self.positions[row] = self.state.position
        found = {**made.columns(), "potential": self.state.potential, "step": self.warmup.step}
        found["divergent"] = self.stats["divergent"][row] | found["divergent"]
        for name, values in found.items():
            self.stats[name][row] = values

    def _tensors(self) -> dict[str, Tensor]:
        """The whole state, for a checkpoint."""
        found = prefixed(state=self.state.tensors(), warmup=self.warmup.tensors(), stats=self.stats)
        return {**found, "positions": self.positions, "streams": self.generators.get()}

    def _resume(self, file: CheckpointFile, identity: Mapping[str, Any]) -> None:
        saved = file.read()
        if saved is None:
            return
        tensors, meta = saved
        refuse_other(f"the checkpoint {file.path}", identity, meta.get("identity", {}), DESCRIBED)
        moved = {k: v.to(self.positions.device) for k, v in tensors.items()}
        self.state = ChainState(**part_of(moved, "state"))
        self.warmup.restore(part_of(moved, "warmup"))
        self.stats, self.positions = part_of(moved, "stats"), moved["positions"]
        self.generators.put(tensors["streams"])
        self.done, self.seconds = meta["done"], meta["seconds"]
