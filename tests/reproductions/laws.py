"""What every experiment's small version owes: completeness, and nothing done twice."""

from __future__ import annotations

from pathlib import Path

from reproductions.command import run
from reproductions.experiment import Collection
from reproductions.ritter2018 import COLLECTION
from reproductions.store import read


def quick(name: str, folder: Path, collection: Collection = COLLECTION) -> Path:
    assert run(collection, [name, "--quick", "--device", "cpu", "--out", str(folder), "--no-progress"]) == 0
    return folder


def complete_and_done_once(name: str, folder: Path, collection: Collection = COLLECTION) -> None:
    found = collection.experiment(name)
    assert list(read(folder / "results.json")["units"]) == found.units(found.config(True))
    before = (folder / "results.json").read_bytes()
    quick(name, folder, collection)
    assert (folder / "results.json").read_bytes() == before
