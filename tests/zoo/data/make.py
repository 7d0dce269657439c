"""Tiny files in the layouts of the real sets, and descriptions that fit them."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from whence.errors import WhenceError
from whence.zoo.data.catalogue import KNOWN
from whence.zoo.data.description import Description, File

TRAIN, TEST = 12, 8


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def pixels(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def mnist_contents() -> dict[str, bytes]:
    """Uncompressed contents of the four files, by published name."""
    return {
        "train-images-idx3-ubyte.gz": idx(pixels(TRAIN, 28, 28)),
        "train-labels-idx1-ubyte.gz": idx(np.arange(TRAIN) % 10),
        "t10k-images-idx3-ubyte.gz": idx(pixels(TEST, 28, 28, seed=1)),
        "t10k-labels-idx1-ubyte.gz": idx(np.arange(TEST) % 10),
    }


def described(monkeypatch: pytest.MonkeyPatch, name: str, **changes: object) -> Description:
    """The description of a set with other values, for as long as the test runs."""
    about = replace(KNOWN[name], **changes)  # type: ignore[arg-type]
    monkeypatch.setitem(KNOWN, name, about)
    return about


def mnist(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *,
    compress: bool = True,
    parts: str = "train t10k",
    **changes: object,
) -> dict[str, Path]:
    """Tiny MNIST files in a folder, with a description that knows their checksums; the paths by published name."""
    contents = mnist_contents()
    files = tuple(File(name, sha256(data), urls=("http://127.0.0.1:9/" + name,)) for name, data in contents.items())
    values = {"train": TRAIN, "test": TEST, "train_files": files[:2], "test_files": files[2:], "validation": 4}
    described(monkeypatch, "mnist", **{**values, **changes})
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name, data in contents.items():
        if name.split("-")[0] in parts:
            paths[name] = folder / (name if compress else name.removesuffix(".gz"))
            paths[name].write_bytes(gzip.compress(data) if compress else data)
    return paths


def cifar(count: int, label_bytes: int = 1, classes: int = 10, seed: int = 0) -> bytes:
    labels = np.arange(count * label_bytes).reshape(count, label_bytes) % classes
    return np.concatenate([labels.astype(np.uint8), pixels(count, 3072, seed=seed)], axis=1).tobytes()


def tar(path: Path, members: dict[str, bytes], folder: str) -> None:
    with tarfile.open(path, "w:gz") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))


def line(error: pytest.ExceptionInfo[WhenceError], *parts: object) -> str:
    """The message: one line, that holds all the parts."""
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, f"{part} is not in: {message}"
    return message
