"""Novelty beside other detectors, small; and what its pages say of the committed results."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from PIL import Image

from reproductions import readme
from reproductions.own import COLLECTION
from reproductions.own.novelty import EXPERIMENT
from reproductions.store import Values, read, values
from tests.reproductions import laws

COMMITTED = COLLECTION.home / "novelty" / "results.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return laws.in_order("novelty", laws.quick("novelty", tmp_path_factory.mktemp("novelty"), COLLECTION), COLLECTION)


@pytest.fixture(scope="module")
def units(folder: Path) -> Values:
    return values(read(folder / "results.json"))


def test_every_unit_is_there_and_none_is_done_twice(folder: Path) -> None:
    laws.complete_and_done_once("novelty", folder, COLLECTION)


def test_every_detector_has_a_figure(folder: Path, units: Values) -> None:
    for unit in units.values():
        for scores in unit["auroc"].values():
            assert {"novelty, gauss", "energy", "best single layer, seen afterwards"} <= set(scores)
            assert all(0 <= value <= 1 for value in scores.values())
    with Image.open(folder / "auroc.png") as image:
        assert min(image.size) > 200


def test_verdicts_follow_the_numbers(units: Values) -> None:
    def verdict(ours: float) -> str:
        changed = copy.deepcopy(units)
        for i, unit in enumerate(changed.values()):
            for scores in unit["auroc"].values():
                scores |= {"novelty, gauss": ours + 1e-4 * i, "energy": 0.5}
        return EXPERIMENT.claims(changed)[0].verdict

    assert (verdict(0.9), verdict(0.1)) == ("holds", "does not hold")


@pytest.mark.skipif(not COMMITTED.exists(), reason="the full run has not been made")
def test_the_pages_say_what_the_results_say() -> None:
    content = read(COMMITTED)
    folder = COMMITTED.parent
    assert (folder / "README.md").read_text() == readme.expected(folder, readme.section(EXPERIMENT, content))
    for path, part in EXPERIMENT.elsewhere:
        assert path.read_text() == readme.filled(path.read_text(), part(values(content)))
    assert content["config"] == json.loads(json.dumps(asdict(EXPERIMENT.config(False))))
