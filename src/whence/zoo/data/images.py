"""Image sets: from files to uint8 (N, C, H, W) and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from whence.errors import BadFile, need
from whence.zoo.data import readers
from whence.zoo.data.description import Description
from whence.zoo.data.files import Content, Store


@dataclass(frozen=True)
class Part:
    """Images and labels of one part, and the files that they are from."""

    images: np.ndarray  # uint8 (N, C, H, W)
    labels: np.ndarray  # int64 (N,)
    paths: tuple[Path, ...]


def read(store: Store) -> tuple[Part | None, Part | None]:
    """The parts to train and to test on; None where the files of a part are not there."""
    about = store.description
    if about.kind == "npz":
        return _npz(store)
    reader = {"idx": _idx, "cifar": _cifar, "svhn": _svhn}[about.kind]
    with_train = bool(about.train_files) and (not about.train_optional or store.has(about.train_files))
    contents = store.read(about.files if with_train else about.test_files)  # an archive is gone through once
    first_test = len(contents) - len(about.test_files)
    test = _checked(reader(about, contents[first_test:]), about, about.test)
    return _checked(reader(about, contents[:first_test]), about, about.train) if with_train else None, test


def _checked(part: Part, about: Description, expected: int) -> Part:
    """Refuse images and labels that do not go with each other, or with the description."""
    readers.check_labels(part.images, part.labels, len(about.classes), part.paths[-1])
    if part.images.shape[1:] != about.shape or len(part.images) != expected:
        found = " x ".join(map(str, part.images.shape))
        want = " x ".join(map(str, (expected, *about.shape)))
        raise BadFile(f"{part.paths[0]} holds {found} values, but {about.name} has {want}. {readers.AGAIN}")
    return part


def _idx(about: Description, contents: Sequence[Content]) -> Part:
    images, labels = contents
    pixels = readers.idx(images.data, images.path, 3)
    numbers = readers.idx(labels.data, labels.path, 1).astype(np.int64)
    if about.name.startswith("emnist-"):
        pixels = pixels.swapaxes(1, 2)
    if about.name == "emnist-letters":
        numbers = numbers - 1
    return Part(pixels[:, None], numbers, (images.path, labels.path))


def _cifar(about: Description, contents: Sequence[Content]) -> Part:
    label_bytes = 2 if about.name == "cifar100" else 1
    pairs = [readers.cifar(content.data, content.path, label_bytes) for content in contents]
    images = np.concatenate([pair[0] for pair in pairs])
    labels = np.concatenate([pair[1] for pair in pairs])
    return Part(images, labels, tuple(content.path for content in contents))


def _svhn(about: Description, contents: Sequence[Content]) -> Part:
    (content,) = contents
    images, labels = readers.svhn(content.data, content.path, need("scipy.io", "zoo"))
    return Part(images, labels, (content.path,))


def _npz(store: Store) -> tuple[Part | None, Part | None]:
    about = store.description
    path = store.find(about.test_files[0])
    if path is None:
        raise BadFile(f"{about.name}: {about.test_files[0].name} is missing.")
    names = ["x_train", "y_train", "x_test", "y_test"] if about.train else ["x_test", "y_test"]
    arrays = readers.npz(path, names)
    for name, array in arrays.items():
        if array.dtype != np.uint8 or array.ndim != (4 if name.startswith("x") else 1):
            want = "uint8 (N, H, W, C)" if name.startswith("x") else "uint8 (N,)"
            raise BadFile(f"{path}: {name} is {array.dtype} {array.shape}, not {want}. {readers.AGAIN}")
    readers.check_digest(readers.digest_of(*arrays.values()), about.data_sha256, path)

    def part(which: str, expected: int) -> Part:
        images = arrays[f"x_{which}"].transpose(0, 3, 1, 2)
        return _checked(Part(images, arrays[f"y_{which}"].astype(np.int64), (path,)), about, expected)

    return part("train", about.train) if about.train else None, part("test", about.test)


def statistics(images: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation by channel of images in [0, 1], each (C, 1, 1)."""
    total = torch.zeros(2, images.shape[1], dtype=torch.float64)
    for chunk in images.split(4096):
        values = chunk.double() / scale
        total += torch.stack([values.sum((0, 2, 3)), values.square().sum((0, 2, 3))]).cpu()
    mean, square = total / (images.numel() / images.shape[1])
    std = (square - mean.square()).clamp(min=0).sqrt()
    return mean.view(-1, 1, 1), torch.where(std > 0, std, 1.0).view(-1, 1, 1)
