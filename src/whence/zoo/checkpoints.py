"""The state of a training on disk."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.engine.checkpoint import TRAINING, CheckpointFile
from whence.errors import BadFile, BadOption
from whence.functional import load_tensors, tensors_of
from whence.zoo.settings import Settings
from whence.zoo.training import Row

State = dict[str, Tensor]


@dataclass(frozen=True)
class Progress:
    """How far a training is: the epochs so far, and the best weights on validation data."""

    rows: tuple[Row, ...] = ()
    best: State | None = None
    best_epoch: int | None = None

    @property
    def epoch(self) -> int:
        return len(self.rows)

    @property
    def seconds(self) -> float:
        return self.rows[-1].seconds if self.rows else 0.0

    def after(self, row: Row, network: nn.Module, settings: Settings) -> Progress:
        """With one more epoch; the weights are kept where they are the best so far and will be wanted."""
        more = replace(self, rows=(*self.rows, row))
        if not row.validation or not _quality(row, settings) > self._best_quality(settings):
            return more  # NaN is never better
        best = None if settings.patience is None else {k: v.detach().clone() for k, v in tensors_of(network).items()}
        return replace(more, best=best, best_epoch=row.epoch)

    def stale(self, settings: Settings) -> bool:
        """Whether validation has not improved for ``patience`` epochs."""
        if settings.patience is None or self.best_epoch is None:
            return False
        return self.epoch - self.best_epoch >= settings.patience

    def _best_quality(self, settings: Settings) -> float:
        return -math.inf if self.best_epoch is None else _quality(self.rows[self.best_epoch - 1], settings)


def _quality(row: Row, settings: Settings) -> float:
    if settings.monitor not in row.validation:
        raise BadOption(f"monitor={settings.monitor!r} is not measured here; there is {', '.join(row.validation)}.")
    value = row.validation[settings.monitor]
    return value if settings.monitor == "accuracy" else -value


@dataclass
class Checkpoint:
    """A file that a training writes now and then, and goes on from."""

    file: CheckpointFile
    every: float  # seconds
    meta: dict[str, Any]
    written: float

    @classmethod
    def at(
        cls,
        path: str | Path | None,
        every: float,
        settings: Settings,
        seed: int,
        network: nn.Module,
        data: list[str],
    ) -> Checkpoint | None:
        if path is None:
            return None
        meta = {"settings": settings.spec(), "seed": seed, "network": repr(network), "data": data}
        return cls(CheckpointFile.at(path, TRAINING), every, meta, -math.inf)

    @property
    def path(self) -> Path:
        return self.file.path

    def offer(self, done: Progress, network: nn.Module, optimiser: torch.optim.Optimizer, last: bool) -> None:
        """Write, if it is time to."""
        if not last and time.monotonic() - self.written < self.every:
            return
        tensors = {f"network.{k}": v for k, v in tensors_of(network).items()}
        tensors |= {f"best.{k}": v for k, v in (done.best or {}).items()}
        state = optimiser.state_dict()
        plain: dict[str, dict[str, Any]] = {}
        for index, values in state["state"].items():
            tensors |= {f"optimiser.{index}.{k}": v for k, v in values.items() if isinstance(v, Tensor)}
            plain[str(index)] = {k: v for k, v in values.items() if not isinstance(v, Tensor)}
        meta = self.meta | {"rows": [asdict(r) for r in done.rows], "best_epoch": done.best_epoch, "optimiser": plain}
        self.file.write(tensors, meta)
        self.written = time.monotonic()

    def load(self, network: nn.Module, optimiser: torch.optim.Optimizer) -> Progress:
        """Where the training stood: network and optimiser are set to it. A fresh start if there is no file."""
        found = self.file.read()
        if found is None:
            return Progress()
        tensors, meta = found
        self._refuse_others(meta)
        parts: dict[str, State] = {"network": {}, "best": {}, "optimiser": {}}
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = value
        device = next(network.parameters()).device
        try:
            load_tensors(network, parts["network"])
        except RuntimeError as error:
            raise BadFile(
                f"the checkpoint {self.path} is of another network: {str(error).splitlines()[-1].strip()}"
            ) from error
        state = optimiser.state_dict()
        state["state"] = {int(index): dict(values) for index, values in meta["optimiser"].items()}
        for key, value in parts["optimiser"].items():
            index, name = key.split(".", 1)
            state["state"].setdefault(int(index), {})[name] = value
        optimiser.load_state_dict(state)
        if len(meta["rows"]) > self.meta["settings"]["epochs"]:
            raise BadOption(
                f"the checkpoint {self.path} has trained for {len(meta['rows'])} epochs, not "
                f"{self.meta['settings']['epochs']}. Remove the file to train anew."
            )
        best = {k: v.to(device) for k, v in parts["best"].items()} or None
        return Progress(tuple(Row(**row) for row in meta["rows"]), best, meta["best_epoch"])

    def _refuse_others(self, meta: dict[str, Any]) -> None:
        """A checkpoint of other settings would give neither the one training nor the other."""
        mine, its = json.loads(json.dumps(self.meta)), {key: meta.get(key) for key in self.meta}
        for key, what in (("network", "another network"), ("data", "other data")):
            if mine.pop(key) != its.pop(key):
                raise BadFile(f"the checkpoint {self.path} is of {what}. Go on with the same, or remove the file.")
        if mine["settings"]["schedule"]["name"] in ("constant", "step", "milestones"):
            mine["settings"].pop("epochs"), (its["settings"] or {}).pop("epochs", None)
        if mine == its:
            return
        flat = {**mine["settings"], "seed": mine["seed"]}, {**(its["settings"] or {}), "seed": its["seed"]}
        name = next(key for key in flat[0] if flat[0][key] != flat[1].get(key))
        raise BadOption(
            f"the checkpoint {self.path} was made with {name}={flat[1].get(name)!r}, not {flat[0][name]!r}. "
            "Go on with the same settings, or remove the file."
        )
