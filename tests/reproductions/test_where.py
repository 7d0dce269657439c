"""Where the uncertainty is, for the networks of the other experiments; small."""

from __future__ import annotations

import copy
import csv
from pathlib import Path

import pytest
from PIL import Image

from reproductions.ritter2018.where import EXPERIMENT
from reproductions.store import Values, read, values
from tests.reproductions import laws

COMPUTED = ["mnist/0", "wrn/0"]


@pytest.fixture(scope="module", params=laws.KEPT)
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """All units are computed in ``make test-all``; otherwise a few, and the others were kept."""
    found = tmp_path_factory.mktemp("where")
    if request.param == "fresh":
        return laws.in_order("where", laws.quick("where", found))
    return laws.kept("where", found, COMPUTED)


@pytest.fixture(scope="module")
def units(folder: Path) -> Values:
    return values(read(folder / "results.json"))


def test_every_unit_is_there_and_none_is_done_twice(folder: Path) -> None:
    laws.complete_and_done_once("where", folder)


def test_shares_add_up_and_tables_fit_together(units: Values) -> None:
    for network in units.values():
        layers = network["layers"]
        for view in ("test", "ood"):
            assert sum(row[view]["variance_share"] for row in layers) == pytest.approx(1, abs=1e-3)
        names = [row["name"] for row in layers]
        assert list(network["units"]) == list(network["weights"]) == names
        for table in network["units"].values():
            assert table["identified"] == sorted(table["identified"])
            assert 0 <= table["unidentified"] <= table["units"]


def test_unit_tables_are_files(folder: Path, units: Values) -> None:
    with (folder / "mnist-units.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(table["units"] for table in units["mnist/0"]["units"].values())
    shares = {row["name"]: row["test"]["variance_share"] for row in units["mnist/0"]["layers"]}
    for layer, share in shares.items():
        own = sum(float(row["variance_share"]) for row in rows if row["layer"] == layer)
        assert own == pytest.approx(share, abs=0.02)


def test_the_figure_and_the_paragraph_are_there(folder: Path, units: Values) -> None:
    with Image.open(folder / "layers.png") as image:
        assert image.convert("L").getextrema()[0] < 100
    text = EXPERIMENT.tables(units)
    for question in ("Between layers", "Inside layers", "Weight size", "last layer enough", "How much is the prior"):
        assert text.count(question) == 2  # one for each kind of network
    assert "| hidden1 |" in text and "| head |" in text


def test_verdicts_follow_the_numbers(units: Values) -> None:
    def verdict(share: float) -> str:
        changed = copy.deepcopy(units)
        for i, network in enumerate(changed.values()):
            for found in network["sweep"].values():
                found["test"][-1]["variance_share"] = share + 1e-4 * i
        return next(c.verdict for c in EXPERIMENT.claims(changed) if "last layer alone" in c.claim)

    assert (verdict(0.01), verdict(0.5)) == ("holds", "does not hold")
