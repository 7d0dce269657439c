"""Replays of captured batches, with a stand-in for the device's graphs that runs the same code again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from tests.curvature.running_out import Failing
from whence.curvature import graphs, sweep
from whence.curvature.graphs import BatchGraphs
from whence.engine import graphs as replay
from whence.engine.checks import DeferredChecks

Step = Callable[[], None]


class Stand:
    """Makes graphs that behave like those of a GPU: capturing executes nothing, replaying leaves the host alone."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[BatchGraphs], None] | None = None, busy: float = 1e9
    ) -> None:
        self.replays = self.captures = 0
        self.spoil, self.busy = spoil, busy
        monkeypatch.setattr(graphs, "wanted", lambda s: s.options.execution.cuda_graphs)
        monkeypatch.setattr(graphs, "BatchGraphs", self.make)

    def make(self, owner: Any, total: int | None) -> BatchGraphs:
        made = BatchGraphs(owner, total, lambda function, device: self.capture(made, function), self.busy)
        return made

    def capture(self, made: BatchGraphs, function: Step) -> Step:
        self.captures += 1
        sums = replay.copies(made._sums())
        function()
        replay.restore(made._sums(), sums)

        def again() -> None:
            self.replays += 1
            host, size = replay.copies(made._host()), made.sweep.record.size
            function()
            replay.restore(made._host(), host)
            made.sweep.record.size = size
            if self.spoil is not None:
                self.spoil(made)

        return again


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 6), nn.Tanh(), nn.Linear(6, 4)
    ).double()


def batches(count: int = 14, size: int = 5) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for i in range(count):
        n = size if i % 5 != 4 else 3
        x = torch.randn(n, 2, 5, 5, dtype=torch.float64, generator=generator)
        made.append((x, torch.randint(4, (n,), generator=generator)))
    return made


def fit(data: Any, **options: Any) -> whence.Laplace:
    given = {"likelihood": "classification", "progress": False, "generator": torch.Generator().manual_seed(3)}
    return whence.laplace(network(), data, **{**given, **options})


OPTIONS = [
    {"structure": "kron", "curvature": "ggn"},
    {"structure": "kron", "curvature": "mc"},
    {"structure": "kron", "curvature": "empirical", "passes": 2},
    {"structure": "ekfac", "curvature": "ggn"},
    {"structure": "diag", "curvature": "ggn"},
    {"structure": "full", "curvature": "ggn"},
    {"structure": "kron", "sharing": "reduce"},
    {"structure": "kron", "layers": "last"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_replays_add_what_batches_add(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fit(batches(), **options)
    stand = Stand(monkeypatch)
    ours = fit(batches(), **options)
    assert stand.captures >= 1
    assert stand.replays >= 7
    for a, b in zip(ours.curvature.structures, plain.curvature.structures, strict=True):
        for key, value in a.tensors().items():
            assert_close(value, b.tensors()[key], 1e-12)
    assert ours.record.loss == pytest.approx(plain.record.loss, rel=1e-12)
    assert (ours.record.seen, ours.record.data_size) == (plain.record.seen, plain.record.data_size)
    assert ours.record.correct == plain.record.correct


def test_labels_that_do_not_count_change_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    data = batches()
    for x, y in data[::3]:
        y[: len(x) - 1] = -100
    plain = fit(data)
    stand = Stand(monkeypatch)
    assert_close(fit(data).covariance(), plain.covariance(), 1e-10)
    assert stand.replays


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch)
    fit(batches(), execution=whence.Execution(cuda_graphs=False))
    assert not stand.captures


def test_few_batches_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch)
    fit(batches(6))
    assert not stand.captures


def test_what_keeps_the_device_busy_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch, busy=0.0)
    fit(batches())
    assert not stand.captures


def test_a_graph_that_adds_something_else_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fit(batches())

    def spoil(made: BatchGraphs) -> None:
        made._sums()[0] += 1.0

    stand = Stand(monkeypatch, spoil)
    ours = fit(batches())
    assert stand.replays == 1
    assert_close(ours.covariance(), plain.covariance(), 1e-12)
    assert ours.record == plain.record


def test_what_is_executed_instead_of_captured_is_not_taken_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a second GPU, if the capture were of the first: the kernels run at once, and a replay does nothing."""
    plain = fit(batches())
    stand = Stand(monkeypatch)

    def execute(_made: BatchGraphs, function: Step) -> Step:
        stand.captures += 1
        function()
        return lambda: None

    monkeypatch.setattr(stand, "capture", execute)
    ours = fit(batches())
    assert stand.captures == 1
    assert_close(ours.covariance(), plain.covariance(), 1e-12)
    assert ours.record == plain.record


@pytest.mark.parametrize("at", [1, 3])
def test_no_room_for_the_check_means_no_graph(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fit(batches())
    Stand(monkeypatch)
    monkeypatch.setattr(graphs, "copies", Failing(at).wrap(replay.copies))
    ours = fit(batches())
    assert_close(ours.covariance(), plain.covariance(), 1e-12)
    assert ours.record == plain.record


def test_what_cannot_be_captured_goes_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fit(batches())
    stand = Stand(monkeypatch)

    def refuse(_made: BatchGraphs, function: Step) -> Step:
        function()  # the host has counted when the device refuses
        replay.restore(_made._sums(), kept[0])
        raise RuntimeError("operation not permitted when stream is capturing")

    kept: list[list[Tensor]] = []
    attempt = BatchGraphs._capture

    def watched(self: BatchGraphs, piece: Any) -> Any:
        kept[:] = [replay.copies(self._sums())]
        return attempt(self, piece)

    monkeypatch.setattr(BatchGraphs, "_capture", watched)
    monkeypatch.setattr(stand, "capture", refuse)
    ours = fit(batches())
    assert_close(ours.covariance(), plain.covariance(), 1e-12)
    assert ours.record == plain.record


def test_a_bad_label_in_a_replayed_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch)
    monkeypatch.setattr(sweep, "DeferredChecks", lambda: DeferredChecks(on_cpu=True))
    data = batches()
    data[12] = (data[12][0], torch.tensor([0, 1, 9, 2, 3]))
    with pytest.raises(whence.errors.BadData, match="batch 12: class label 9 is out of range"):
        fit(data)
    assert stand.replays > 5
    data = batches()
    data[11][0][1, 0, 2, 2] = torch.nan
    with pytest.raises(whence.errors.BadData, match="batch 11 contain"):
        fit(data)


def test_mappings_and_tuples_are_copied_into_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4).double(), nn.Linear(2, 4).double()

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.a(left).tanh() + self.b(right)

    torch.manual_seed(0)
    model = Two()
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)  # noqa: E731
    as_mapping = [{"left": draw(4, 3), "right": draw(4, 2), "labels": torch.randint(4, (4,))} for _ in range(12)]
    as_tuples = [((b["left"], b["right"]), b["labels"]) for b in as_mapping]
    plain = whence.laplace(model, as_tuples, likelihood="classification")
    stand = Stand(monkeypatch)
    for data in (as_mapping, as_tuples):
        assert_close(whence.laplace(model, data, likelihood="classification").covariance(), plain.covariance(), 1e-12)
    assert stand.captures == 2
