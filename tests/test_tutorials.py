"""Tutorials run from top to bottom on small settings, and their notebooks are of the sources as they stand."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tools.notebooks import as_json, as_markdown, cells, run, with_text

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"
SMALL: dict[str, dict[str, Any]] = {
    "image_classifier": {"dataset": "digits", "train_size": 150, "test_size": 100, "epochs": 2},
    "tabular_regression": {"dataset": "cubic", "columns": ["x"], "splits": 1, "epochs": 5, "gap": False},
    "imbalanced": {"folds": 2, "epochs": 3},
    "large_network": {
        "dataset": "digits",
        "other": None,
        "width": 16,
        "inner": 32,
        "depth": 2,
        "wide": 24,
        "train_size": 300,
        "validation_size": 100,
        "test_size": 100,
    },
    "novelty_in_production": {
        "dataset": "digits",
        "others": [],
        "train_size": 200,
        "test_size": 200,
        "epochs": 3,
    },
    "pruning": {"dataset": "digits", "train_size": 200, "test_size": 100, "epochs": 2, "fractions": (0, 0.5)},
    "segmentation": {
        "dataset": "digits",
        "kinds": [0, 1, 4],
        "side": 6,
        "canvas": 8,
        "train_size": 20,
        "validation_size": 10,
        "test_size": 10,
        "epochs": 2,
    },
    "text": {
        "folder": "man",
        "languages": ["de", "fr"],
        "unknown": ["es"],
        "sentences_each": 100,
        "unknown_each": 20,
        "vocabulary": 200,
        "width": 16,
        "epochs": 2,
    },
    "training_with_the_evidence": {"dataset": "cubic", "rows": 20, "splits": 1, "epochs": 45, "grid": (1e-3, 1e-2)},
}

NEEDS = {"text": ("transformers", "datasets")}
WORDS = {
    "de": "der die das Datei Befehl Ausgabe wird nicht mit einer und oder Zeichen lesen schreiben",
    "fr": "le la les fichier commande sortie est pas avec une et ou lettre lire afficher",
    "es": "el los las archivo orden salida es no con una y o letra leer mostrar",
}


def manual_pages(folder: Path) -> None:
    """Pages in the form of Debian's, of made-up sentences; some of them have an untranslated one."""
    generator = random.Random(0)
    for language, words in WORDS.items():
        (folder / language / "man1").mkdir(parents=True)
        for page in range(25):
            made = [" ".join(generator.choices(words.split(), k=8)) + f" {i}." for i in range(4)]
            english = ".PP\nThe \\fBname\\fP of the file and of this page are not the same.\n" if page % 5 == 0 else ""
            text = f'.TH {page}\n.SH "NAME"\n' + "\n".join(made) + "\n" + english
            (folder / language / "man1" / f"page{page}.1.gz").write_bytes(gzip.compress(text.encode()))


def test_every_tutorial_is_run() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.py")} == set(SMALL)
    assert {path.stem for path in TUTORIALS.glob("*.ipynb")} == set(SMALL)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_tutorial_on_small_settings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("sklearn", *NEEDS.get(name, ())):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    if name == "text":
        manual_pages(tmp_path / "man")
    done = run(TUTORIALS / f"{name}.py", **SMALL[name])
    assert sum(bool(cell.outputs) for cell in done) > 3


@pytest.mark.parametrize("name", sorted(SMALL))
def test_notebook_is_of_its_source(name: str) -> None:
    """``python -m tools.notebooks docs/tutorials/NAME.py`` makes it again."""
    kept = json.loads((TUTORIALS / f"{name}.ipynb").read_text())["cells"]
    found = cells(TUTORIALS / f"{name}.py")
    assert ["".join(cell["source"]) for cell in kept] == [cell.source for cell in found]
    assert [cell["cell_type"] for cell in kept] == [cell.kind for cell in found]
    assert any(cell.get("outputs") for cell in kept)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_decision_is_supported_by_numbers_of_the_outputs(name: str) -> None:
    """Each tutorial ends in a decision; its percentages and decimal numbers were printed above it."""
    kept = json.loads((TUTORIALS / f"{name}.ipynb").read_text())["cells"]
    last = "".join(kept[-1]["source"])
    assert last.startswith("## Decision")
    outputs = [output for cell in kept for output in cell.get("outputs", [])]
    printed = " ".join("".join(o.get("text", o.get("data", {}).get("text/plain", []))) for o in outputs)
    known = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", printed.replace(",", ""))}
    numbers = re.findall(r"(\d+(?:\.\d+)?)(%?)", last.replace(",", ""))
    stated = [(text, percent) for text, percent in numbers if percent or "." in text]
    assert stated
    for text, percent in stated:
        unit = 10.0 ** -len(text.partition(".")[2]) / 2 * 1.0001
        values = known | {100 * value for value in known} if percent else known
        assert any(abs(value - float(text)) <= unit for value in values), f"{text}{percent} was not printed"


def test_a_notebook_has_outputs_and_a_page(tmp_path: Path) -> None:
    source = tmp_path / "small.py"
    source.write_text(
        '# %% [markdown]\n# # Title\n#\n# Words.\n\n# %% tags=["parameters"]\nsize = 100\n\n'
        '# %%\nprint("of size", size)\nsize + 1\n\n'
        "# %%\nfrom matplotlib.figure import Figure\npicture = Figure(figsize=(1, 1))\npicture\n"
    )
    done = run(source, size=3)
    assert [cell.kind for cell in done] == ["markdown", "code", "code", "code"]
    assert done[0].source == "# Title\n\nWords."
    path = tmp_path / "small.ipynb"
    path.write_text(as_json(done))
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4 and notebook["cells"][2]["outputs"][0]["text"] == ["of size 3\n"]
    assert notebook["cells"][2]["outputs"][1]["data"]["text/plain"] == ["4"]
    page, images = as_markdown(path)
    assert "# Title" in page and "of size 3" in page and "```python\nsize = 100\n```" in page
    assert [name for name in images if name in page] == ["small-0.png"]
    assert images["small-0.png"].startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no parameters"):
        run(source, sizes=3)


def test_text_is_taken_over_and_outputs_are_kept_while_the_code_is_the_same(tmp_path: Path) -> None:
    source = tmp_path / "small.py"
    source.write_text("# %% [markdown]\n# # Title\n\n# %%\n1+ 1\n")
    source.with_suffix(".ipynb").write_text(as_json(run(source)))
    source.write_text("# %% [markdown]\n# # Another\n\n# %%\n1 + 1\n\n# %% [markdown]\n# End.\n")
    done = with_text(source)
    assert [cell.source for cell in done] == ["# Another", "1 + 1", "End."]
    assert done[1].outputs[0]["data"]["text/plain"] == ["2"]
    source.write_text("# %% [markdown]\n# # Another\n\n# %%\n1 + 2\n")
    with pytest.raises(ValueError, match="run it again"):
        with_text(source)
