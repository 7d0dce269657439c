"""What a data set is, which files it is made of, and the set itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from whence.zoo.data.examples import Examples

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class File:
    """A published file."""

    name: str
    sha256: str | None = None  # of the content, uncompressed
    md5: str | None = None  # of the file as it is published
    urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Description:
    """A data set: what it holds, under which licence, and how it is had."""

    name: str
    title: str
    task: str  # classification or regression
    kind: str  # which reader
    shape: tuple[int, ...]  # of one input
    train: int  # examples to train on, validation included
    test: int
    licence: str
    get: str  # how to get it by hand, after "get"
    classes: tuple[str, ...] = ()
    note: str = ""
    aliases: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # where its files lie, below a data folder
    also: tuple[str, ...] = ()  # folders that hold it in another layout
    train_files: tuple[File, ...] = ()
    test_files: tuple[File, ...] = ()
    archive: File | None = None  # holds all of the files
    data_sha256: str | None = None  # of the arrays, where the files may differ
    validation: int | float = 0  # examples, or a fraction of those to train on
    mean: tuple[float, ...] | None = None  # by channel, of the training images in [0, 1]
    std: tuple[float, ...] | None = None
    scale: float = 255.0  # the largest value of a pixel
    splits: tuple[int, int] = (1, 0)  # standard and gap splits
    train_optional: bool = False  # whether the test files alone will do

    @property
    def files(self) -> tuple[File, ...]:
        """Files of both parts."""
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
class DataSet:
    """The parts of a data set; a part that the set does not have is None."""

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
        """The parts that are there, by name."""
        for name in PARTS:
            part = getattr(self, name)
            if part is not None:
                yield name, part

    def to(self, device: torch.device | str) -> DataSet:
        """The same on another device."""
        moved: dict[str, Any] = {name: part.to(device) for name, part in self.parts()}
        return replace(self, **moved)

    def __str__(self) -> str:
        found = dict(self.parts())
        sizes = [f"{name} {found[name].size:,}" if name in found else f"no {name}" for name in PARTS]
        lines = [str(self.description), f"  here: {', '.join(sizes)}"]
        if self.train is None and self.description.train:
            lines.append("  the training files were not found; the test part serves for out-of-distribution checks")
        if self.target_std is not None and (self.target_mean, self.target_std) != (0.0, 1.0):
            lines.append(f"  targets are standardised: mean {self.target_mean:.4g}, deviation {self.target_std:.4g}")
        return "\n".join(lines)

    __repr__ = __str__
