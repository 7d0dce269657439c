"""Tables: inputs and targets from files or from scikit-learn, their splits, and their standardisation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from whence.errors import BadFile, BadOption, need
from whence.zoo.data import readers, splits
from whence.zoo.data.description import Description
from whence.zoo.data.files import Store

_SPLITS = ("train_idx", "test_idx", "gap_train_idx", "gap_test_idx")


@dataclass(frozen=True)
class Table:
    """Inputs (N, D), or images as uint8 (N, C, H, W), and targets (N,)."""

    x: np.ndarray
    y: np.ndarray
    path: Path | None = None


def embedded(about: Description) -> Table:
    """A set that comes with scikit-learn."""
    loader = getattr(need("sklearn.datasets", "zoo"), f"load_{about.name.replace('-', '_')}")
    x, y = loader(return_X_y=True)
    x = x.reshape(-1, *about.shape)
    return Table(x.astype(np.uint8) if len(about.shape) == 3 else x.astype(np.float64), y.astype(np.int64))


def read(store: Store) -> Table:
    """A UCI set, from its npz file or from a clone of the repository of splits."""
    about = store.description
    path = store.find(about.test_files[0])
    clone = store.alternative() if path is None else None
    if path is not None:
        arrays = readers.npz(path, ["X", "y"])
        table = Table(arrays["X"], arrays["y"], path)
    elif clone is not None:
        data = readers.text(clone / "data.txt")
        columns = readers.text(clone / "index_features.txt").astype(int)
        target = readers.text(clone / "index_target.txt").astype(int)
        if data.ndim != 2 or max(columns.max(), target.max()) >= data.shape[1]:
            raise BadFile(f"{clone / 'data.txt'} has not the columns that the index files beside it name.")
        table = Table(data[:, columns], data[:, target[0]], clone / "data.txt")
    else:
        raise BadFile(f"{about.name}: {about.test_files[0].name} is missing.")
    return _checked(table, about)


def _checked(table: Table, about: Description) -> Table:
    x, y, path = table.x, table.y, table.path
    if path is None:
        return table
    size = about.train + about.test
    if x.shape != (size, *about.shape) or y.shape != (size,) or x.dtype.kind not in "fiu" or y.dtype.kind not in "fiu":
        raise BadFile(f"{path}: X is {x.shape} and y {y.shape}, but {about.name} has {size} rows of {about.shape[0]}.")
    x = x.astype(np.float64)
    y = y.astype(np.float64 if about.task == "regression" else np.int64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise BadFile(f"{path} holds values that are not finite. {readers.AGAIN}")
    if about.classes:
        readers.check_labels(x, y, len(about.classes), path)
    readers.check_digest(readers.digest_of(x, y), about.data_sha256, path)
    return Table(x, y, path)


def standard_split(store: Store, table: Table, split: int, gap: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train and to test on of a published split."""
    about = store.description
    number = about.splits[1] if gap else about.splits[0]
    if isinstance(split, bool) or not isinstance(split, int) or not 0 <= split < number:
        kind = "gap" if gap else "standard"
        raise BadOption(f"split={split!r}: {about.name} has {number} {kind} splits, 0 to {number - 1}.")
    path = table.path
    if path is not None and path.suffix == ".npz":
        names = _SPLITS[2:] if gap else _SPLITS[:2]
        arrays = readers.npz(path, names)
        train, test = (arrays[name][split].astype(np.int64) if split < len(arrays[name]) else None for name in names)
        if train is None or test is None:
            raise BadFile(f"{path} has {len(arrays[names[0]])} splits in {names[0]}, not {number}. {readers.AGAIN}")
    elif gap:
        train, test = splits.gap(table.x[:, split])
    else:
        folder = Path(path or ".").parent
        train, test = (readers.text(folder / f"index_{part}_{split}.txt").astype(int) for part in ("train", "test"))
    if not np.array_equal(np.sort(np.r_[train, test]), np.arange(len(table.x))):
        raise BadFile(f"{path}: split {split} does not hold every row once. {readers.AGAIN}")
    return train, test


def standardisation(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; the deviation of a constant column is 1."""
    constant = values.max(0) == values.min(0)
    return np.where(constant, values[0], values.mean(0)), np.where(constant, 1.0, values.std(0))
