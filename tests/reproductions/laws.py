"""What every experiment's small version owes: completeness, and nothing done twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from reproductions.command import run
from reproductions.experiment import Collection
from reproductions.ritter2018 import COLLECTION
from reproductions.store import read


def quick(name: str, folder: Path, collection: Collection = COLLECTION) -> Path:
    assert run(collection, [name, "--quick", "--device", "cpu", "--out", str(folder), "--no-progress"]) == 0
    return folder


KEPT = ["kept", pytest.param("fresh", marks=pytest.mark.slow)]


def kept(name: str, folder: Path, without: Sequence[str]) -> Path:
    """The small version as it once was, without some units, which are then computed."""
    content = json.loads((Path(__file__).parent / "files" / f"{name}.json").read_text())
    for unit in without:
        del content["units"][unit]
    (folder / "results.json").write_text(json.dumps(content))
    return quick(name, folder)


def complete_and_done_once(name: str, folder: Path, collection: Collection = COLLECTION, in_order: bool = True) -> None:
    experiment = collection.experiment(name)
    found, wanted = list(read(folder / "results.json")["units"]), experiment.units(experiment.config(True))
    assert found == wanted if in_order else sorted(found) == sorted(wanted)
    before = (folder / "results.json").read_bytes()
    quick(name, folder, collection)
    assert (folder / "results.json").read_bytes() == before
