"""The sums of a fit on disk, so that a fit that was killed goes on where it stood.

A fit passes over the data in stages (one, or two for ``ekfac``, or one for each product of ``lowrank``). The file
holds the sums of every stage so far and the number of batches that they count; it is replaced in one step, and
nothing in it is unpickled.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from whence.batches import Batch
from whence.checks import settle_checks, tensors_in
from whence.engine.checkpoint import CheckpointFile
from whence.engine.files import digest
from whence.errors import BadFile, BadOption, notice

EVERY = 60.0  # seconds between two writings
AFRESH = "Delete the file to start afresh."
VALUES = "the values of the likelihood"  # key of a signature whose numbers need not have the same bits
CLOSE = 1e-3  # of the largest
State = dict[str, Tensor]


class Kept(Protocol):
    """Running sums that can be written and set."""

    def state(self) -> State: ...

    def load_state(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass
class Sums:
    """Running sums by name, made when the first batch shows what they are."""

    device: torch.device
    values: State = field(default_factory=dict)

    def state(self) -> State:
        return self.values

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if not self.values:
            self.values = {name: value.to(self.device) for name, value in state.items()}
        for name, value in self.values.items():  # in place: products may depend on how a matrix lies in memory
            value.copy_(state[name])


@dataclass
class Stage:
    """One stage: what it has counted, and its sums."""

    label: str
    basis: str  # digest of what earlier stages gave it to compute with
    batches: int = 0  # counted
    last: str = ""  # digest of the last batch that was counted
    complete: bool = False
    states: list[State] = field(default_factory=list)


class Checkpoint:
    """A file that a fit writes now and then, goes on from, and removes once it is complete."""

    def __init__(self, path: str | Path, every: float = EVERY, *, seed_given: bool = False) -> None:
        self.file, self.every = CheckpointFile.at(Path(path).absolute(), "fit"), check_every(every)
        self.file.try_out()
        self.seed_given = seed_given  # by a generator of the caller's
        self.signature: dict[str, Any] = {}
        self.seed: int | None = None  # of what the fit draws
        self.stages: list[Stage] = []  # of this fit, in order
        self.found: list[Stage] = []  # in the file
        self._meta: dict[str, Any] | None = None
        self._read()
        self._began = self._wrote = time.monotonic()

    @property
    def path(self) -> Path:
        return self.file.path

    # Going on

    def belongs(self, signature: dict[str, Any], source: Any = None) -> None:
        """Refuse a file of another fit; ``source`` are the data."""
        self.signature = json.loads(json.dumps(signature, default=str))
        if self._meta is None:
            if shuffles(source):
                notice(
                    f"the loader shuffles, so that a fit that was killed goes on from {self.path} only if torch's seed "
                    "brings the same order again; shuffle=False is surer."
                )
            return
        its = self._meta["signature"]
        for key, mine in self.signature.items():
            if not (_close(its.get(key), mine) if key == VALUES else its.get(key) == mine):
                raise BadFile(
                    f"the checkpoint {self.path} is of another fit: {key} was {_short(its.get(key))} and is now "
                    f"{_short(mine)}. Go on with the same network, data and options. {AFRESH}"
                )
        counted = self.found[-1].batches if self.found else 0
        notice(f"going on from {self.path}: {counted} batches of {self._meta['stages'][-1]['label']!r} are counted.")

    @property
    def known_seed(self) -> int | None:
        """The seed of the fit that the file is of; None for a new one."""
        known = None if self._meta is None else self._meta["seed"]
        return None if known is None else int(known)

    def seeded(self, found: Sequence[tuple[int | None, int, bool]]) -> int:
        """The seed of all ranks, from the known and the drawn seed of each and whether the caller gave it.

        It is that of any file, so that a rank whose file is missing goes on with the others; or what rank 0 drew.
        """
        files = {rank: known for rank, (known, _, _) in enumerate(found) if known is not None}
        _, self.seed, given = found[0]
        if not files:
            return self.seed
        if len(set(files.values())) > 1:
            raise BadFile(
                f"the checkpoints of the ranks are of several fits: their seeds are {files}, by rank. Delete the "
                f"files of all ranks to start afresh, here {self.path}."
            )
        known = next(iter(files.values()))
        if given and known != self.seed:
            where = "" if len(found) == 1 else f" (here rank {min(files)}'s)"
            raise BadFile(
                f"the checkpoint {self.path}{where} is of a fit whose generator gave other numbers. Go on with the "
                f"same seed. {AFRESH}"
            )
        self.seed = known
        return known

    def stage(self, label: str, kept: Sequence[Kept], basis: str) -> Stage:
        """The next stage; its sums are set to what the file has of it."""
        number, stage = len(self.stages), Stage(label, basis)
        self.stages.append(stage)
        if number < len(self.found) and self.found[number].basis == basis:
            stage = self.stages[-1] = self.found[number]
            try:
                for one, state in zip(kept, stage.states, strict=True):
                    one.load_state(state)
            except (ValueError, RuntimeError, KeyError) as error:
                raise BadFile(f"the checkpoint {self.path} does not fit the network ({error}). {AFRESH}") from error
        stage.states = [one.state() for one in kept]
        self.file.require_space(t for each in self.stages for state in each.states for t in state.values())
        return stage

    def check_last(self, stage: Stage, batch: Batch) -> None:
        """The last batch that was counted must be there again."""
        if digest_of_batch(batch) != stage.last:
            raise BadFile(
                f"the data come in another order than when {self.path} was written, or have changed: batch "
                f"{batch.index} is not the one that was counted. Use shuffle=False (or a seeded order) and no random "
                f"augmentation to go on from a checkpoint. {AFRESH}"
            )

    # Writing

    def offer(self, stage: Stage, kept: Sequence[Kept], count: int, batch: Batch, *, complete: bool = False) -> None:
        """Write, if it is time to: ``count`` batches are in the sums, the last of them ``batch``."""
        now = time.monotonic()
        stage.complete = complete
        if now - (self._began if complete else self._wrote) < self.every:
            if complete:
                stage.batches, stage.last = count, digest_of_batch(batch)
                stage.states = [one.state() for one in kept]
            return
        settle_checks()  # nothing is kept that was not looked at
        stage.batches, stage.last = count, digest_of_batch(batch)
        stage.states = [one.state() for one in kept]
        try:
            self._write()
        except BadFile as error:
            notice(f"{str(error).rstrip('.')}; the fit goes on without a newer checkpoint.")
        self._wrote = time.monotonic()

    def remove(self) -> None:
        """The fit is complete."""
        self.file.remove()

    def _write(self) -> None:
        tensors: State = {}
        stages = []
        for i, stage in enumerate(self.stages):
            plain = {k: v for k, v in asdict_of(stage).items() if k != "states"}
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


def asdict_of(stage: Stage) -> dict[str, Any]:
    """Its fields; tensors are not copied."""
    return dict(vars(stage))


def check_every(every: float) -> float:
    if isinstance(every, bool) or not isinstance(every, (int, float)) or not 0 <= every < math.inf:
        raise BadOption(f"checkpoint_every={every!r} must be a number of seconds, 0 (after every batch) or more.")
    return float(every)


def of_rank(path: str | Path, rank: int, size: int) -> Path:
    """A file of its own for each of several ranks."""
    if not isinstance(path, (str, os.PathLike)):
        raise BadOption(f"checkpoint is a {type(path).__name__}; pass the name of a file.")
    path = Path(path)
    return path if size == 1 else path.with_name(f"{path.stem}.rank{rank}-of-{size}{path.suffix}")


def shuffles(source: Any) -> bool:
    """Whether a loader's order comes from torch's default generator."""
    sampler = getattr(source, "sampler", None)
    return isinstance(sampler, RandomSampler) and sampler.generator is None and source.generator is None


def reorders(source: Any) -> bool:
    """Whether a loader may have another order in each pass."""
    if not isinstance(source, DataLoader):
        return False
    batches = source.batch_sampler
    if source.generator is not None or (batches is not None and type(batches) is not BatchSampler):
        return True
    sampler = batches.sampler if isinstance(batches, BatchSampler) else source.sampler
    return not isinstance(sampler, (SequentialSampler, DistributedSampler))


def digest_of_batch(batch: Batch) -> str:
    return digest([*tensors_in(batch.inputs), batch.targets])


def signature_of(options: Any, **more: Any) -> dict[str, Any]:
    """What decides the sums of a fit, by name."""
    plain = asdict(options)
    draws = plain.pop("draws")
    plain = {k: v for k, v in plain.items() if k not in ("progress", "offload", "cuda_graphs")}
    return {**more, **plain, "draws": draws["count"]}


def _close(its: Any, mine: Any) -> bool:
    """Whether lists of numbers are the same to rounding, by name."""
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
    """For a message: digests and long lists are cut."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
