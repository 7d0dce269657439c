"""The command with the audit itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import whence
from whence.auditing import audit
from whence.cli import main


def test_from_a_file_to_a_page(shop: Path, capsys, monkeypatch) -> None:
    pytest.importorskip("jinja2")
    monkeypatch.setattr(whence, "audit", audit)
    sets = [
        "--train",
        "net.py:loader",
        "--validation",
        "net.py:held",
        "--test",
        "net.py:test",
        "--ood",
        "net.py:strange",
    ]
    assert main(["audit", "net.py:model", *sets, "-l", "classification", "--json", "--save", "p.safetensors"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["interrupted"] is None and told["metrics"]["nll"]["bayesian"] > 0 and told["left_out"] == []
    assert Path(told["html"]).read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")
    for path in (told["json"], told["posterior"], "whence-audit"):
        assert main(["show", path]) == 0
    out = capsys.readouterr().out
    assert "Source of the uncertainty" in out and "by validation" in out
    again = ["audit", "net.py:model", "--posterior", "p.safetensors", "--test", "net.py:test", "--out", "again", "-q"]
    assert main(again) == 0 and Path("again/audit.html").is_file()
