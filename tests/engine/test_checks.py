"""Deferred checks say what immediate ones say, and name the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.engine import checks
from whence.engine.checks import DeferredChecks, check_finite
from whence.errors import BadData


def test_a_gathered_failure_comes_before_a_later_one() -> None:
    def both() -> None:
        with checks.DeferredChecks(on_cpu=True):
            checks.check_finite(torch.tensor([torch.nan]), "the inputs", 3)
            raise BadData("batch 5 is wrong too")

    with pytest.raises(BadData, match="batch 3"):
        both()


T = TypeVar("T")


def gathered(watch: DeferredChecks, check: Callable[..., T], *args: object) -> T:
    """Run a check while the watch is open, and leave what it saw unsettled."""
    token = checks._open.set(watch)
    try:
        return check(*args)
    finally:
        checks._open.reset(token)


class TestDeferredChecks:
    """Deferred checks say what immediate ones say, and name the batch."""

    def test_the_first_failure_is_named(self) -> None:
        good, bad = torch.zeros(3), torch.tensor([1.0, torch.nan, torch.inf])
        watch = DeferredChecks(on_cpu=True)
        for index in range(8):
            gathered(watch, check_finite, bad if index in (4, 6) else good, "the inputs", index)
        assert len(watch.collected) == 8
        with pytest.raises(BadData, match="the inputs of batch 4 contain 2 NaN"):
            watch.read()

    @pytest.mark.parametrize("shape", [(5, 3), (7,), (2, 1, 9), (1, 11)], ids=str)
    def test_many_values_are_looked_at_in_parts(self, shape: tuple[int, ...], set_sizes: Callable[..., None]) -> None:
        set_sizes(checked=4)
        values = torch.zeros(shape)
        check_finite(values, "the inputs", 0)
        values.view(-1)[[0, 5]] = torch.tensor([torch.nan, -torch.inf])
        with pytest.raises(BadData, match=f"contain 2 NaN or infinite values .of {values.numel():,}"):
            check_finite(values, "the inputs", 0)
        with pytest.raises(BadData, match="contain 2 NaN"), DeferredChecks(on_cpu=True):
            check_finite(values, "the inputs", 0)

    def test_a_single_number_is_looked_at(self) -> None:
        with pytest.raises(BadData, match="contain 1 NaN"):
            check_finite(torch.tensor(torch.inf), "the inputs", 0)

    def test_it_looks_now_and_then(self) -> None:
        with DeferredChecks(on_cpu=True, every=3):
            check_finite(torch.tensor([torch.nan]), "the inputs", 0)
            check_finite(torch.zeros(1), "the inputs", 1)
            with pytest.raises(BadData, match="batch 0"):
                check_finite(torch.zeros(1), "the inputs", 2)

    def test_it_comes_before_what_it_led_to(self) -> None:
        with pytest.raises(BadData, match="batch 0"):
            self.fail_after(RuntimeError("a consequence"))

    def test_an_interruption_is_left_alone(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.fail_after(KeyboardInterrupt())

    def fail_after(self, error: BaseException) -> None:
        with DeferredChecks(on_cpu=True):
            check_finite(torch.tensor([torch.nan]), "the inputs", 0)
            raise error

    @pytest.mark.parametrize(
        ("likelihood", "bad", "message"),
        [
            (whence.Categorical(), torch.tensor([0, 1, 7]), "batch 2: class label 7 is out of range"),
            (whence.Categorical(), torch.tensor([0, -1, 1]), "batch 2: class label -1 is out of range"),
            (whence.Bernoulli(), torch.tensor([[0.0, 1], [1, 2], [0, 0]]), "batch 2: binary targets .* but 2 was met"),
            (whence.Poisson(), torch.tensor([[0.0, 1], [1, 0.5], [0, 0]]), "batch 2: Poisson targets .* but 0.5 was"),
        ],
    )
    def test_labels(self, likelihood: whence.Likelihood, bad: Tensor, message: str) -> None:
        outputs = torch.randn(3, 2)
        with pytest.raises(BadData, match=message):
            likelihood.check(outputs, bad, 2)
        watch = DeferredChecks(on_cpu=True)
        checked = gathered(watch, likelihood.check, outputs, bad, 2)
        likelihood.nll(outputs, checked)  # bears wrong labels until the watch settles
        with pytest.raises(BadData, match=message):
            watch.read()

    def test_a_fit_that_gathers_names_the_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from whence.curvature import sweep

        monkeypatch.setattr(sweep, "DeferredChecks", lambda: DeferredChecks(on_cpu=True))
        model = nn.Linear(2, 3)
        batches = [(torch.randn(4, 2), torch.tensor([0, 1, 2, 0])) for _ in range(5)]
        whole = whence.laplace(model, batches, likelihood="classification")
        monkeypatch.undo()
        assert torch.equal(whole.covariance(), whence.laplace(model, batches, likelihood="classification").covariance())
        monkeypatch.setattr(sweep, "DeferredChecks", lambda: DeferredChecks(on_cpu=True))
        batches[3] = (batches[3][0], torch.tensor([0, 1, 3, 0]))
        with pytest.raises(BadData, match="batch 3: class label 3 is out of range"):
            whence.laplace(model, batches, likelihood="classification")
