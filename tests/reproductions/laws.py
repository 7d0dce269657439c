"""What every experiment's small version owes: completeness, and nothing done twice."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from reproductions.command import run
from reproductions.experiment import Collection, Experiment
from reproductions.ritter2018 import COLLECTION
from reproductions.store import Values, read, values


def quick(name: str, folder: Path, collection: Collection = COLLECTION) -> Path:
    assert run(collection, [name, "--quick", "--device", "cpu", "--out", str(folder), "--no-progress"]) == 0
    return folder


class Folders(dict[str, Path]):
    """The small version of each experiment of a collection, made when a test asks for it first."""

    def __init__(self, collection: Collection, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._collection, self._factory = collection, factory

    def __missing__(self, name: str) -> Path:
        folder = quick(name, self._factory.mktemp(name), self._collection)
        self[name] = in_order(name, folder, self._collection)
        return folder


def units_of(folder: Path) -> Values:
    """A copy, which a test may change."""
    return copy.deepcopy(values(read(folder / "results.json")))


def verdict(experiment: Experiment, units: Values, words: str) -> str:
    return next(claim.verdict for claim in experiment.claims(units) if words in claim.claim)


KEPT = ["kept", pytest.param("fresh", marks=pytest.mark.slow)]


def kept(name: str, folder: Path, without: Sequence[str]) -> Path:
    """The small version as it once was, without some units, which are then computed (the file may lack them)."""
    content = json.loads((Path(__file__).parent / "files" / f"{name}.json").read_text())
    for unit in without:
        content["units"].pop(unit, None)
    (folder / "results.json").write_text(json.dumps(content))
    return quick(name, folder)


@contextmanager
def without_figures() -> Iterator[None]:
    """For a second run, which would draw the same figures from the same values."""
    experiment = Collection.experiment

    def undrawn(collection: Collection, name: str) -> Experiment:
        return replace(experiment(collection, name), figures=lambda _values, _folder: [])

    with mock.patch.object(Collection, "experiment", undrawn):
        yield


def in_order(name: str, folder: Path, collection: Collection = COLLECTION) -> Path:
    """The folder of a run from nothing, whose units stand as they were announced."""
    experiment = collection.experiment(name)
    assert list(read(folder / "results.json")["units"]) == experiment.units(experiment.config(True))
    return folder


def complete_and_done_once(name: str, folder: Path, collection: Collection = COLLECTION) -> None:
    experiment = collection.experiment(name)
    assert sorted(read(folder / "results.json")["units"]) == sorted(experiment.units(experiment.config(True)))
    before = (folder / "results.json").read_bytes()
    with without_figures():
        quick(name, folder, collection)
    assert (folder / "results.json").read_bytes() == before
