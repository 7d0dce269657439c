from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest
import torch

from tests.cli import fakes
from whence.cli import demo, main


def test_prepare_and_run(shop: Path, capsys, monkeypatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(demo, "prepare", functools.partial(demo.prepare, epochs=1))
    assert main(["demo", "--json", "--seed", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["html"] == "whence-demo/audit.html" and Path(told["json"]).is_file()
    call = fakes.calls[0]
    assert call["train"][1].unique().tolist() == list(range(10)) and call["seed"] == 1
    assert len(call["ood"]) == demo.PATCHES and call["ood"].shape[1:] == (1, 8, 8) and len(call["classes"]) == 10
    model, train, *_ = demo.prepare(1)
    assert torch.equal(train[0], call["train"][0]) and not model.training
    assert torch.equal(model.head.weight, call["subject"].head.weight)


def test_without_scikit_learn(shop: Path, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert main(["demo"]) == 2
    assert "this needs scikit-learn: pip install 'whence[zoo]'" in capsys.readouterr().err
    assert not Path("whence-demo").exists()
