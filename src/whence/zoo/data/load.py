"""``whence.zoo.load``: a data set by its name; ``folds`` and ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from whence.errors import BadFile, BadOption, need
from whence.training.examples import Examples
from whence.zoo.data import sources, splits, toys
from whence.zoo.data.catalogue import KNOWN, SMALLER, describe
from whence.zoo.data.description import PARTS, DataSet, Description, Source
from whence.zoo.data.files import Store, obtain, obtainable
from whence.zoo.data.sources import Arrays, SplitRequest

PUBLISHED_PARTS = (Source.IDX, Source.CIFAR, Source.SVHN)  # kinds with separate files for training and test
TABLES = (Source.SKLEARN, Source.UCI_CLASSIFICATION, Source.UCI_REGRESSION)


def load(
    name: str,
    *,
    seed: int = 0,
    validation: int | float | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    normalise: bool = True,
    root: str | Path | None = None,
    download: bool = True,
    split: int = 0,
    gap: bool = False,
    noise: float | None = None,
    test_only: bool = False,
    progress: bool = True,
) -> DataSet:
    """A data set by name: ``data.train``, ``data.validation`` and ``data.test``.

    ``validation`` is a number of examples, or a fraction of the training part, drawn by ``seed``; the test part is the
    official one if there is one. ``split`` and ``gap`` choose among the published splits of UCI regression sets.
    Files are searched in ``root``, ``$WHENCE_DATA`` and the cache; missing ones are downloaded if ``download``.
    With ``test_only`` the files of the training part are neither read nor needed: for out-of-distribution inputs.
    """
    about = describe(name)
    if (split or gap) and about.kind is not Source.UCI_REGRESSION:
        raise BadOption(f"{about.name} has no published splits; omit split and gap, and choose a seed.")
    if noise is not None and about.name not in toys.NOISE:
        raise BadOption(f"{about.name} has no noise option; only {' and '.join(sorted(toys.NOISE))} do.")
    if test_only:
        if about.kind not in PUBLISHED_PARTS:
            raise BadOption(f"{about.name} has no separate test files; omit test_only.")
        about = replace(about, train=0, train_files=(), train_optional=True)
    request = SplitRequest(seed, about.validation if validation is None else validation, split, gap, noise)
    arrays = sources.read(_obtain(about, root, download, progress), request)
    return _assembled(about, arrays, torch.device(device), dtype, normalise)


def folds(
    name: str,
    k: int = 10,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    normalise: bool = True,
    root: str | Path | None = None,
    download: bool = True,
    progress: bool = True,
) -> Iterator[DataSet]:
    """The ``k`` train and test parts of cross-validation, stratified by class; other options as for :func:`load`."""
    about = describe(name)
    if about.kind not in TABLES:
        raise BadOption(f"{about.name} has published parts or is drawn by the seed; folds apply only to tables.")
    x, y, paths = sources.table(_obtain(about, root, download, progress))
    fold = splits.stratified(y if about.classes else np.zeros(len(y)), k, seed)
    nothing = np.empty(0, np.int64)
    parts = [splits.Rows(np.flatnonzero(fold != i), nothing, np.flatnonzero(fold == i)) for i in range(k)]
    place = torch.device(device)
    return (_assembled(about, sources.by_rows((x, y), rows, paths), place, dtype, normalise) for rows in parts)


def _obtain(about: Description, root: str | Path | None, download: bool, progress: bool) -> Store:
    try:
        return obtain(about, root, download, progress)
    except BadFile as error:
        smaller = SMALLER.get(about.name)
        if smaller is None or Store.of(describe(smaller), root).where() is None:
            raise
        raise BadFile(f"{error} {smaller!r} is available.") from error


def _assembled(
    about: Description, arrays: Arrays, device: torch.device, dtype: torch.dtype, normalise: bool
) -> DataSet:
    """Examples of every part, normalised by the training part; toys are not, to keep their units."""
    given = {name: pair for name, pair in arrays.parts.items() if len(pair[1])}
    mean, std = None, None
    if normalise and len(about.shape) == 3:
        mean, std = _channel_statistics(about, given)
        mean, std = mean.to(device, dtype), std.to(device, dtype)
    elif normalise and about.kind in TABLES:
        mean, std = (torch.from_numpy(values).to(device) for values in _standardisation(given["train"][0]))
    shift, spread = (None, None) if about.classes else (0.0, 1.0)
    if normalise and about.kind in TABLES and not about.classes:
        shift, spread = (float(values[0]) for values in _standardisation(given["train"][1][:, None]))
    parts: dict[str, Examples | None] = dict.fromkeys(PARTS)
    for name, (x, y) in given.items():
        inputs, targets = torch.from_numpy(np.array(x, order="C")), torch.from_numpy(y.copy())
        if shift is not None and spread is not None:
            targets = ((targets - shift) / spread).to(dtype).reshape(-1, 1)
        examples = Examples(inputs.to(device), targets.to(device), mean, std, dtype=dtype)
        parts[name] = replace(examples, scale=about.scale) if len(about.shape) == 3 else examples
    paths = tuple(dict.fromkeys(arrays.paths))
    return DataSet(about, parts["train"], parts["validation"], parts["test"], shift, spread, paths)


def _channel_statistics(about: Description, parts: dict[str, sources.Pair]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation by channel of images in [0, 1], each (C, 1, 1): published, or of the training part.

    Includes validation images of a published training part; without a training part, all images.
    """
    if about.mean is not None and about.std is not None:
        published = torch.tensor([about.mean, about.std], dtype=torch.float64).view(2, -1, 1, 1)
        return published[0], published[1]
    counted = ("train",) if about.kind in TABLES else ("train", "validation")
    images = [parts[name][0] for name in counted if name in parts] or [pair[0] for pair in parts.values()]
    total = torch.zeros(2, images[0].shape[1], dtype=torch.float64)
    for chunk in torch.from_numpy(np.concatenate(images)).split(4096):
        values = chunk.double() / about.scale
        total += torch.stack([values.sum((0, 2, 3)), values.square().sum((0, 2, 3))])
    mean, square = total / (sum(array.size for array in images) / images[0].shape[1])
    std = (square - mean.square()).clamp(min=0).sqrt()
    return mean.view(-1, 1, 1), torch.where(std > 0, std, 1.0).view(-1, 1, 1)


