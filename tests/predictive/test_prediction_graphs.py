"""Linearised predictions by replays, with a stand-in for the device's graphs that runs the same code again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.engine.checks import DeferredChecks
from whence.engine.graphs import Replayed
from whence.predictive import dispatch, linearised

Step = Callable[[], None]


class Stand:
    """Counts captures and replays; ``spoil`` changes what a replay gives."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, spoil: float = 0.0, refuse: bool = False, execute: bool = False
    ) -> None:
        self.captures = self.replays = 0
        self.spoil, self.refuse, self.execute = spoil, refuse, execute
        monkeypatch.setattr(
            linearised, "_replays", lambda posterior, piece: posterior.curvature.options.execution.cuda_graphs
        )
        monkeypatch.setattr(linearised, "Replayed", self.make)
        monkeypatch.setattr(linearised, "piece_size", lambda *_: 4)

    def make(self, function: Any, total: int | None, holds: Any) -> Replayed:
        def computed(inputs: Any) -> Any:
            mean, cov = function(inputs)
            return mean, cov + self.spoil if self.replaying else cov

        self.replaying = False
        return Replayed(computed, total, self.capture, holds, few=6, busy=1e9)

    def capture(self, function: Step, device: torch.device) -> Step:
        self.captures += 1
        if self.refuse:
            raise RuntimeError("operation not permitted when stream is capturing")
        function()
        if self.execute:  # as on a second GPU, if the capture were of the first
            return lambda: None

        def again() -> None:
            self.replays += 1
            self.replaying = True
            function()
            self.replaying = False

        return again


def posterior(**options: Any) -> whence.Laplace:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 6), nn.Tanh(), nn.Linear(6, 4)
    ).double()
    data = [(inputs(8), torch.randint(4, (8,))) for _ in range(3)]
    return whence.laplace(model.eval(), data, likelihood="classification", progress=False, **options)


def inputs(size: int) -> Tensor:
    return torch.randn(size, 2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(size))


def assert_same(ours: whence.Prediction, plain: whence.Prediction) -> None:
    assert_close(ours.probs, plain.probs, 1e-12)
    assert_close(ours.logit_mean, plain.logit_mean, 1e-12)
    assert_close(ours.logit_cov, plain.logit_cov, 1e-12)


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_replays_give_what_pieces_give(structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    post, x = posterior(structure=structure), inputs(46)
    plain = post.predict(x, link="probit")
    stand = Stand(monkeypatch)
    assert_same(post.predict(x, link="probit"), plain)
    assert (stand.captures, stand.replays) == (1, 9)  # two before; the last piece has another shape


def test_a_loader_is_replayed_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    post, x = posterior(), inputs(40)
    plain = post.predict(x)
    stand = Stand(monkeypatch)
    assert_same(post.predict([(part, torch.zeros(20)) for part in x.split(20)]), plain)
    assert (stand.captures, stand.replays) == (1, 8)


@pytest.mark.parametrize("trouble", [{"spoil": 1.0}, {"refuse": True}, {"execute": True}], ids=str)
def test_what_a_graph_cannot_do_goes_the_plain_way(trouble: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    post, x = posterior(), inputs(48)
    plain = post.predict(x)
    stand = Stand(monkeypatch, **trouble)
    assert_same(post.predict(x), plain)
    assert stand.captures == 1
    assert stand.replays == ("spoil" in trouble)


def test_few_inputs_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    post = posterior()
    stand = Stand(monkeypatch)
    post.predict(inputs(32))
    assert not stand.captures


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    post = posterior(execution=whence.Execution(cuda_graphs=False))
    stand = Stand(monkeypatch)
    post.predict(inputs(64))
    assert not stand.captures


def test_a_bad_input_of_a_replayed_piece_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    post, x = posterior(), inputs(64)
    x[50, 0, 2, 2] = torch.nan
    stand = Stand(monkeypatch)
    monkeypatch.setattr(dispatch, "DeferredChecks", lambda: DeferredChecks(on_cpu=True))
    monkeypatch.setattr("whence.engine.batches.check_finite", lambda *_: None)
    with pytest.raises(whence.errors.BadData, match="the outputs of the network"):
        post.predict(x)
    assert stand.replays >= 10


def test_on_the_cpu_nothing_is_captured() -> None:
    post = posterior()
    assert not linearised._replays(post, inputs(4))
