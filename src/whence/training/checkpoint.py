"""The checkpoint of a training: weights, optimiser and history, and what they belong to."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.engine.checkpoint import CheckpointFile
from whence.errors import BadFile, BadOption
from whence.training.loop import Progress, R, Tensors, Trainable


@dataclass
class TrainingCheckpoint:
    """A file that a training saves regularly and resumes from."""

    file: CheckpointFile
    identity: dict[str, Any]  # values that must be the same to resume
    described: Mapping[str, str]  # names of entries that are not shown by value
    every: float = 0.0  # seconds
    written: float = field(default=-math.inf, init=False)

    def offer(self, done: Progress[R], trainable: Trainable[R], last: bool) -> None:
        """Save, if it is time to."""
        if not last and time.monotonic() - self.written < self.every:
            return
        tensors = prefixed(
            weights=trainable.state(), best=done.best or {}, optimiser=_optimiser_tensors(trainable.optimiser)
        )
        meta = {"rows": [asdict(r) for r in done.records], "best_epoch": done.best_epoch, "identity": self.identity}
        self.file.write(tensors, meta)
        self.written = time.monotonic()

    def resume(self, trainable: Trainable[R], epochs: int) -> Progress[R]:
        """Restore the training from the file; start from the beginning if there is none."""
        found = self.file.read()
        if found is None:
            return Progress()
        tensors, meta = found
        path = self.file.path
        refuse_other(f"the checkpoint {path}", self.identity, meta.get("identity", {}), self.described)
        if len(meta["rows"]) > epochs:
            raise BadOption(
                f"the checkpoint {path} has trained for {len(meta['rows'])} epochs, not {epochs}. Delete the file to "
                "start over."
            )
        try:
            trainable.load_state(part_of(tensors, "weights"))
        except RuntimeError as error:
            why = str(error).splitlines()[-1].strip()
            raise BadFile(f"the checkpoint {path} belongs to another network: {why}") from error
        _load_optimiser(trainable.optimiser, part_of(tensors, "optimiser"))
        best = {k: v.to(trainable.device) for k, v in part_of(tensors, "best").items()} or None
        records: Any = tuple(trainable.record(**row) for row in meta["rows"])
        return Progress(records, best, meta["best_epoch"])


def prefixed(**parts: Mapping[str, Tensor]) -> Tensors:
    """Tensors of several parts for one file."""
    return {f"{part}.{name}": value for part, tensors in parts.items() for name, value in tensors.items()}


def part_of(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    """One part of :func:`prefixed` tensors."""
    return {key.removeprefix(f"{part}."): value for key, value in tensors.items() if key.startswith(f"{part}.")}


def _optimiser_tensors(optimiser: torch.optim.Optimizer) -> Tensors:
    states = optimiser.state_dict()["state"].items()
    return {f"{i}.{k}": torch.as_tensor(v) for i, values in states for k, v in values.items() if v is not None}


def _load_optimiser(optimiser: torch.optim.Optimizer, tensors: Tensors) -> None:
    state = optimiser.state_dict()
    state["state"] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state["state"].setdefault(int(index), {})[name] = value
    optimiser.load_state_dict(state)


def refuse_other(what: str, mine: Mapping[str, Any], its: Mapping[str, Any], described: Mapping[str, str]) -> None:
    """Refuse to resume work that began with other values; ``described`` names entries that are not shown by value.

    The entries are compared in their JSON form.
    """
    if not its:
        raise BadFile(f"{what} does not say what it belongs to. Delete it to start over.")
    for key, value in json.loads(json.dumps(mine)).items():
        other = its.get(key)
        if other == value:
            continue
        if key in described:
            raise BadFile(
                f"{what} belongs to {described[key]}{_difference(value, other)}. Resume with the same, or delete it."
            )
        raise BadOption(f"{what} was made with {key}={other!r}, not {value!r}. Resume with the same, or delete it.")


def _difference(mine: Any, its: Any) -> str:
    """The first entry that two mappings of names to shapes do not share."""
    if not isinstance(mine, dict) or not isinstance(its, dict):
        return ""
    name = next((n for n in {**mine, **its} if mine.get(n) != its.get(n)), "")
    here, there = (d.get(name, "missing") for d in (mine, its))
    return f": {name!r} is {here} here and {there} in the file"
