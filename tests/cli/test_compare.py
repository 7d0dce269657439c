"""``whence compare``, with a pretended comparison, and once with the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import whence
from tests.cli import fakes
from tests.report import sample_comparison
from whence.cli import main, references

FITS = """
import torch
import whence
from net import model, pair

posterior = whence.laplace(model, pair, likelihood="classification", structure="diag", progress=False)
def made(): return posterior
class Holder: posterior = posterior
number = 3
"""
calls: list[dict[str, Any]] = []


def fake_compare(posteriors: Any, test: Any, *, on_step: Any = None, **options: Any) -> fakes.FakeAudit:
    calls.append({"posteriors": posteriors, "test": test, **options})
    print("a print from user code")
    for done, name in enumerate(["data", *posteriors, "scores", "layers"]):
        on_step(name, done, 3 + len(posteriors))
    return fakes.FakeAudit(sample_comparison.methods())


@pytest.fixture
def fits(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    calls.clear()
    monkeypatch.setattr(whence, "compare", fake_compare)
    Path("fits.py").write_text(FITS)
    references.resolve("net.py:model", "")
    references.resolve("fits.py:posterior", "").save("p.safetensors")
    return shop


USUAL = ["compare", "Laplace=p.safetensors@net.py:model", "Other=fits.py:made", "--test", "net.py:test", "--out", "out"]


def test_writes_and_says_where(fits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--ood", "net.py:strange", "--classes", "a,b,c", "--title", "T", "--reference", "Other", "--seed", "3"]
    assert main([*USUAL, *more, "--examples", "50", "--plain", "net.py:model"]) == 0
    captured = capsys.readouterr()
    assert "NLL: best are" in captured.out and "out/comparison.html" in captured.out
    assert "[2/5] Laplace" in captured.err and "[4/5] scoring the methods" in captured.err
    assert "note: HMC: 3 of 400 draws diverged." in captured.err and "a print from user code" in captured.err
    assert sorted(p.name for p in Path("out").iterdir()) == ["comparison.html", "comparison.json"]
    call = calls[0]
    assert list(call["posteriors"]) == ["Laplace", "Other"]
    assert all(isinstance(p, whence.Laplace) for p in call["posteriors"].values())
    assert call["classes"] == ["a", "b", "c"] and call["reference"] == "Other" and call["plain"] is not True
    assert (call["seed"], call["examples"], call["title"]) == (3, 50, "T") and call["progress"] is False
    assert isinstance(call["plain"], nn.Module) and call["ood"].shape == (10, 4)


def test_json_quiet_and_open(fits: Path, capsys, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert main([*USUAL, "--json", "--plain", "none"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["html"] == "out/comparison.html" and told["methods"][1] == "Laplace"
    assert told["metrics"]["nll"]["Laplace"] == pytest.approx(0.1698) and told["words"]
    assert calls[0]["plain"] is False and {"classes", "title", "reference", "ood"}.isdisjoint(calls[0])
    assert main([*USUAL, "--quiet", "--open"]) == 0
    assert capsys.readouterr().out == "" and opened[0].endswith("out/comparison.html")
    assert "plain" not in calls[1], "what was not asked for is left to the comparison's own default"


def test_references_of_every_kind(fits: Path) -> None:
    torch.save(references.model("net.py:model").state_dict(), "net.pt")
    Path("lists.py").write_text("from net import model\ndef several(): return [model, model]\n")
    for ref in (
        "fits.py:posterior", "fits:made", "fits.py:Holder.posterior", f"{fits}/p.safetensors@{fits}/net.py:model",
        "p.safetensors@net.py:Net@net.pt",
    ):  # fmt: skip
        assert main(["compare", f"A b={ref}", "--test", "net.py:pair", "--out", "out", "-q"]) == 0, ref
    assert list(calls[-1]["posteriors"]) == ["A b"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["p.safetensors@net.py:model"], "expected NAME=FILE.safetensors@MODULE:MODEL or NAME=MODULE:POSTERIOR"),
        (["A="], "but got 'A='"),
        (["A=p.safetensors"], "but got 'A=p.safetensors'"),
        (["A=p.safetensors:model"], "there is no module 'p'"),
        (["A=fits.py:made", "A=fits.py:made"], "the name 'A' is given twice"),
        (["A=fits.py:number"], "A: expected a posterior, but fits.py:number is an int"),
        (["A=net.py:model"], "A: expected a posterior, but net.py:model is a Net"),
        (["A=fits.py:mde"], "A: fits.py has no 'mde'. Did you mean 'made'?"),
        (["A=missing.safetensors@net.py:model"], "A: there is no file missing.safetensors"),
        (["A=net.py@net.py:model"], "A: net.py is not a readable safetensors file"),
        (["A=p.safetensors@net.py:x"], "A: expected a torch.nn.Module, or a list of them, but net.py:x is a Tensor"),
        (
            ["A=p.safetensors@net.py:Net", "--seed", "9"],
            "A: p.safetensors belongs to a network with the same shapes but other weights",
        ),
        (["A=p.safetensors@net.py:model@missing.pt"], "there is no file missing.pt"),
        (["A=fits.py:made", "--reference", "B"], "--reference: expected one of A, but got 'B'"),
        (
            ["A=fits.py:made", "--test", "net.py:wide_pair"],
            "A: --test net.py:wide_pair: the network fails on inputs of shape [1, 7] (the first layer, first",
        ),
        (
            ["A=fits.py:made", "--ood", "net.py:wide"],
            "A: --ood net.py:wide: the network fails on inputs of shape [1, 7]",
        ),
        (["A=fits.py:made", "--plain", "net.py:x"], "--plain: expected a torch.nn.Module, but net.py:x is a Tensor"),
        (["A=fits.py:made", "--classes", "a,b"], "expected 3 names"),
        (["A=fits.py:made", "--out", "net.py"], "expected a folder that can be written"),
        ([], "Missing argument 'NAME=REF…'"),
    ],
)
def test_bad_input_gets_one_line(fits: Path, capsys, given: list[str], words: str) -> None:
    options = [] if "--test" in given else ["--test", "net.py:test"]
    out = [] if "--out" in given else ["--out", "out"]
    assert main(["compare", *given, *options, *out]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1 and lines[0].startswith("error: ") and words in lines[0], captured.err
    assert captured.out == "" and not Path("out").exists() and not calls


def test_other_failures(fits: Path, capsys, monkeypatch) -> None:
    assert main(["compare", "A=fits.py:made"]) == 2
    assert "--test is missing" in capsys.readouterr().err

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(whence, "compare", stopped)
    assert main(USUAL) == 130
    assert "interrupted: nothing was written." in capsys.readouterr().err and not Path("out").exists()


def test_with_the_comparison_itself(fits: Path, capsys, monkeypatch) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.undo()
    monkeypatch.chdir(fits)
    assert main([*USUAL, "--ood", "net.py:strange", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["methods"] == ["plain network", "Laplace", "Other"] and told["metrics"]["nll"]["Laplace"] > 0
    assert Path(told["html"]).read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    assert main(["show", "out"]) == 0
    assert "Source of the uncertainty by method" in capsys.readouterr().out


def test_the_plain_network_is_the_one_that_is_named(fits: Path, capsys, monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(fits)
    found = []
    for plain in ("net.py:model", "net.py:Net"):
        assert main([*USUAL, "--plain", plain, "--seed", "5", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)["metrics"]["nll"]["plain network"])
    assert found[0] != found[1]
