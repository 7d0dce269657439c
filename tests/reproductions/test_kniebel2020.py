"""The study of where the uncertainty is: every experiment small, and what its answers are made of."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from reproductions import readme
from reproductions.kniebel2020 import COLLECTION
from reproductions.kniebel2020.cells import all_cells, elsewhere
from reproductions.kniebel2020.grid.config import QUICK
from reproductions.store import Values, read, values
from tests.reproductions import laws

PICTURES = {
    "grid": {"layers.png", "between.png", "size.png", "pixels.png", "enough.png"},
    "training": {"courses.png", "stopping.png"},
    "pruning": {"weights.png", "units.png", "layers.png"},
    "methods": {"shares.png", "hmc.png"},
    "separation": {"planes.png"},
    "members": {"members.png"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return laws.Folders(COLLECTION, tmp_path_factory)


def units_of(folders: dict[str, Path], name: str) -> Values:
    return laws.units_of(folders[name])


def verdict(name: str, units: Values, words: str) -> str:
    return laws.verdict(COLLECTION.experiment(name), units, words)


@pytest.mark.parametrize("name", COLLECTION.names)
def test_small_versions_are_complete_drawn_and_never_done_twice(folders: dict[str, Path], name: str) -> None:
    laws.complete_and_done_once(name, folders[name], COLLECTION)
    drawn = {path.name for path in folders[name].glob("*.png")}
    assert drawn == PICTURES[name]
    for picture in drawn:
        with Image.open(folders[name] / picture) as image:
            assert min(image.size) > 150 and image.convert("L").getextrema()[0] < 100
    found = COLLECTION.experiment(name)
    assert found.claims(units_of(folders, name))
    assert "**Answer.**" in found.tables(units_of(folders, name))


def test_the_plan_is_that_of_the_issue() -> None:
    cells = [cell for cell in all_cells() if not cell.factor]
    assert len(cells) >= 12 and 100 <= sum(len(cell.seeds) for cell in all_cells()) <= 130
    assert {cell.network for cell in cells} == {
        "perceptron", "mlp", "lenet5", "cnn", "vgg", "wide-resnet", "transformer",
    }  # fmt: skip
    assert {cell.data for cell in elsewhere()} == {"emnist-letters", "cifar100"}
    names = [cell.name for cell in (*all_cells(), *elsewhere(), *QUICK.cells)]
    assert len(names) == len(set(names)) + 2  # the small version has two names of the grid
    for cell in (*all_cells(), *elsewhere()):
        shape = (4,) if cell.data == "iris" else (3, 32, 32) if cell.data[:4] in ("svhn", "cifa") else (1, 28, 28)
        if cell.network not in ("vgg", "wide-resnet"):
            assert cell.build(shape, 10)(torch.zeros(2, *shape)).shape == (2, 10)


def test_verdicts_of_the_grid_follow_the_numbers(folders: dict[str, Path]) -> None:
    units = units_of(folders, "grid")

    def with_explained(last: float, diagonal: float) -> Values:
        changed = copy.deepcopy(units)
        for i, network in enumerate(changed.values()):
            for structure in ("kron", "diag"):
                for factor in ("0.1", "1", "10"):
                    column = network["structures"][structure][factor]["explained"]
                    column[:] = [0.3] * (len(column) - 1) + [(last if structure == "kron" else diagonal) + 1e-4 * i]
        return changed

    words = "The last layer is explained better"
    assert verdict("grid", with_explained(0.9, 0.8), words) == "holds"
    assert verdict("grid", with_explained(0.1, 0.2), words) == "does not hold"
    assert verdict("grid", with_explained(0.9, 0.2), words) == "cannot be told"  # depends on the structure
    text = COLLECTION.experiment("grid").tables(with_explained(0.9, 0.2))
    assert "not known (structure)" in text


def test_verdicts_of_the_others_follow_the_numbers(folders: dict[str, Path]) -> None:
    units = units_of(folders, "members")
    for i, value in enumerate(units.values()):
        for ensemble in value["ensembles"].values():
            ensemble["accuracy"] = value["strong"]["accuracy"] + 0.05 + 1e-4 * i
    assert verdict("members", units, "few examples, are right more often") == "holds"
    units = units_of(folders, "pruning")
    for i, network in enumerate(units.values()):
        network["whole"]["validation"] = 0.9
        for name, curve in network["weights"].items():
            good = name.startswith("identified")
            curve["validation"] = [0.9 if good else 0.5] * len(curve["fraction"])
            curve["sparsity"] = [0.5, 0.9 + 1e-4 * i]
    assert verdict("pruning", units, "weights: what is not identified") == "holds"
    units = units_of(folders, "methods")
    for network in units.values():
        for where in network["where"].values():
            if "share" in where:
                where["share"] = [1.0] + [0.0] * (len(network["layers"]) - 1)
    assert verdict("methods", units, "Variational inference agrees") == "holds"
    units = units_of(folders, "training")
    for i, run in enumerate(units.values()):
        for series in run["series"].values():
            series["explained"] = [[0.1] * len(row) for row in series["explained"]]
            series["explained"][2] = [0.8 + 1e-3 * i] * len(series["explained"][0])
    assert verdict("training", units, "falls again") == "holds"


def test_nothing_that_a_run_needs_draws(tmp_path: Path) -> None:
    """A machine that only computes may lack matplotlib, scikit-learn and the rest."""
    missing = ("matplotlib", "sklearn", "scipy", "pandas", "plotly", "jinja2", "arviz", "PIL")
    lines = ["import sys", f"for name in {missing}: sys.modules[name] = None"]
    lines += ["from reproductions.kniebel2020.__main__ import main", "sys.exit(main(sys.argv[1:]))"]
    command = [sys.executable, "-c", "\n".join(lines), "separation", "--quick", "--no-progress", "--units", "half*/0"]
    folder = Path(__file__).parents[2]
    ended = subprocess.run([*command, "--out", str(tmp_path)], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for name in COLLECTION.names:
        COLLECTION.experiment(name)


COMMITTED = [name for name in COLLECTION.names if (COLLECTION.home / name / "results.json").exists()]


@pytest.mark.parametrize("name", COMMITTED)
def test_pages_say_what_the_results_say(name: str) -> None:
    content: Any = read(COLLECTION.home / name / "results.json")
    found, folder = COLLECTION.experiment(name), COLLECTION.home / name
    assert (folder / "README.md").read_text() == readme.expected(folder, readme.section(found, content))
    assert content["config"] == json.loads(json.dumps(asdict(found.config(False))))
    assert set(content["units"]) <= set(found.units(found.config(False)))
    for path, part in found.elsewhere:
        assert path.read_text() == readme.filled(path.read_text(), part(values(content)))
    for path, passage, part in found.passages:
        assert path.read_text() == readme.filled(path.read_text(), part(values(content)), passage)


def test_the_page_over_all_lists_every_answer() -> None:
    assert (COLLECTION.home / "README.md").read_text() == readme.expected(COLLECTION.home, readme.summary(COLLECTION))
