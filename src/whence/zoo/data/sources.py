"""Arrays of inputs and targets for each part, from the files of a data set or the seed of a toy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from whence.errors import BadFile, BadOption, need
from whence.zoo.data import readers, splits, toys
from whence.zoo.data.description import PARTS, Description, Source
from whence.zoo.data.files import Content, Store
from whence.zoo.data.splits import Rows

Pair = tuple[np.ndarray, np.ndarray]  # inputs (N, D), or images as uint8 (N, C, H, W), and targets (N,)


@dataclass(frozen=True)
class SplitRequest:
    """The parts of a set that the user requests."""

    seed: int
    validation: int | float
    split: int = 0
    gap: bool = False
    noise: float | None = None


@dataclass(frozen=True)
class Arrays:
    """The existing parts by name, and their files."""

    parts: dict[str, Pair]
    paths: tuple[Path, ...] = ()


def read(store: Store, request: SplitRequest) -> Arrays:
    """The arrays of a set."""
    return SOURCES[store.description.kind](store, request)


# Images


def _images(store: Store, request: SplitRequest) -> Arrays:
    about = store.description
    train, test, paths = _npz_images(store) if about.kind is Source.NPZ else _image_files(store)
    parts = {"test": test}
    if train is not None:
        rows, held = splits.split_off(np.arange(len(train[1])), request.validation, request.seed)
        parts |= {"train": _taken(train, rows), "validation": _taken(train, held)}
    return Arrays(parts, paths)


def _image_files(store: Store) -> tuple[Pair | None, Pair, tuple[Path, ...]]:
    """The training and test parts; None if the training files are missing."""
    about = store.description
    reader = {Source.IDX: _idx, Source.CIFAR: _cifar, Source.SVHN: _svhn}[about.kind]
    with_train = bool(about.train_files) and (not about.train_optional or store.has(about.train_files))
    contents = store.read(about.files if with_train else about.test_files)  # read an archive only once
    first = len(contents) - len(about.test_files)
    paths = tuple(content.path for content in contents)
    test = _checked(reader(about, contents[first:]), about, about.test, paths[first:])
    train = _checked(reader(about, contents[:first]), about, about.train, paths[:first]) if with_train else None
    return train, test, paths


def _checked(pair: Pair, about: Description, expected: int, paths: Sequence[Path]) -> Pair:
    """Refuse images and labels that do not match each other or the description."""
    images, labels = pair
    readers.check_labels(images, labels, len(about.classes), paths[-1])
    if images.shape[1:] != about.shape or len(images) != expected:
        found, want = (" x ".join(map(str, shape)) for shape in (images.shape, (expected, *about.shape)))
        raise BadFile(f"{paths[0]} contains {found} values, but {about.name} has {want}. {readers.AGAIN}")
    return pair


def _idx(about: Description, contents: Sequence[Content]) -> Pair:
    images, labels = contents
    pixels = readers.idx(images.data, images.path, 3)
    numbers = readers.idx(labels.data, labels.path, 1).astype(np.int64)
    if about.name.startswith("emnist-"):
        pixels = pixels.swapaxes(1, 2)
    return pixels[:, None], numbers - 1 if about.name == "emnist-letters" else numbers


def _cifar(about: Description, contents: Sequence[Content]) -> Pair:
    label_bytes = 2 if about.name == "cifar100" else 1
    pairs = [readers.cifar(content.data, content.path, label_bytes) for content in contents]
    return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])


def _svhn(about: Description, contents: Sequence[Content]) -> Pair:
    (content,) = contents
    return readers.svhn(content.data, content.path, need("scipy.io", "zoo"))


def _npz_images(store: Store) -> tuple[Pair | None, Pair, tuple[Path, ...]]:
    about, path = store.description, store.found(store.description.test_files[0])
    names = ["x_train", "y_train", "x_test", "y_test"] if about.train else ["x_test", "y_test"]
    arrays = readers.npz(path, names)
    for name, array in arrays.items():
        if array.dtype != np.uint8 or array.ndim != (4 if name.startswith("x") else 1):
            want = "uint8 (N, H, W, C)" if name.startswith("x") else "uint8 (N,)"
            raise BadFile(f"{path}: {name} is {array.dtype} {array.shape}, not {want}. {readers.AGAIN}")
    readers.check_digest(readers.digest_of(*arrays.values()), about.data_sha256, path)

    def part(which: str, expected: int) -> Pair:
        pair = arrays[f"x_{which}"].transpose(0, 3, 1, 2), arrays[f"y_{which}"].astype(np.int64)
        return _checked(pair, about, expected, (path,))

    return part("train", about.train) if about.train else None, part("test", about.test), (path,)


# Tables


def _split_table(store: Store, request: SplitRequest) -> Arrays:
    """A table without parts, which are drawn by the seed."""
    x, y, paths = table(store)
    rows = splits.seeded(len(y), store.description.test, request.validation, request.seed)
    return by_rows((x, y), rows, paths)


def _regression(store: Store, request: SplitRequest) -> Arrays:
    """A table with published splits."""
    x, y, paths = table(store)
    train, test = published_split(store, x, paths[0], request.split, request.gap)
    return by_rows((x, y), Rows(*splits.split_off(train, request.validation, request.seed), test), paths)


def by_rows(pair: Pair, rows: Rows, paths: tuple[Path, ...]) -> Arrays:
    chosen = zip(PARTS, (rows.train, rows.validation, rows.test), strict=True)
    return Arrays({name: _taken(pair, which) for name, which in chosen}, paths)


def _taken(pair: Pair, rows: np.ndarray) -> Pair:
    return pair[0][rows], pair[1][rows]


def table(store: Store) -> tuple[np.ndarray, np.ndarray, tuple[Path, ...]]:
    """All rows of a set: from scikit-learn, its npz file, or a clone of the repository of splits."""
    about = store.description
    if about.kind is Source.SKLEARN:
        loader = getattr(need("sklearn.datasets", "zoo"), f"load_{about.name.replace('-', '_')}")
        x, y = loader(return_X_y=True)
        x = x.reshape(-1, *about.shape)
        return x.astype(np.uint8) if len(about.shape) == 3 else x.astype(np.float64), y.astype(np.int64), ()
    path = store.find(about.test_files[0])
    clone = store.alternative() if path is None else None
    if clone is None:
        path = store.found(about.test_files[0])
        arrays = readers.npz(path, ["X", "y"])
        x, y = arrays["X"], arrays["y"]
    else:
        path = clone / "data.txt"
        data = readers.text(path)
        columns = readers.text(clone / "index_features.txt").astype(int)
        target = readers.text(clone / "index_target.txt").astype(int)
        if data.ndim != 2 or max(columns.max(), target.max()) >= data.shape[1]:
            raise BadFile(f"{path} lacks columns that the index files next to it name.")
        x, y = data[:, columns], data[:, target[0]]
    return *_checked_table(x, y, about, path), (path,)


def _checked_table(x: np.ndarray, y: np.ndarray, about: Description, path: Path) -> Pair:
    size = about.train + about.test
    if x.shape != (size, *about.shape) or y.shape != (size,) or x.dtype.kind not in "fiu" or y.dtype.kind not in "fiu":
        raise BadFile(f"{path}: X is {x.shape} and y {y.shape}, but {about.name} has {size} rows of {about.shape[0]}.")
    x, y = x.astype(np.float64), y.astype(np.int64 if about.classes else np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise BadFile(f"{path} contains values that are not finite. {readers.AGAIN}")
    if about.classes:
        readers.check_labels(x, y, len(about.classes), path)
    readers.check_digest(readers.digest_of(x, y), about.data_sha256, path)
    return x, y


def published_split(store: Store, x: np.ndarray, path: Path, split: int, gap: bool) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows of a published split."""
    about, kind = store.description, "gap" if gap else "standard"
    number = about.splits[1] if gap else about.splits[0]
    if isinstance(split, bool) or not isinstance(split, int) or not 0 <= split < number:
        raise BadOption(f"split={split!r}: {about.name} has {number} {kind} splits, 0 to {number - 1}.")
    if path.suffix == ".npz":
        names = ("gap_train_idx", "gap_test_idx") if gap else ("train_idx", "test_idx")
        arrays = readers.npz(path, names)
        for name in names:
            if split >= len(arrays[name]):
                raise BadFile(f"{path} has {len(arrays[name])} splits in {name}, not {number}. {readers.AGAIN}")
        train, test = (arrays[name][split].astype(np.int64) for name in names)
    elif gap:
        train, test = splits.gap(x[:, split])
    else:
        train, test = (readers.text(path.parent / f"index_{p}_{split}.txt").astype(int) for p in ("train", "test"))
    if not np.array_equal(np.sort(np.r_[train, test]), np.arange(len(x))):
        raise BadFile(f"{path}: split {split} does not contain every row once. {readers.AGAIN}")
    return train, test


