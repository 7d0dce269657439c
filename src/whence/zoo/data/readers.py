"""Readers of file formats. Errors are one line that names the file."""

from __future__ import annotations

import hashlib
import io
import lzma
import math
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whence.errors import BadFile

AGAIN = "Delete it and load again."
BROKEN = (OSError, EOFError, RuntimeError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)
_IDX_UINT8 = 0x08


def idx(content: bytes, path: Path, dims: int) -> np.ndarray:
    """Unsigned bytes in the idx format, with ``dims`` dimensions."""
    if len(content) < 4 + 4 * dims:
        raise BadFile(f"{path} is truncated: {len(content)} bytes are fewer than its header has. {AGAIN}")
    if content[:2] != b"\0\0" or content[2] != _IDX_UINT8 or content[3] != dims:
        want = bytes([0, 0, _IDX_UINT8, dims]).hex()
        raise BadFile(
            f"{path} is not an idx file of this kind: it begins with {content[:4].hex()}, not {want}. {AGAIN}"
        )
    shape = tuple(int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims))
    offset = 4 + 4 * dims
    expected = math.prod(shape)
    if len(content) - offset != expected:
        sizes = " x ".join(map(str, shape))
        raise BadFile(f"{path} has {len(content) - offset} values, but its header says {sizes} = {expected}. {AGAIN}")
    return np.frombuffer(content, np.uint8, offset=offset).reshape(shape)


def cifar(content: bytes, path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32) and labels of a CIFAR binary file; the last (finest) of several labels."""
    record = label_bytes + 3072
    if not content or len(content) % record:
        raise BadFile(f"{path} is {len(content)} bytes long, not a multiple of its {record}-byte records. {AGAIN}")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), records[:, label_bytes - 1].astype(np.int64)


def svhn(content: bytes, path: Path, scipy_io: Any) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 3, 32, 32) and labels of a cropped-digits .mat file; in which the digit 0 is labelled 10."""
    try:
        values = scipy_io.loadmat(io.BytesIO(content), variable_names=["X", "y"])
    except (*BROKEN, ValueError, TypeError) as error:
        raise BadFile(f"{path} is not a readable .mat file, or is truncated ({first_line(error)}). {AGAIN}") from error
    if "X" not in values or "y" not in values:
        raise BadFile(f"{path} has no arrays X and y. {AGAIN}")
    images, labels = np.asarray(values["X"]), np.asarray(values["y"]).reshape(-1)
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.dtype != np.uint8:
        raise BadFile(f"{path}: X is {images.dtype} {images.shape}, not uint8 (32, 32, 3, N). {AGAIN}")
    return images.transpose(3, 2, 0, 1), labels.astype(np.int64) % 10


def npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The named arrays of an npz file; nothing is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = [name for name in names if name not in file.files]
            if missing:
                raise BadFile(f"{path} has no array {missing[0]!r}; it has {', '.join(file.files)}. {AGAIN}")
            return {name: file[name] for name in names}
    except BadFile:
        raise
    except (*BROKEN, ValueError, AttributeError, TypeError) as error:
        raise BadFile(f"{path} is not a readable npz file of plain arrays ({first_line(error)}). {AGAIN}") from error


def csv(content: bytes, path: Path) -> np.ndarray:
    """Numbers below a header line, separated by commas."""
    return _numbers(content, path, delimiter=",", skiprows=1)


def text(path: Path) -> np.ndarray:
    """Numbers separated by spaces, as floats; at least one dimension."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path} cannot be read ({first_line(error)}).") from error
    return _numbers(content, path)


def _numbers(content: bytes, path: Path, **options: Any) -> np.ndarray:
    try:
        values = np.atleast_1d(np.loadtxt(io.BytesIO(content), **options))
    except ValueError as error:
        raise BadFile(f"{path} is not a table of numbers ({first_line(error)}). {AGAIN}") from error
    if values.size == 0 or not np.isfinite(values).all():
        raise BadFile(f"{path} is empty or contains values that are not finite. {AGAIN}")
    return values


def digest_of(*arrays: np.ndarray) -> str:
    """sha256 of arrays, in order: floats and whole numbers as 8 little-endian bytes, bytes unchanged."""
    digest = hashlib.sha256()
    for array in arrays:
        kind = {"f": "<f8", "i": "<i8", "u": "<i8"}[array.dtype.kind] if array.dtype != np.uint8 else "u1"
        digest.update(np.ascontiguousarray(array, dtype=kind).data)
    return digest.hexdigest()


def check_digest(found: str, expected: str | None, path: Path, kind: str = "sha256") -> None:
    """Refuse content whose checksum differs from the known one."""
    if expected is not None and found != expected:
        raise BadFile(f"{path} is not the published file: its {kind} is {found}, not {expected}. {AGAIN}")


def check_labels(images: np.ndarray, labels: np.ndarray, classes: int, path: Path) -> None:
    """Check that there is one label per image, in range."""
    if len(images) != len(labels):
        raise BadFile(f"{path} has {len(labels)} labels for {len(images)} images. {AGAIN}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise BadFile(f"{path}: labels are from {labels.min()} to {labels.max()}, not 0 to {classes - 1}. {AGAIN}")


def first_line(error: BaseException) -> str:
    """The first line of an error message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
