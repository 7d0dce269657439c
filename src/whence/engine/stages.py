"""The checkpoint of a fit, from which an interrupted fit resumes.

A fit passes over the data in stages (one, or two for ``ekfac``, or one for each product of ``lowrank``). The file
contains the sums of every stage so far and the number of batches that they count. It is replaced atomically, and
nothing in it is unpickled.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from whence.engine.batches import Batch
from whence.engine.checkpoint import CheckpointFile
from whence.engine.checks import read_checks, tensors_in
from whence.engine.files import digest
from whence.engine.options import CHECKPOINT_EVERY
from whence.errors import BadFile, notice

AFRESH = "Delete the file to start again."
VALUES = "the values of the likelihood"  # key of the signature whose values are compared up to rounding
CLOSE = 1e-3  # relative to the largest value
State = dict[str, Tensor]


class RunningSums(Protocol):
    """Running sums that can be saved and restored."""

    def state(self) -> State: ...

    def load_state(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass
class NamedSums:
    """Running sums by name, created at the first batch."""

    device: torch.device
    values: State = field(default_factory=dict)

    def state(self) -> State:
        return self.values

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if not self.values:
            self.values = {name: value.to(self.device) for name, value in state.items()}
        for name, value in self.values.items():  # in place: products may depend on the memory layout of a matrix
            value.copy_(state[name])


@dataclass
class Stage:
    """One stage: its sums, and how many batches they count."""

    label: str
    basis: str  # digest of the results of earlier stages that it uses
    batches: int = 0  # number of batches in the sums
    last: str = ""  # digest of the last batch in the sums
    complete: bool = False
    states: list[State] = field(default_factory=list)


class FitCheckpoint:
    """A file that a fit saves to at intervals, resumes from, and deletes once complete."""

    def __init__(self, path: str | Path, every: float = CHECKPOINT_EVERY, *, seed_given: bool = False) -> None:
        self.file, self.every = CheckpointFile.at(Path(path).absolute(), "fit"), every
        self.file.try_out()
        self.seed_given = seed_given  # whether the seed comes from the caller's generator
        self.signature: dict[str, Any] = {}
        self.seed: int | None = None  # seed of the fit's draws
        self.stages: list[Stage] = []  # of this fit, in order
        self.found: list[Stage] = []  # in the file
        self._meta: dict[str, Any] | None = None
        self._read()
        self._began = self._wrote = time.monotonic()

    @property
    def path(self) -> Path:
        return self.file.path

    # Resuming

    def belongs(self, signature: dict[str, Any], source: Any = None) -> None:
        """Refuse a file of another fit; ``source`` is the data."""
        self.signature = json.loads(json.dumps(signature, default=str))
        if self._meta is None:
            if shuffles(source):
                notice(
                    f"the loader shuffles, so an interrupted fit can resume from {self.path} only if torch's seed "
                    "gives the same order again; shuffle=False is safer."
                )
            return
        its = self._meta["signature"]
        for key, mine in self.signature.items():
            if not (_close(its.get(key), mine) if key == VALUES else its.get(key) == mine):
                raise BadFile(
                    f"the checkpoint {self.path} belongs to another fit: {key} was {_short(its.get(key))} and is now "
                    f"{_short(mine)}. Resume with the same network, data and options. {AFRESH}"
                )
        counted = self.found[-1].batches if self.found else 0
        notice(f"resuming from {self.path}: {counted} batches of {self._meta['stages'][-1]['label']!r} are done.")

    @property
    def known_seed(self) -> int | None:
        """The seed of the fit in the file; None for a new fit."""
        known = None if self._meta is None else self._meta["seed"]
        return None if known is None else int(known)

    def common_seed(self, found: Sequence[tuple[int | None, int, bool]]) -> int:
        """The seed of all ranks, from each rank's known seed, drawn seed and whether the caller gave it.

        It is the seed in any rank's file, so that a rank without a file joins the others; otherwise rank 0's.
        """
        files = {rank: known for rank, (known, _, _) in enumerate(found) if known is not None}
        _, self.seed, given = found[0]
        if not files:
            return self.seed
        if len(set(files.values())) > 1:
            raise BadFile(
                f"the checkpoints of the ranks belong to several fits: their seeds are {files}, by rank. Delete the "
                f"files of all ranks to start again, here {self.path}."
            )
        known = next(iter(files.values()))
        if given and known != self.seed:
            where = "" if len(found) == 1 else f" (here rank {min(files)}'s)"
            raise BadFile(
                f"the checkpoint {self.path}{where} belongs to a fit whose generator differs. Resume with the "
                f"same seed. {AFRESH}"
            )
        self.seed = known
        return known

    def stage(self, label: str, running: Sequence[RunningSums], basis: str) -> Stage:
        """The next stage, with its sums restored from the file."""
        number, stage = len(self.stages), Stage(label, basis)
        self.stages.append(stage)
        if number < len(self.found) and self.found[number].basis == basis:
            stage = self.stages[-1] = self.found[number]
            try:
                for one, state in zip(running, stage.states, strict=True):
                    one.load_state(state)
            except (ValueError, RuntimeError, KeyError) as error:
                raise BadFile(f"the checkpoint {self.path} does not match the network ({error}). {AFRESH}") from error
        stage.states = [one.state() for one in running]
        self.file.require_space(t for each in self.stages for state in each.states for t in state.values())
        return stage

    def check_last(self, stage: Stage, batch: Batch) -> None:
        """Check that the last counted batch is the same again."""
        if digest_of_batch(batch) != stage.last:
            raise BadFile(
                f"the data have changed or are in another order than when {self.path} was written: batch "
                f"{batch.index} is not the one that was added. Use shuffle=False (or a seeded order) and no random "
                f"augmentation to resume from a checkpoint. {AFRESH}"
            )

    # Writing

    def offer(
        self, stage: Stage, running: Sequence[RunningSums], count: int, batch: Batch, *, complete: bool = False
    ) -> None:
        """Save if it is time to: ``count`` batches are in the sums, the last of them ``batch``."""
        now = time.monotonic()
        stage.complete = complete
        if now - (self._began if complete else self._wrote) < self.every:
            if complete:
                stage.batches, stage.last = count, digest_of_batch(batch)
                stage.states = [one.state() for one in running]
            return
        read_checks()  # save nothing that has not been checked
        stage.batches, stage.last = count, digest_of_batch(batch)
        stage.states = [one.state() for one in running]
        try:
            self._write()
        except BadFile as error:
            notice(f"{str(error).rstrip('.')}; the fit continues without a newer checkpoint.")
        self._wrote = time.monotonic()

    def remove(self) -> None:
        """Delete the file, once the fit is complete."""
        self.file.remove()

    def _write(self) -> None:
        tensors: State = {}
        stages = []
        for i, stage in enumerate(self.stages):
            plain = {k: v for k, v in vars(stage).items() if k != "states"}
            stages.append({**plain, "states": [list(state) for state in stage.states]})
            for j, state in enumerate(stage.states):
                tensors |= {f"{i}.{j}.{name}": value for name, value in state.items()}
        self.file.write(tensors, {"signature": self.signature, "seed": self.seed, "stages": stages})

    def _read(self) -> None:
        found = self.file.read()
        if found is None:
            return
        tensors, self._meta = found
        for i, plain in enumerate(self._meta["stages"]):
            states = [{n: tensors[f"{i}.{j}.{n}"] for n in names} for j, names in enumerate(plain["states"])]
            self.found.append(Stage(**{**plain, "states": states}))


def of_rank(path: str | Path, rank: int, size: int) -> Path:
    """A separate file for each rank."""
    path = Path(path)
    return path if size == 1 else path.with_name(f"{path.stem}.rank{rank}-of-{size}{path.suffix}")


def shuffles(source: Any) -> bool:
    """Whether a loader's order comes from torch's default generator."""
    sampler = getattr(source, "sampler", None)
    return isinstance(sampler, RandomSampler) and sampler.generator is None and source.generator is None


def reorders(source: Any) -> bool:
    """Whether a loader's order may differ between passes."""
    if not isinstance(source, DataLoader):
        return False
    batches = source.batch_sampler
    if source.generator is not None or (batches is not None and type(batches) is not BatchSampler):
        return True
    sampler = batches.sampler if isinstance(batches, BatchSampler) else source.sampler
    return not isinstance(sampler, (SequentialSampler, DistributedSampler))


def digest_of_batch(batch: Batch) -> str:
    return digest([*tensors_in(batch.inputs), batch.targets])


def _close(its: Any, mine: Any) -> bool:
    """Whether lists of numbers, by name, are equal up to rounding."""
    if not isinstance(its, dict) or not isinstance(mine, dict) or its.keys() != mine.keys():
        return bool(its == mine)
    for key in mine:
        one, other = (torch.tensor(v, dtype=torch.float64) for v in (its[key], mine[key]))
        if one.shape != other.shape:
            return False
        scale = float(other[other.isfinite()].abs().max()) if other.isfinite().any() else 0.0
        if not torch.allclose(one, other, rtol=0.0, atol=CLOSE * scale, equal_nan=True):
            return False
    return True


def _short(value: Any) -> str:
    """Shorten digests and long lists for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
