"""Atomic file writes, safetensors files and digests. Nothing is ever unpickled."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from whence.errors import BadFile

META, DIGEST = "whence", "whence.sha256"  # keys of a safetensors header: JSON text; digest of it and the tensors
Tensors = dict[str, Tensor]


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary path to write to; it replaces ``path`` atomically at the end, unless an error is raised.

    The file is on disk before it is renamed, so that a power cut leaves the old file or the new one.
    """
    path = Path(path)
    with _as_bad_file(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with _as_bad_file(path):
            temporary.chmod(0o666 & ~_umask())  # temporary and safetensors files are readable only by their owner
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _as_bad_file(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into :class:`BadFile`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise BadFile(f"cannot write {path}: {getattr(error, 'strerror', None) or error}.") from error


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file atomically; missing folders are created."""
    path = Path(path)
    with _as_bad_file(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return path


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write tensors and plain values to a safetensors file, atomically."""
    plain, text = _without_shared_memory(tensors), json.dumps(meta)
    with _as_bad_file(Path(path)), replacing(path) as temporary:
        save_file(plain, str(temporary), metadata={META: text, DIGEST: _digest_of_file(plain, text)})


def _digest_of_file(tensors: Tensors, text: str) -> str:
    names = sorted(tensors)
    return digest((tensors[name] for name in names), json.dumps([text, names]))


def read_tensors(path: str | Path) -> tuple[Tensors, dict[str, Any]]:
    """Read a file of :func:`write_tensors`; one that has changed since is refused, if it has a digest."""
    meta = read_meta(path)
    try:
        with safe_open(str(path), framework="pt") as file:
            tensors, header = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise BadFile(f"{path} is not a readable safetensors file, or is truncated ({error}).") from error
    if DIGEST in header and header[DIGEST] != _digest_of_file(tensors, header[META]):
        raise BadFile(f"{path} is damaged: its content has changed since it was written.")
    return tensors, meta


def read_meta(path: str | Path) -> dict[str, Any]:
    """Read only the plain values of a file."""
    if not Path(path).is_file():
        raise BadFile(f"there is no file {path}.")
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise BadFile(f"{path} is not a readable safetensors file, or is truncated ({error}).") from error
    if META not in header:
        raise BadFile(f"{path} is a safetensors file, but was not written by whence.")
    try:
        found = json.loads(header[META])
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is damaged: its metadata is not JSON ({error}).") from error
    if not isinstance(found, dict):
        raise BadFile(f"{path} is damaged: its metadata is a {type(found).__name__}.")
    return found


def require_folder(path: str | Path, what: str = "") -> Path:
    """Refuse a file name whose folder does not exist; ``what`` names the file in the message."""
    if not Path(path).absolute().parent.is_dir():
        raise BadFile(f"cannot write {what}{path}: the folder {Path(path).parent} is missing.")
    return Path(path)


def digest(tensors: Iterable[Tensor], start: str = "") -> str:
    """sha256 of the types, shapes and bytes of tensors, in their order."""
    found = hashlib.sha256(start.encode())
    for tensor in tensors:
        plain = tensor.detach().cpu().contiguous()
        found.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        found.update(plain.flatten().view(torch.uint8).numpy().data if plain.numel() else b"")
    return found.hexdigest()


def digest_of_values(value: Any) -> str:
    """sha256 of plain values, by their JSON text."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=list).encode()).hexdigest()


def remove(path: str | Path) -> None:
    """Delete a file, and temporary files that killed processes left."""
    path = Path(path)
    for left in (path, *path.absolute().parent.glob(f".{glob.escape(path.name)}.????????.part")):
        left.unlink(missing_ok=True)


def _without_shared_memory(tensors: Mapping[str, Tensor]) -> Tensors:
    """The tensors on the CPU without shared memory, as safetensors requires; copied only if needed."""
    found, seen = {}, set()
    for name, value in tensors.items():
        plain = value.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != plain.nbytes:
            plain = plain.clone()
        seen.add(plain.untyped_storage().data_ptr())
        found[name] = plain
    return found


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system opens folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
