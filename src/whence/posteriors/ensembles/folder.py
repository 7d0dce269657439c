"""Members on disk: one safetensors file each, in a folder that knows what it belongs to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from whence.engine.checkpoint import MEMBER, CheckpointFile
from whence.engine.files import require_folder, write_text
from whence.errors import BadFile, BadOption
from whence.functional import load_tensors, tensors_of, weights_hash

MANIFEST = "ensemble.json"


@dataclass(frozen=True)
class Folder:
    """Finished members, and the state of those in training."""

    path: Path

    @classmethod
    def opened(cls, path: str | Path, manifest: dict[str, Any]) -> Folder:
        """Make the folder, or go on in it if it is of the same fit."""
        folder = Path(path)
        require_folder(folder, "the checkpoints ")
        if folder.exists() and not folder.is_dir():
            raise BadFile(f"the checkpoint of an ensemble is a folder, and {folder} is a file.")
        folder.mkdir(exist_ok=True)
        file = folder / MANIFEST
        plain = json.loads(json.dumps(manifest))
        if file.exists():
            _refuse_others(folder, _read_manifest(file), plain)
        elif any(folder.iterdir()):
            raise BadFile(f"the folder {folder} holds other things than an ensemble; choose an empty or a new one.")
        else:
            write_text(file, json.dumps(plain, indent=1))
        return cls(folder)

    def file(self, index: int) -> Path:
        return self.path / f"member-{index:03d}.safetensors"

    def training(self, index: int | str) -> Path:
        """The state of what is in training: a member, or several together."""
        return self.path / f"training-{index}.safetensors"

    def error(self, index: int) -> Path:
        return self.path / f"member-{index:03d}.error"

    def done(self, index: int) -> bool:
        return self.file(index).exists()

    def put(self, index: int, network: nn.Module, history: list[dict[str, float]]) -> None:
        file = CheckpointFile(self.file(index), MEMBER)
        file.write(tensors_of(network), {"member": index, "history": history})
        self.training(index).unlink(missing_ok=True)

    def get(self, index: int, network: nn.Module) -> list[dict[str, float]]:
        """Load a finished member into a fresh network; its history."""
        tensors, meta = CheckpointFile(self.file(index), MEMBER).existing()
        try:
            load_tensors(network, tensors)
        except RuntimeError as error:
            why = str(error).splitlines()[-1].strip()
            raise BadFile(f"{self.file(index)} is a checkpoint of another network: {why}") from error
        history: list[dict[str, float]] = meta["history"]
        return history


def manifest_of(job: Any, likelihood: Any, first: nn.Module, data: str) -> dict[str, Any]:
    """What decides a fit: the network as the factory makes it from the seed, the data, and the settings."""
    return {
        "network": repr(first),
        "start": weights_hash(first),
        "data": data,
        "seed": job.seed,
        "likelihood": likelihood.spec(),
        "settings": job.settings.spec(),
    }


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    except (OSError, ValueError) as error:
        raise BadFile(f"{file} is damaged ({error}); remove the folder and fit again.") from error


def _refuse_others(folder: Path, its: dict[str, Any], mine: dict[str, Any]) -> None:
    """A folder of another fit gives neither the one nor the other."""
    if its.get("network") != mine["network"]:
        raise BadFile(f"the folder {folder} is of another network; go on with the same factory, or choose a new one.")
    if its.get("data") != mine["data"]:
        raise BadFile(f"the folder {folder} is of other training data; go on with the same, or choose a new one.")
    flat = [{**m.get("settings", {}), "seed": m.get("seed"), "likelihood": m.get("likelihood")} for m in (mine, its)]
    for name, value in flat[0].items():
        if flat[1].get(name) != value:
            raise BadOption(
                f"the folder {folder} was made with {name}={flat[1].get(name)!r}, not {value!r}; go on with the same "
                "settings, or choose a new folder."
            )
    if its.get("start") != mine["start"]:
        raise BadFile(
            f"the folder {folder} is of a factory that starts from other weights; go on with the same factory, or "
            "choose a new folder."
        )
