"""The loop: warm-up, then draws; with a checkpoint to go on from.

Index legend: K chains, T draws of each chain, P parameters.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from whence.engine.checkpoint import CheckpointFile
from whence.errors import BadFile
from whence.posteriors.hmc.adaptation import Warmup, reasonable_step
from whence.posteriors.hmc.kernels import hmc_transition
from whence.posteriors.hmc.mass import Mass, MassKind, unit_mass
from whence.posteriors.hmc.nuts import nuts_transition
from whence.posteriors.hmc.state import Info, State, Streams, Target

EVERY = 30.0  # seconds between two checkpoints

DIGESTS = {
    "network": "another network: the values of model= are",
    "data": "other examples: data= is",
    "prior": "another prior: prior_precision= or prior_mean= is",
}  # what a checkpoint knows by a digest only, in words

STATS = {
    "potential": torch.float64, "energy": torch.float64, "accept": torch.float64, "step": torch.float64,
    "divergent": torch.bool, "depth": torch.int64, "leapfrogs": torch.int64,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How to sample; checked at the front door."""

    kernel: str = "nuts"
    chains: int = 4
    num_samples: int = 1000
    warmup: int = 1000
    thin: int = 1
    target_accept: float = 0.8
    max_depth: int = 10
    steps: int = 32
    step_size: float | None = None
    mass: MassKind = "diag"
    seed: int = 0

    def transition(
        self, target: Target, state: State, step: Tensor, mass: Mass, streams: Streams
    ) -> tuple[State, Info]:
        if self.kernel == "hmc":
            return hmc_transition(target, state, step, mass, streams, self.steps)
        return nuts_transition(target, state, step, mass, streams, self.max_depth)


@dataclass(frozen=True)
class Draws:
    """What a run leaves."""

    positions: Tensor  # [K, T, P]
    stats: dict[str, Tensor]  # [K, T] each; see STATS
    step: Tensor  # [K], after warm-up
    seconds: float


class Run:
    """Chains under way."""

    def __init__(self, target: Target, start: Tensor, scale: Tensor, settings: Settings) -> None:
        """From positions ``start`` [K, P]; ``scale`` [P] is M⁻¹ until there is a better one."""
        self.target, self.settings = target, settings
        self.streams = Streams(settings.seed, len(start))
        self.state = State.at(target, start)
        mass = unit_mass(settings.mass, scale.expand_as(start).clone())
        given = settings.step_size
        step = torch.full_like(start[:, 0], 0.1 if given is None else given)
        if given is None:
            step = reasonable_step(target, self.state, mass, self.streams, step)
        self.warmup = Warmup.begin(
            settings.mass, settings.target_accept, settings.warmup, mass, step, given is not None, start
        )
        self.done = 0  # transitions
        self.seconds = 0.0
        shape = (settings.num_samples, *start.shape)
        self.positions = torch.empty(shape, dtype=start.dtype, device=start.device)  # [T, K, P]
        self.stats = {n: torch.zeros(shape[:2], dtype=d, device=start.device) for n, d in STATS.items()}

    @property
    def total(self) -> int:
        return self.settings.warmup + self.settings.num_samples * self.settings.thin

    def advance(self) -> None:
        """One transition of every chain."""
        began = time.perf_counter()
        settings, adapted = self.settings, self.warmup
        self.state, info = settings.transition(self.target, self.state, adapted.step, adapted.mass, self.streams)
        if self.done < settings.warmup:
            adapted.after(self.done, self.state, info.accept, self.target, self.streams)
        else:
            self._note((self.done - settings.warmup) // settings.thin, info)
        self.done += 1
        self.seconds += time.perf_counter() - began

    def _note(self, row: int, info: Info) -> None:
        """Of thinned transitions the last position is kept, and whether any diverged."""
        self.positions[row] = self.state.position
        found = {**info.columns(), "potential": self.state.potential, "step": self.warmup.step}
        found["divergent"] = self.stats["divergent"][row] | found["divergent"]
        for name, values in found.items():
            self.stats[name][row] = values

    def finish(self, progress: bool, checkpoint: Checkpoint | None) -> Draws:
        if checkpoint is not None:
            checkpoint.resume(self)
        with tqdm(total=self.total, initial=self.done, desc="hmc", delay=3, leave=False, disable=not progress) as bar:
            while self.done < self.total:
                self.advance()
                bar.update()
                if checkpoint is not None:
                    checkpoint.offer(self)
        stats = {n: v.mT.contiguous() for n, v in self.stats.items()}
        return Draws(self.positions.transpose(0, 1).contiguous(), stats, self.warmup.step, self.seconds)

    def tensors(self) -> dict[str, Tensor]:
        """All that changes."""
        state = {"position": self.state.position, "potential": self.state.potential, "gradient": self.state.gradient}
        return {
            **{f"state.{k}": v for k, v in state.items()},
            **{f"warmup.{k}": v for k, v in self.warmup.tensors().items()},
            **{f"stats.{k}": v for k, v in self.stats.items()},
            "positions": self.positions,
            "streams": self.streams.get(),
        }

    def restore(self, tensors: dict[str, Tensor], done: int, seconds: float) -> None:
        def part(name: str) -> dict[str, Tensor]:
            return {k[len(name) + 1 :]: v.to(self.positions.device) for k, v in tensors.items() if k.startswith(name)}

        self.state = State(**part("state"))
        self.warmup.restore(part("warmup"))
        self.stats, self.positions = part("stats"), tensors["positions"].to(self.positions.device)
        self.streams.put(tensors["streams"])
        self.done, self.seconds = done, seconds


class Checkpoint:
    """A file that a run writes now and then and goes on from; ``identity`` says what run it is of."""

    def __init__(self, path: str | Path, identity: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self.file, self.identity, self.clock = (
            CheckpointFile.at(path, "HMC run"),
            json.loads(json.dumps(identity)),
            clock,
        )
        self.written = clock()

    @property
    def path(self) -> Path:
        return self.file.path

    def offer(self, run: Run) -> None:
        """Write, if it is time to or the run is complete; replaced in one step."""
        if run.done < run.total and self.clock() - self.written < EVERY:
            return
        meta = {"identity": self.identity, "done": run.done, "seconds": run.seconds}
        self.file.write(run.tensors(), meta)
        self.written = self.clock()

    def resume(self, run: Run) -> None:
        found = self.file.read()
        if found is None:
            return
        tensors, meta = found
        theirs = meta.get("identity", {})
        for name, mine in self.identity.items():
            if theirs.get(name) != mine and name in DIGESTS:
                raise BadFile(
                    f"the checkpoint {self.path} was made with {DIGESTS[name]} not the same. Go on with the same, or "
                    "remove the file."
                )
            if theirs.get(name) != mine:
                raise BadFile(
                    f"the checkpoint {self.path} was made with {name}={theirs.get(name)!r}, not {mine!r}. Go on with "
                    "the same, or remove the file."
                )
        run.restore(tensors, meta["done"], meta["seconds"])
