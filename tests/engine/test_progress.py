"""Bars are shown to people, one at a time, and never written into files."""

from __future__ import annotations

import io
import sys
import time

import pytest
import torch
from torch import nn

import whence
from whence.engine.progress import bars, over_inputs, progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", screen)
        for _ in progress_bar(range(3), label="work", unit="step", delay=0):
            time.sleep(0.02)
        assert ("work" in screen.getvalue()) is shown


def test_no_bar_inside_work_that_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with bars(False), bars(True), progress_bar(total=2, label="inner", unit="step", delay=0) as bar:
        bar.update()
    assert screen.getvalue() == ""
    with progress_bar(total=2, label="outer", unit="step", delay=0) as bar:
        bar.update()
    assert "outer" in screen.getvalue()


def test_pieces_are_counted_by_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(10, 2)
    made = []
    monkeypatch.setattr("whence.engine.progress.progress_bar", lambda **given: made.append(Bar(given)) or made[-1])
    assert torch.equal(torch.cat(list(over_inputs(x.split(4), x, "predict"))), x)  # type: ignore[arg-type]
    assert made[0].given == {"label": "predict", "unit": "input", "total": 10} and made[0].seen == [4, 4, 2]


def test_predictions_profiles_and_draws_have_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(3, 2), torch.randn(12, 3), torch.arange(12) % 2
    posterior = whence.laplace(model, (x, y), likelihood="classification", progress=False)
    made = []
    monkeypatch.setattr("whence.engine.progress.progress_bar", lambda **given: made.append(Bar(given)) or made[-1])
    posterior.predict(x)
    posterior.predict(x, method="sampled", num_samples=3)
    posterior.predict(x, probes=2)
    posterior.where(x)
    assert [bar.given["label"] for bar in made] == ["predict"] * 3 + ["where"]
    assert all(sum(bar.seen) == 12 for bar in made)


class Bar:
    def __init__(self, given: dict[str, object]) -> None:
        self.given, self.seen = given, list[int]()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self, count: int) -> None:
        self.seen.append(count)