# Toys


def _toy(store: Store, request: SplitRequest) -> Arrays:
    about = store.description
    draw, noise = toys.DRAWN[about.name], toys.noise_of(about.name, request.noise)
    sizes = (about.train, splits.count(request.validation, about.train, drawn=True), about.test)
    parts = {
        name: draw(size, request.seed, place, noise)
        for place, (name, size) in enumerate(zip(PARTS, sizes, strict=True))
    }
    if about.name == "cubic":
        parts["test"] = toys.cubic_grid(about.test)
    return Arrays({name: (x.numpy(), y.numpy()) for name, (x, y) in parts.items()})


def _snelson(store: Store, request: SplitRequest) -> Arrays:
    (content,) = store.read(store.description.test_files)
    values = readers.csv(content.data, content.path)
    rows, held = splits.split_off(np.arange(len(values)), request.validation, request.seed)
    pair = values[:, :1], values[:, 1]
    return Arrays({"train": _taken(pair, rows), "validation": _taken(pair, held)}, (content.path,))


SOURCES: dict[Source, Callable[[Store, SplitRequest], Arrays]] = {
    Source.IDX: _images, Source.CIFAR: _images, Source.SVHN: _images, Source.NPZ: _images,
    Source.SKLEARN: _split_table, Source.UCI_CLASSIFICATION: _split_table, Source.UCI_REGRESSION: _regression,
    Source.TOY: _toy, Source.CSV: _snelson,
}  # fmt: skip
