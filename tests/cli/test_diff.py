"""``whence diff``, and ``whence show`` in other forms, on pretended records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.fakes import estimate, record
from tests.report import sample_comparison
from tests.report.browser import CHROMIUM
from whence.cli import main
from whence.report.browser import PLACES


@pytest.fixture
def two(shop: Path) -> Path:
    old, new = record(), record()
    new["quality"]["metrics"][0]["plain"] = estimate(0.9)
    new["verdict"]["tone"] = "poor"
    new["run"]["seed"] = 7
    for name, data in (("old", old), ("new", new)):
        Path(name).mkdir()
        Path(name, "audit.json").write_text(json.dumps(data))
    return shop


def test_a_diff_with_itself_is_empty(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "old", "old/audit.json"]) == 0
    assert "Nothing differs except dates and times" in capsys.readouterr().out
    assert main(["diff", "old", "old", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["empty"] is True and told["facts"] == []


def test_what_changed_is_printed_and_written(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "old", "new", "--html", "d.html", "--out", "d.json"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("verdict changed from “mixed” to “poor”", "Worse by more than chance", "0 → 7", "d.html", "d.json"):
        assert words in out, words
    assert "yes, worse" in Path("d.html").read_text()
    assert main(["show", "d.json"]) == 0
    assert "Worse by more than chance" in " ".join(capsys.readouterr().out.split())
    assert main(["diff", "old", "new", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["metrics"][0]["judgement"] == "worse" and told["same_test"] == "unknown"


def test_bad_input_is_one_line(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "old", "missing.json"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["diff", "old", "new", "--html", "nowhere/d.html"]) == 2
    assert "there is no folder nowhere" in capsys.readouterr().err


def test_show_writes_other_forms(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "old", "--html", "a.html", "--card", "card.md", "--tables", "numbers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"html": "a.html", "card": "card.md", "tables": "numbers"}
    assert Path("card.md").read_text().startswith("---\nlibrary_name")
    assert Path("numbers/layers.csv").is_file() and Path("a.html").is_file()
    Path("comparison.json").write_text(json.dumps(sample_comparison.methods()))
    assert main(["show", "comparison.json", "--tables", "compared"]) == 0
    assert Path("compared/metrics.csv").is_file()
    for args, words in (
        (["comparison.json", "--card", "c.md"], "--card needs an audit, but comparison.json is a comparison"),
        (["old", "--format", "svg"], "--format is the format of --figures"),
    ):
        assert main(["show", *args]) == 2
        assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_show_prints_a_pdf(two: Path) -> None:
    assert main(["show", "old", "--pdf", "a.pdf"]) == 0
    assert Path("a.pdf").read_bytes().startswith(b"%PDF")


def test_without_a_browser_the_command_says_what_to_install(
    two: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if any(Path(place).is_file() for place in PLACES):
        pytest.skip("a browser that is found without the PATH")
    monkeypatch.setenv("PATH", "")
    assert main(["show", "old", "--pdf", "a.pdf"]) == 2
    assert "Install one" in capsys.readouterr().err
