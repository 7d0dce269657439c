"""``whence verify`` on records and pages of a real audit."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import whence
from tests.cli.conftest import NET
from whence.cli.app import run

pytest.importorskip("typer")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the files of an audit that the command made, and of its network."""
    folder = tmp_path_factory.mktemp("verify")
    (folder / "traced_net.py").write_text(NET)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        data = ["--train", "traced_net.py:loader", "--test", "traced_net.py:held"]
        assert run(["audit", "traced_net.py:model", *data, "-l", "classification", "-q", "--out", "report"]) == 0
        state = sys.modules["traced_net"].model.state_dict()
        torch.save(state, folder / "net.pt")
        torch.save({"state_dict": dict(reversed(state.items()))}, folder / "other_order.pt")
        changed = {name: value.clone() for name, value in state.items()}
        changed["last.bias"][0] += 1e-5
        torch.save(changed, folder / "changed.pt")
        yield folder
        sys.modules.pop("traced_net", None)


@pytest.mark.parametrize("file", ["report", "report/audit.json", "report/audit.html"])
def test_what_is_unchanged_passes(made: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", file]) == 0
    assert run(["verify", file, "net.pt", "--test", "traced_net.py:held", "--train", "traced_net.py:dataset"]) == 0
    assert run(["verify", file, "other_order.pt"]) == 0
    assert run(["verify", file, "traced_net.py:Net", "--weights", "net.pt"]) == 0
    assert "FAILED" not in capsys.readouterr().out


@pytest.mark.parametrize("file", ["report/audit.json", "report/audit.html"])
def test_what_is_changed_fails(made: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", file, "changed.pt"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out and "weights" in out and "1 of 2 checks did not pass" in out
    assert run(["verify", file, "net.pt", "--test", "traced_net.py:pair", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] is False and [one["passed"] for one in told["checks"]] == [True, True, False]
    text = Path(file).read_text()
    edited = Path(f"edited{Path(file).suffix}")
    edited.write_text(text.replace("test inputs", "test input", 1))
    assert run(["verify", str(edited), "net.pt"]) == 1
    assert "changed after it was written" in " ".join(capsys.readouterr().out.split())


def test_a_digest_from_elsewhere(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = whence.Audit.read("report/audit.json").results.trace
    assert trace is not None
    assert trace.command == (
        "whence audit traced_net.py:model --train traced_net.py:loader --test traced_net.py:held "
        "-l classification -q --out report"
    )
    assert trace.record in Path("report/audit.html").read_text()
    for file in ("report/audit.json", "report/audit.html"):
        assert run(["verify", file, "--digest", trace.record]) == 0
        assert run(["verify", file, "--digest", "f" * 64]) == 1


def test_bad_input_is_one_line(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for args, words in (
        (["missing.json"], "there is no file"),
        (["report", "missing.pt"], "there is no file missing.pt"),
        (["report", "net.pt", "--weights", "net.pt"], "--weights belongs to one MODULE:MODEL"),
        (["report", "report/audit.json"], "torch.save"),
    ):
        assert run(["verify", *args]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
    Path("plain.html").write_text("<!doctype html><p>words")
    assert run(["verify", "plain.html", "net.pt"]) == 1
    assert "holds no digests" in " ".join(capsys.readouterr().out.split())
