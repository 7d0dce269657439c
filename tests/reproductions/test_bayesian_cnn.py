"""The Bayesian CNN again: every experiment small, verdicts that follow from numbers, pages that follow from results."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reproductions import readme
from reproductions.bayesian_cnn import COLLECTION
from reproductions.bayesian_cnn.plan import PLAN
from reproductions.store import Values, read
from tests.reproductions import laws

PICTURES = {
    "classification": {"accuracy.png"}, "claims": {"data.png", "courses.png"}, "pruning": {"curves.png"},
    "superresolution": {"sparsification.png", "maps.png"}, "gan": {"samples.png"},
}  # fmt: skip


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
            assert min(image.size) > 100 and image.convert("L").getextrema()[0] < 100
    found = COLLECTION.experiment(name)
    units = units_of(folders, name)
    assert found.claims(units) and "|---|" in found.tables(units)
    few = dict(list(units.items())[:1])
    assert isinstance(found.claims(few), list) and found.tables(few)  # what a first unit alone can say


def test_verdicts_on_classification(folders: dict[str, Path]) -> None:
    units = units_of(folders, "classification")
    for name, value in units.items():
        seed = int(name[-1])
        value["accuracy"] = (0.990 if "/plain/" in name else 0.989) + 1e-4 * seed
        value["ece"] = (0.05 if "/plain/" in name else 0.01) + 1e-4 * seed * ("/plain/" in name)
    words = "it is at most 1 point less accurate than the plain"
    assert verdict("classification", units, words) == "holds"
    assert verdict("classification", units, "better calibrated") == "holds"
    assert verdict("classification", units, "doubles") == "holds"
    for name, value in units.items():
        if "/bayesian/" in name:
            value["accuracy"] -= 0.1
            value["trainable"] *= 2
    assert verdict("classification", units, words) == "does not hold"
    assert verdict("classification", units, "doubles") == "does not hold"


def test_verdicts_on_uncertainty(folders: dict[str, Path]) -> None:
    units = units_of(folders, "claims")
    for i, (name, value) in enumerate(units.items()):
        more = "100%" in name
        value |= {"epistemic": 0.1 if more else 1.0 + 0.01 * i, "aleatoric": 1.0}
        course = value["history"]
        course |= {"epoch": [1, 2, 3, 4], "accuracy": [0.1, 0.3, 0.6, 0.9]}
        course |= {"aleatoric": [2.0, 1.5, 1.0, 0.5], "epistemic": [0.4, 0.3, 0.2, 0.1]}
        course["mean"] = {"a": [[-1, -0.5, 0.01 * i, 0.5, 1]] * 4}
        course["std"] = {"a": [[s] * 5 for s in (0.1, 0.2, 0.15 + 0.001 * i, 0.12)]}
    assert verdict("claims", units, "epistemic uncertainty falls") == "holds"
    assert verdict("claims", units, "aleatoric uncertainty stays") == "holds"
    assert verdict("claims", units, "falls as training accuracy rises") == "holds"
    assert verdict("claims", units, "means stay centred") == "holds"
    assert verdict("claims", units, "fall during training") == "does not hold"
    assert verdict("claims", units, "from their largest value") == "holds"


def test_verdicts_on_pruning(folders: dict[str, Path]) -> None:
    units = units_of(folders, "pruning")
    for i, (name, value) in enumerate(units.items()):
        value["whole"]["test"] = 0.9 if "half" not in name else 0.5
        for by, curve in value["curves"].items():
            kept = 0.899 if ("bayesian/" in name and by == "snr") else 0.6
            curve["test"] = [0.9 + 1e-4 * i] + [kept + 1e-4 * i] * (len(curve["fraction"]) - 1)
    assert verdict("pruning", units, "by the Bayesian signal to noise costs less") == "holds"
    assert verdict("pruning", units, "after an L1 penalty") == "does not hold"
    assert verdict("pruning", units, "better than Laplace's") == "holds"
    assert verdict("pruning", units, "half-width network of its size") == "holds"


def test_verdicts_on_super_resolution_and_gans(folders: dict[str, Path]) -> None:
    units = units_of(folders, "superresolution")
    for i, (name, value) in enumerate(units.items()):
        value["psnr"] = 30 + 0.001 * i
        value["correlation"], value["ause"] = 0.6 + 0.001 * i, 0.5 if "/plain/" in name else 0.2 + 1e-3 * i
    for words in ("variational reconstructs", "variational: error and", "variational: uncertainty finds errors better"):
        assert verdict("superresolution", units, words) == "holds"
    units = units_of(folders, "gan")
    for i, (name, value) in enumerate(units.items()):
        value["fid"] = (5.0 if name.startswith("both") else 10.0) + 0.01 * i
    assert verdict("gan", units, "both Bayesian: better samples than plain (FID)") == "holds"
    assert verdict("gan", units, "Bayesian generator: better samples than plain (FID)") != "holds"


def test_the_plan_knows_every_unit() -> None:
    for name in COLLECTION.names:
        found = COLLECTION.experiment(name)
        units = found.units(found.config(False))
        assert len(units) == len(set(units))
        assert all(any(fnmatchcase(unit, row[0]) for row in PLAN.rows[name]) for unit in units)
        assert all(PLAN.seconds(name, unit, "cuda") <= 300 for unit in units)  # units are pieces
    parts = PLAN.shared_out("gan", ["plain/0", "both/0", "noise/0"], 2, "cuda")
    assert sorted(unit for _, own in parts for unit in own) == ["both/0", "noise/0", "plain/0"]


def test_nothing_that_a_run_needs_draws() -> None:
    """A machine that only computes may lack matplotlib, scikit-learn and the rest."""
    missing = ("matplotlib", "sklearn", "scipy", "pandas", "plotly", "jinja2", "PIL", "torchmetrics")
    lines = ["import sys", f"for name in {missing}: sys.modules[name] = None"]
    lines += ["from reproductions.bayesian_cnn.plan import COLLECTION"]
    lines += ["for name in COLLECTION.names: COLLECTION.experiment(name)"]
    folder = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


COMMITTED = [name for name in COLLECTION.names if (COLLECTION.home / name / "results.json").exists()]


@pytest.mark.parametrize("name", COMMITTED)
def test_pages_say_what_the_results_say(name: str) -> None:
    content: Any = read(COLLECTION.home / name / "results.json")
    found, folder = COLLECTION.experiment(name), COLLECTION.home / name
    assert (folder / "README.md").read_text() == readme.expected(folder, readme.section(found, content))
    assert content["config"] == json.loads(json.dumps(asdict(found.config(False))))
    assert set(content["units"]) <= set(found.units(found.config(False)))


def test_the_page_over_all_lists_every_answer() -> None:
    assert (COLLECTION.home / "README.md").read_text() == readme.expected(COLLECTION.home, readme.summary(COLLECTION))
