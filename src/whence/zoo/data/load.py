"""Loading a data set by its name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.errors import BadFile, BadOption
from whence.zoo.data import images, readers, splits, tabular, toys
from whence.zoo.data.description import PARTS, DataSet, Description
from whence.zoo.data.download import obtain
from whence.zoo.data.examples import Examples
from whence.zoo.data.files import Store
from whence.zoo.data.known import SMALLER, describe
from whence.zoo.data.splits import Rows
from whence.zoo.data.tabular import Table


@dataclass(frozen=True)
class _Options:
    seed: int
    validation: int | float
    device: torch.device
    dtype: torch.dtype
    normalise: bool
    root: str | Path | None
    download: bool
    progress: bool
    split: int
    gap: bool
    noise: float | None


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
    official one where there is one. ``split`` and ``gap`` choose among the published splits of UCI regression sets.
    Files are looked for in ``root``, ``$WHENCE_DATA`` and the cache; missing ones are downloaded if ``download``.
    With ``test_only`` the files of the training part are neither read nor needed: for inputs from elsewhere.
    """
    about = describe(name)
    _refuse(about, split, gap, noise)
    about = _test_only(about) if test_only else about
    wanted = about.validation if validation is None else validation
    place = torch.device(device)
    options = _Options(seed, wanted, place, dtype, normalise, root, download, progress, split, gap, noise)
    if about.kind == "toy":
        return _toy(about, options)
    if about.kind == "sklearn":
        table = tabular.embedded(about)
        return _from_table(about, table, splits.seeded(len(table.y), about.test, wanted, seed), options)
    store = _obtain(about, options)
    if about.kind == "uci-regression":
        table = tabular.read(store)
        train, test = tabular.standard_split(store, table, split, gap)
        return _from_table(about, table, Rows(*splits.split_off(train, wanted, seed), test), options)
    if about.kind == "uci-classification":
        table = tabular.read(store)
        return _from_table(about, table, splits.seeded(len(table.y), about.test, wanted, seed), options)
    return _from_images(about, store, options)


def folds(name: str, k: int = 10, *, seed: int = 0, **options: Any) -> Iterator[DataSet]:
    """The ``k`` train and test parts of cross-validation, stratified by class; other options as of :func:`load`."""
    about = describe(name)
    if about.kind not in ("sklearn", "uci-classification", "uci-regression"):
        raise BadOption(f"{about.name} has parts of its own or is drawn by the seed; folds are for tables.")
    defaults: dict[str, Any] = {
        "device": "cpu", "dtype": torch.float32, "normalise": True, "root": None, "download": True, "progress": True,
    }  # fmt: skip
    if unknown := sorted(set(options) - set(defaults)):
        raise BadOption(f"folds does not take {unknown[0]}={options[unknown[0]]!r}; it takes {', '.join(defaults)}.")
    values = {**defaults, **options, "device": torch.device(options.get("device", "cpu"))}
    opts = _Options(seed=seed, validation=0, split=0, gap=False, noise=None, **values)
    table = tabular.embedded(about) if about.kind == "sklearn" else tabular.read(_obtain(about, opts))
    fold = splits.stratified(table.y if about.classes else np.zeros(len(table.y)), k, seed)
    nothing = np.empty(0, np.int64)
    parts = [Rows(np.flatnonzero(fold != i), nothing, np.flatnonzero(fold == i)) for i in range(k)]
    return (_from_table(about, table, rows, opts) for rows in parts)


def _refuse(about: Description, split: int, gap: bool, noise: float | None) -> None:
    """Options that the set does not have."""
    if (split or gap) and about.kind != "uci-regression":
        raise BadOption(f"{about.name} has no published splits; leave out split and gap, and choose a seed.")
    if noise is not None and about.name not in toys.NOISE:
        raise BadOption(f"{about.name} takes no noise; only {' and '.join(sorted(toys.NOISE))} do.")


def _test_only(about: Description) -> Description:
    if about.kind not in ("idx", "cifar", "svhn"):
        raise BadOption(f"{about.name} has no test files of its own; leave out test_only.")
    return replace(about, train=0, train_files=(), train_optional=True)


def _obtain(about: Description, options: _Options) -> Store:
    try:
        return obtain(about, options.root, options.download, options.progress)
    except BadFile as error:
        smaller = SMALLER.get(about.name)
        if smaller is None or Store.of(describe(smaller), options.root).where() is None:
            raise
        raise BadFile(f"{error} {smaller!r} is there.") from error


def _assembled(
    about: Description,
    parts: dict[str, Examples | None],
    where: tuple[Path, ...],
    target_mean: float | None = None,
    target_std: float | None = None,
) -> DataSet:
    return DataSet(about, parts["train"], parts["validation"], parts["test"], target_mean, target_std, where)


