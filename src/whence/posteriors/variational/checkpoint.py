"""The state of a variational training on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence.batches import Data, from_numpy, is_pair, tensors_in
from whence.engine.checkpoint import CheckpointFile
from whence.engine.files import digest
from whence.errors import BadFile, BadOption
from whence.posteriors.variational.history import Row
from whence.posteriors.variational.module import VariationalModule

Tensors = dict[str, Tensor]
DATA = {"data": "training", "validation": "validation"}  # what a checkpoint knows by a fingerprint


def fingerprint(data: Data | None) -> str | None:
    """A digest of tensors, or of a list of batches; of a loader, whose order changes, its kind and its length."""
    if data is None:
        return None
    if not (is_pair(data.source) or isinstance(data.source, (list, tuple))):
        return f"{type(data.source).__name__} of {data.length()} batches"
    start = "pair" if is_pair(data.source) else "batches"  # which are cut anew, or as they are
    return digest(tensors_in([from_numpy(item) for item in data.source]), start)


@dataclass(frozen=True)
class Progress:
    """The epochs so far, and the best variational parameters on validation data."""

    rows: tuple[Row, ...] = ()
    best: Tensors | None = None
    best_epoch: int | None = None

    @property
    def seconds(self) -> float:
        return self.rows[-1].seconds if self.rows else 0.0

    def after(self, row: Row, module: VariationalModule) -> Progress:
        """With one more epoch."""
        rows = (*self.rows, row)
        if row.validation is None:
            return Progress(rows)
        earlier = [r.validation for r in self.rows if r.validation is not None]
        if earlier and row.validation >= min(earlier):
            return Progress(rows, self.best, self.best_epoch)
        best = {k: v.detach().clone() for k, v in module.blocks.state_dict().items()}
        return Progress(rows, best, row.epoch)

    def stale(self, patience: int | None) -> bool:
        """Whether the validation loss has not improved for that many epochs."""
        return patience is not None and self.best_epoch is not None and len(self.rows) - self.best_epoch >= patience


@dataclass(frozen=True)
class Checkpoint:
    """A file that a training writes after every epoch, and goes on from."""

    file: CheckpointFile
    meta: dict[str, Any]  # what must be the same

    @property
    def path(self) -> Path:
        return self.file.path

    @classmethod
    def at(
        cls,
        path: str | Path | None,
        module: VariationalModule,
        settings: dict[str, Any],
        data: Data,
        validation: Data | None,
    ) -> Checkpoint | None:
        if path is None:
            return None
        file = CheckpointFile.at(path, "variational training")
        shapes = {n: list(v.shape) for n, v in module.mean().items()}
        known = {"data": fingerprint(data), "validation": fingerprint(validation)}
        return cls(file, {"network": module.origin_hash, "names": shapes, "settings": settings, **known})

    def write(self, done: Progress, module: VariationalModule, optimiser: torch.optim.Optimizer) -> None:
        tensors = {f"blocks.{k}": v for k, v in module.blocks.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in (done.best or {}).items()}
        for index, values in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{k}": torch.as_tensor(v) for k, v in values.items()}
        meta = self.meta | {"rows": [asdict(r) for r in done.rows], "best_epoch": done.best_epoch}
        self.file.write(tensors, meta)

    def load(self, module: VariationalModule, optimiser: torch.optim.Optimizer) -> Progress:
        """Where the training stood; module and optimiser are set to it. A fresh start if there is no file."""
        found = self.file.read()
        if found is None:
            return Progress()
        tensors, meta = found
        self._refuse_others(meta)
        parts: dict[str, Tensors] = {"blocks": {}, "best": {}, "optimiser": {}}
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = value
        module.blocks.load_state_dict(parts["blocks"])
        state = optimiser.state_dict()
        state["state"] = {}
        for key, value in parts["optimiser"].items():
            index, name = key.split(".", 1)
            state["state"].setdefault(int(index), {})[name] = value
        optimiser.load_state_dict(state)
        device = next(module.parameters()).device
        best = {k: v.to(device) for k, v in parts["best"].items()} or None
        return Progress(tuple(Row(**row) for row in meta["rows"]), best, meta["best_epoch"])

    def _refuse_others(self, meta: dict[str, Any]) -> None:
        """A checkpoint of other weights or other settings would give neither the one training nor the other."""
        mine = json.loads(json.dumps(self.meta))
        if mine["names"] != meta["names"]:
            name = next(iter(set(map(str, mine["names"].items())) ^ set(map(str, meta["names"].items()))), "")
            raise BadFile(f"the checkpoint {self.path} is of another network: they differ in {name}.")
        if mine["network"] != meta["network"]:
            raise BadFile(
                f"the checkpoint {self.path} is of another network: the parameters have the same shapes but other "
                "values. Start from the same model, or remove the file."
            )
        if "data" not in meta:
            raise BadFile(
                f"the checkpoint {self.path} does not say which data it is of: an earlier whence wrote it. Remove it "
                "and train anew."
            )
        if mine["settings"]["data_size"] != meta["settings"].get("data_size"):
            raise BadFile(
                f"the checkpoint {self.path} is of {meta['settings'].get('data_size')} training examples, not of "
                f"{mine['settings']['data_size']}. Go on with the same data, or remove the file."
            )
        for key, kind in DATA.items():
            if mine[key] != meta.get(key):
                raise BadFile(
                    f"the checkpoint {self.path} is of other {kind} data than these. Go on with the same {key}=, or "
                    "remove the file."
                )
        for key, value in mine["settings"].items():
            if value != meta["settings"].get(key):
                raise BadOption(
                    f"the checkpoint {self.path} was made with {key}={meta['settings'].get(key)!r}, not {value!r}. Go "
                    "on with the same settings, or remove the file."
                )