def _standardisation(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; the deviation of a constant column is 1."""
    constant = values.max(0) == values.min(0)
    return np.where(constant, values[0], values.mean(0)), np.where(constant, 1.0, values.std(0))


# Known sets


@dataclass(frozen=True)
class KnownSets(Sequence[Description]):
    """Known data sets, and where each was found; prints as a table."""

    rows: tuple[Description, ...]
    found: tuple[str, ...]  # a path, or how to get the set

    @overload
    def __getitem__(self, index: int) -> Description: ...
    @overload
    def __getitem__(self, index: slice) -> KnownSets: ...
    def __getitem__(self, index: int | slice) -> Description | KnownSets:
        return KnownSets(self.rows[index], self.found[index]) if isinstance(index, slice) else self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def _cells(self) -> list[dict[str, Any]]:
        names = ("name", "task", "shape", "train", "test", "licence")
        cells = []
        for about, found in zip(self.rows, self.found, strict=True):
            values = {name: getattr(about, name) for name in names}
            cells.append({**values, "classes": len(about.classes) or None, "here": found})
        return [{column: row[column] for column in COLUMNS} for row in cells]

    def to_pandas(self) -> Any:
        """The table as a ``pandas.DataFrame``."""
        return need("pandas", "pandas").DataFrame(self._cells())

    def __repr__(self) -> str:
        table = [list(COLUMNS), *([_text(value) for value in row.values()] for row in self._cells())]
        widths = [min(32, max(len(line[i]) for line in table)) for i in range(len(COLUMNS))]
        lines = []
        for *cells, last in table:
            short = [c if len(c) <= w else c[: w - 1] + "…" for c, w in zip(cells, widths, strict=False)]
            fitted = [
                c.rjust(w) if column in ("classes", "train", "test") else c.ljust(w)
                for c, w, column in zip(short, widths, COLUMNS, strict=False)
            ]
            lines.append("  ".join([*fitted, last]).rstrip())
        lines.insert(1, "  ".join("─" * width for width in widths))
        return "\n".join(lines)


COLUMNS = ("name", "task", "classes", "shape", "train", "test", "licence", "here")


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def datasets(root: str | Path | None = None) -> KnownSets:
    """All known data sets, and where each was found."""
    rows = tuple(KNOWN.values())
    return KnownSets(rows, tuple(_found(about, root) for about in rows))


def _found(about: Description, root: str | Path | None) -> str:
    if about.kind is Source.SKLEARN:
        return "with scikit-learn"
    if not about.files:
        return "drawn"
    place = Store.of(about, root).where()
    return str(place) if place is not None else "no; can be downloaded" if obtainable(about) else "no"