def _from_images(about: Description, store: Store, options: _Options) -> DataSet:
    train, test = images.read(store)
    parts: dict[str, Examples | None] = dict.fromkeys(PARTS)
    paths = tuple(path for part in (train, test) if part is not None for path in part.paths)
    if test is not None:
        parts["test"] = _pictures(test.images, test.labels, about, options)
    if train is not None:
        rows, held = splits.split_off(np.arange(len(train.labels)), options.validation, options.seed)
        parts["train"] = _pictures(train.images[rows], train.labels[rows], about, options)
        if len(held):
            parts["validation"] = _pictures(train.images[held], train.labels[held], about, options)
    if options.normalise:
        known = [part for part in (parts["train"], parts["validation"]) if part is not None]
        parts = _normalised(parts, about, known or [part for part in parts.values() if part is not None])
    return _assembled(about, parts, tuple(dict.fromkeys(paths)))


def _pictures(pixels: np.ndarray, labels: np.ndarray, about: Description, options: _Options) -> Examples:
    raw = torch.from_numpy(np.array(pixels, order="C")).to(options.device)
    targets = torch.from_numpy(labels.copy()).to(options.device)
    return Examples(raw, targets, scale=about.scale, dtype=options.dtype)


def _normalised(
    parts: dict[str, Examples | None], about: Description, known: list[Examples]
) -> dict[str, Examples | None]:
    """With the published mean and deviation by channel, or else those of the ``known`` images."""
    if about.mean is not None and about.std is not None:
        mean = torch.tensor(about.mean, dtype=torch.float64).view(-1, 1, 1)
        std = torch.tensor(about.std, dtype=torch.float64).view(-1, 1, 1)
    else:
        mean, std = images.statistics(torch.cat([part.raw for part in known]), about.scale)
    place, dtype = known[0].device, known[0].dtype
    mean, std = mean.to(place, dtype), std.to(place, dtype)
    return {name: None if part is None else replace(part, mean=mean, std=std) for name, part in parts.items()}


def _from_table(about: Description, table: Table, rows: Rows, options: _Options) -> DataSet:
    where = () if table.path is None else (table.path,)
    chosen = dict(zip(PARTS, (rows.train, rows.validation, rows.test), strict=True))
    if len(about.shape) == 3:
        pictures: dict[str, Examples | None] = {
            name: _pictures(table.x[which], table.y[which], about, options) if len(which) else None
            for name, which in chosen.items()
        }
        train = [part for name, part in pictures.items() if name == "train" and part is not None]
        pictures = _normalised(pictures, about, train) if options.normalise else pictures
        return _assembled(about, pictures, where)
    centre: Tensor | None = None
    scale: Tensor | None = None
    shift, spread = (0.0, 1.0) if about.task == "regression" else (None, None)
    if options.normalise:
        mean, std = tabular.standardisation(table.x[rows.train])
        centre, scale = torch.from_numpy(mean).to(options.device), torch.from_numpy(std).to(options.device)
        if about.task == "regression":
            target = tabular.standardisation(table.y[rows.train, None])
            shift, spread = float(target[0][0]), float(target[1][0])

    def part(which: np.ndarray) -> Examples | None:
        if not len(which):
            return None
        y = torch.from_numpy(table.y[which])
        if shift is not None and spread is not None:
            y = ((y - shift) / spread).to(options.dtype).unsqueeze(1)
        x = torch.from_numpy(table.x[which])
        return Examples(x.to(options.device), y.to(options.device), centre, scale, dtype=options.dtype)

    parts = {name: part(which) for name, which in chosen.items()}
    return _assembled(about, parts, where, shift, spread)


def _toy(about: Description, options: _Options) -> DataSet:
    """Toys are not standardised: their units are the point."""
    where: tuple[Path, ...] = ()
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    if about.name == "snelson":
        (content,) = _obtain(about, options).read(about.test_files)
        values = torch.from_numpy(readers.csv(content.data, content.path))
        rows, held = splits.split_off(np.arange(len(values)), options.validation, options.seed)
        where = (content.path,)
        for name, which in (("train", rows), ("validation", held)):
            pairs[name] = (values[which, :1], values[which, 1:2])
    else:
        draw = toys.cubic if about.name == "cubic" else toys.two_moons
        noise = toys.noise_of(about.name, options.noise)
        sizes = (about.train, splits.count(options.validation, about.train, drawn=True), about.test)
        for part, (name, size) in enumerate(zip(PARTS, sizes, strict=True)):
            pairs[name] = draw(size, options.seed, part, noise)
        if about.name == "cubic":
            pairs["test"] = toys.cubic_grid(about.test)
    parts: dict[str, Examples | None] = dict.fromkeys(PARTS)
    for name, (x, y) in pairs.items():
        y = y.to(options.dtype) if about.task == "regression" else y
        if len(y):
            parts[name] = Examples(x.to(options.device), y.to(options.device), dtype=options.dtype)
    shift, spread = (0.0, 1.0) if about.task == "regression" else (None, None)
    return _assembled(about, parts, where, shift, spread)
