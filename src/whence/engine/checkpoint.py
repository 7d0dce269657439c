"""Checkpoint files: one format for fits, training runs and chains."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from whence._version import __version__
from whence.engine.files import (
    Tensors,
    read_meta,
    read_tensors,
    remove,
    replacing,
    require_folder,
    write_tensors,
)
from whence.errors import BadFile

FORMAT = 2
# Kinds of work that several modules read or write.
TRAINING, TRAINED, MEMBER = "training", "trained network", "member of an ensemble"
TOGETHER, COLLECTION = "training of several members", "collection of weights for SWAG"


@dataclass(frozen=True)
class CheckpointFile:
    """A safetensors file with tensors, plain values and a digest of the tensors; replaced atomically."""

    path: Path
    kind: str  # kind of work: "fit", "training", "HMC run" …

    @classmethod
    def at(cls, path: str | Path, kind: str) -> CheckpointFile:
        """A checkpoint at ``path``; refused before the work starts if it cannot be written."""
        place = require_folder(path, "the checkpoint ")
        if place.is_dir():
            raise BadFile(f"the checkpoint of a {kind} must be a file, but {path} is a folder.")
        return cls(place, kind)

    def try_out(self) -> None:
        """Test that the folder can be written to."""
        with replacing(self.path.with_name(f".{self.path.name}.trial")) as temporary:
            temporary.write_bytes(b"whence")
        self.path.with_name(f".{self.path.name}.trial").unlink()

    def write(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Replace the file."""
        head = {"kind": f"checkpoint of a {self.kind}", "format": FORMAT, "whence": __version__}
        write_tensors(self.path, tensors, {**meta, **head})

    def read(self) -> tuple[Tensors, dict[str, Any]] | None:
        """The last content, or None if there is no file."""
        if not self.path.exists():
            return None
        try:
            meta = read_meta(self.path)
            if meta.get("kind") != f"checkpoint of a {self.kind}":
                raise BadFile(f"it is not the checkpoint of a {self.kind}")
            if meta.get("format") != FORMAT:
                raise BadFile(f"it was written by a different version of whence ({meta.get('whence')})")
            tensors, _ = read_tensors(self.path)
        except BadFile as error:
            why = str(error).replace(str(self.path), "it").rstrip(".")
            raise BadFile(
                f"the checkpoint {self.path} cannot be used: {why}. Choose another name, or delete the file to start "
                "again."
            ) from error
        return tensors, meta

    def remove(self) -> None:
        """Delete the file, once the work is complete."""
        remove(self.path)

    def existing(self) -> tuple[Tensors, dict[str, Any]]:
        """The content; an error if there is no file."""
        found = self.read()
        if found is None:
            raise BadFile(f"there is no file {self.path}.")
        return found

    def require_space(self, tensors: Iterable[Tensor]) -> None:
        """Refuse tensors that do not fit on the disk."""
        needed = sum(t.numel() * t.element_size() for t in tensors)
        free = shutil.disk_usage(self.path.absolute().parent).free
        if needed > free:
            raise BadFile(
                f"a checkpoint at {self.path} needs {needed / 2**20:,.0f} MiB, but {free / 2**20:,.0f} MiB are free "
                "there. Choose another disk, or checkpoint=None."
            )
