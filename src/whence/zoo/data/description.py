"""Descriptions of data sets and their files, and loaded data sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from whence.engine.options import Option
from whence.training.examples import Examples, Splits

PARTS = ("train", "validation", "test")


class Source(Option):
    """How a data set is published, and so how it is read."""

    IDX = "idx"
    CIFAR = "cifar"
    SVHN = "svhn"
    NPZ = "npz"
    SKLEARN = "sklearn"
    UCI_CLASSIFICATION = "uci-classification"
    UCI_REGRESSION = "uci-regression"
    TOY = "toy"
    CSV = "csv"


@dataclass(frozen=True)
class File:
    """A published file."""

    name: str
    sha256: str | None = None  # of the content, uncompressed
    md5: str | None = None  # of the file as it is published
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Description:
    """A data set: its contents, its licence, and how to get it."""

    name: str
    title: str
    task: str  # classification or regression
    kind: Source
    shape: tuple[int, ...]  # of one input
    train: int  # examples to train on, validation included
    test: int
    licence: str
    get: str  # how to get it manually, after "get"
    classes: tuple[str, ...] = ()
    note: str = ""
    aliases: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # folders of its files, below a data folder
    also: tuple[str, ...] = ()  # folders with another layout
    train_files: tuple[File, ...] = ()
    test_files: tuple[File, ...] = ()
    archive: File | None = None  # contains all of the files
    data_sha256: str | None = None  # of the arrays, if the files may differ
    validation: int | float = 0  # number of examples, or a fraction of the training examples
    mean: tuple[float, ...] | None = None  # by channel, of the training images in [0, 1]
    std: tuple[float, ...] | None = None
    scale: float = 255.0  # the largest value of a pixel
    splits: tuple[int, int] = (1, 0)  # standard and gap splits
    train_optional: bool = False  # whether the test files suffice

    @property
    def files(self) -> tuple[File, ...]:
        """The files of both parts."""
        return self.train_files + self.test_files

    def __str__(self) -> str:
        inputs = " x ".join(map(str, self.shape))
        what = f"{len(self.classes)} classes" if self.classes else "regression"
        lines = [
            f"{self.name}: {self.title}",
            f"  {what}, inputs {inputs}, {self.train:,} to train on, {self.test:,} to test",
            f"  licence: {self.licence}",
        ]
        return "\n".join([*lines, f"  note: {self.note}"] if self.note else lines)


@dataclass(frozen=True, eq=False)
class DataSet(Splits):
    """The parts of a data set; missing parts are None."""

    description: Description
    train: Examples | None
    validation: Examples | None
    test: Examples | None
    target_mean: float | None = None  # regression: targets are (values − target_mean) / target_std
    target_std: float | None = None
    where: tuple[Path, ...] = ()  # the files that were read

    @property
    def name(self) -> str:
        return self.description.name

    @property
    def task(self) -> str:
        """``"classification"`` or ``"regression"``."""
        return self.description.task

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty for regression."""
        return self.description.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return self.description.shape

    def parts(self) -> Iterator[tuple[str, Examples]]:
        """The existing parts, by name."""
        for name in PARTS:
            part = getattr(self, name)
            if part is not None:
                yield name, part

    def to(self, device: torch.device | str) -> DataSet:
        """A copy on another device."""
        moved: dict[str, Any] = {name: part.to(device) for name, part in self.parts()}
        return replace(self, **moved)

    def __str__(self) -> str:
        found = dict(self.parts())
        sizes = [f"{name} {found[name].size:,}" if name in found else f"no {name}" for name in PARTS]
        lines = [str(self.description), f"  here: {', '.join(sizes)}"]
        if self.train is None and self.description.train:
            lines.append("  the training files were not found; the test part can serve as out-of-distribution data")
        if self.target_std is not None and (self.target_mean, self.target_std) != (0.0, 1.0):
            lines.append(f"  targets are standardised: mean {self.target_mean:.4g}, deviation {self.target_std:.4g}")
        return "\n".join(lines)

    __repr__ = __str__
