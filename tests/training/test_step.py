"""Captured training steps, with a stand-in for the device's graphs that runs the same code again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence import zoo
from whence.engine.graphs import Capture
from whence.errors import BadData, BadOption, Notice
from whence.posteriors.variational import Variational, variational
from whence.training import step
from whence.training.step import WARM_UP

Launch = Callable[[], None]


class Stand:
    """Counts captures and replays. A replay that is ``stale`` leaves the memory as the capture did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refuse: bool = False, stale: bool = False) -> None:
        self.captures = self.replays = 0
        self.refuse, self.stale = refuse, stale
        monkeypatch.setattr(step, "capture_on", self.on)

    def on(self, device: torch.device) -> Capture:
        return self.capture

    def capture(self, function: Launch, device: torch.device) -> Launch:
        self.captures += 1
        if self.refuse:
            raise RuntimeError("operation not permitted when stream is capturing")
        state = torch.get_rng_state()
        function()
        torch.set_rng_state(state)  # a capture executes nothing

        def again() -> None:
            self.replays += 1
            if not self.stale:
                function()

        return again


def data(n: int = 70) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=gen)
    return x, (x[:, 0] > 0).long()


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def fit(given: Any = None, **options: Any) -> Variational:
    settings = {"likelihood": "classification", "epochs": 4, "lr": 0.02, "seed": 1, "batch_size": 16} | options
    return variational(model(), given or data(), progress=False, **settings)


def assert_same(one: Variational, other: Variational) -> None:
    for (name, mine), its in zip(one.mean().items(), other.mean().values(), strict=True):
        assert torch.equal(mine, its), name
    for name, variance in one.variance().items():
        assert torch.equal(variance, other.variance()[name])
    for mine, its in zip(one.history, other.history, strict=True):
        assert (mine.nll, mine.kl, mine.kl_weight) == (its.nll, its.kl, its.kl_weight)


@pytest.mark.parametrize(
    "options",
    [{}, {"estimator": "flipout"}, {"kl_schedule": 3.0}, {"kl_schedule": "blundell"}, {"l1": 0.01, "num_samples": 2},
     {"prior_precision": whence.posteriors.variational.ScaleMixture(0.5, 1.0, 0.1)}],
    ids=str,
)  # fmt: skip
def test_captured_variational_steps_are_the_eager_ones(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = fit(**options)
    stand = Stand(monkeypatch)
    captured = fit(**options)
    assert stand.captures == 1
    assert stand.replays == 4 * 4 - WARM_UP  # of five batches in an epoch the last is smaller
    assert_same(captured, plain)


@pytest.mark.parametrize("how", [{"refuse": True}, {"stale": True}], ids=str)
def test_what_cannot_be_captured_runs_eagerly(how: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fit()
    stand = Stand(monkeypatch, **how)
    why = "when stream is capturing" if stand.refuse else "other gradients"
    with pytest.warns(Notice, match=f"runs eagerly.*{why}"):
        found = fit()
    assert (stand.captures, stand.replays) == (1, 0 if stand.refuse else 1)
    assert_same(found, plain)


def test_capture_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch)
    fit(capture=False)
    assert stand.captures == 0


def test_a_bad_batch_of_a_captured_training_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Stand(monkeypatch)
    x, y = data(160)
    loader = [(x[i : i + 16], y[i : i + 16].clone()) for i in range(0, 160, 16)]

    class Spoilt(list[Any]):
        passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            if self.passes == 3:
                self[7][1][0] = 9
            return super().__iter__()

    with pytest.raises(BadData, match="batch 7: class label 9"):
        fit(Spoilt(loader))


def test_supervised_steps_are_captured_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = zoo.Settings(epochs=3, batch_size=16, lr=0.05)
    plain = zoo.train(model(), data(), settings, progress=False)
    stand = Stand(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured = zoo.train(model(), data(), settings.with_(capture=True), progress=False)
    assert (stand.captures, stand.replays) == (1, 3 * 4 - WARM_UP)
    for one, other in zip(plain.network.parameters(), captured.network.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [row.loss for row in plain.history] == [row.loss for row in captured.history]
    Stand(monkeypatch, refuse=True)
    with pytest.raises(BadOption, match="capture=False"):
        zoo.train(model(), data(), settings.with_(capture=True), progress=False)
