from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import whence
from tests.cli.fakes import record
from tests.report import sample_comparison
from whence.cli import main


@pytest.fixture
def saved(shop: Path) -> Path:
    x = torch.randn(60, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.LayerNorm(6), torch.nn.Linear(6, 3))
    y = x[:, :3].argmax(1)
    posterior = whence.laplace(model, (x, y), likelihood="classification", progress=False)
    posterior.tune((x, y), progress=False).save("p.safetensors")
    return Path("p.safetensors")


def test_posterior(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(saved)]) == 0
    out = capsys.readouterr().out
    for words in ("kron", "ggn", "Categorical", "60 examples", "training accuracy", "by validation", "LayerNorm"):
        assert words in out
    assert main(["show", str(saved), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["kind"] == "posterior" and about["parameters"] == 63 == about["network_parameters"]
    assert [layer["parameters"] for layer in about["layers"]] == [30, 12, 21]
    assert about["tuning"]["criterion"] == "validation" and about["data_size"] == 60


def test_audit(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("audit.json").write_text(json.dumps(record()))
    for name in ("audit.json", "."):
        assert main(["show", name]) == 0
        assert "Net [v2] on digits" in capsys.readouterr().out
    assert main(["show", "audit.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"]["tone"] == "mixed"


def test_comparison(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("comparison.json").write_text(json.dumps(sample_comparison.methods()))
    for name in ("comparison.json", "."):
        assert main(["show", name]) == 0
        assert "Five methods on digits" in capsys.readouterr().out
    assert main(["show", "comparison.json", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "comparison" and told["best"]["nll"] == ["Deep ensemble", "HMC"]
    assert told["metrics"]["coverage"]["plain network"] is None
    Path("comparison.json").write_text('{"schema": "whence.comparison/9"}')
    assert main(["show", "comparison.json"]) == 2
    assert "its schema is 'whence.comparison/9'" in capsys.readouterr().err


def test_posteriors_that_are_known_by_their_draws(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {
        "p": 0.25, "per_input": True, "rank": None, "weights": [0.5, 0.5], "names": [f"layer{i}" for i in range(9)],
        "prior": {"a.weight": 3.0, "b.weight": 3.0}, "kl_weight": {"warmup": 5, "final": 1.0},
        "history": [{"nll": 1.0}],
    }  # fmt: skip
    meta = {
        "format": 1, "whence": "0.1", "torch": "2", "kind": "ensemble", "weights": ["x", "y"],
        "names": [{"a.weight": [6, 4], "b.weight": [3]}] * 2, "likelihood": whence.Categorical().spec(), "state": state,
    }  # fmt: skip
    save_file({"a": torch.zeros(2)}, "e.safetensors", metadata={"whence": json.dumps(meta)})
    assert main(["show", "e.safetensors"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in (
        "method ensemble", "Categorical", "2 networks of 27, 27 weights", "p 0.25", "per input True",
        "weights 0.5, 0.5", "names 9 entries", "prior (each) 3.0", "kl weight, warmup 5", "history 1 entry",
    ):  # fmt: skip
        assert words in out, words
    assert "rank" not in out
    assert main(["show", "e.safetensors", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "posterior" and told["method"] == "ensemble" and told["networks"] == [27, 27]
    del meta["names"]
    save_file({"a": torch.zeros(2)}, "e.safetensors", metadata={"whence": json.dumps(meta)})
    assert main(["show", "e.safetensors"]) == 2
    assert "e.safetensors is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.json", None, "there is no file missing.json"),
        ("a.html", b"<!doctype html>", "open it in a browser, or show the .json next to it"),
        ("page", b"<!DOCTYPE html>", "open it in a browser"),
        ("a.json", b'{"schema": "other"}', "its schema is 'other', not 'whence.audit/1'"),
        ("a.json", b'{"schema": "whence.audit/9"}', "its schema is 'whence.audit/9'"),
        ("a.json", b'{"schema": ', "is not an audit: it is not JSON"),
        (
            "a.txt",
            b"hello",
            "expected a posterior (.safetensors) or the .json of an audit or a comparison, but a.txt is not a readable",
        ),
        ("a.safetensors", b"\x10", "a.safetensors is not a readable safetensors file, or is truncated"),
    ],
)
def test_other_files_get_one_line(shop: Path, capsys, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    assert main(["show", name]) == 2
    captured = capsys.readouterr()
    assert words in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_other_safetensors_and_folders(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"a": torch.zeros(2)}, "other.safetensors")
    assert main(["show", "other.safetensors"]) == 2
    assert "other.safetensors is a safetensors file, but was not written by whence" in capsys.readouterr().err
    Path("empty").mkdir()
    assert main(["show", "empty"]) == 2
    assert "without an audit.json or comparison.json" in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"whence {whence.__version__}"
    for command in ([], ["demo"], ["audit"], ["compare"], ["show"], ["prune"]):
        assert main([*command, "--help"]) == 0
        out = capsys.readouterr().out
        assert "Exit codes: 0 done; 2 bad input" in out and "whence" in out
    assert main([]) == 2 and "whence demo" in capsys.readouterr().out
