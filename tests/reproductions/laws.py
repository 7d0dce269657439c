"""What every experiment's small version owes: completeness, and nothing done twice."""

from __future__ import annotations

from pathlib import Path

from reproductions.ritter2018.__main__ import main
from reproductions.ritter2018.experiment import experiment
from reproductions.ritter2018.store import read


def quick(name: str, folder: Path) -> Path:
    assert main([name, "--quick", "--device", "cpu", "--out", str(folder), "--no-progress"]) == 0
    return folder


def complete_and_done_once(name: str, folder: Path) -> None:
    found = experiment(name)
    assert list(read(folder / "results.json")["units"]) == found.units(found.config(True))
    before = (folder / "results.json").read_bytes()
    quick(name, folder)
    assert (folder / "results.json").read_bytes() == before
