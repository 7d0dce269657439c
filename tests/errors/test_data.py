"""Data that cannot be used: not finite, empty, read once, or changing between passes."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import whence
from tests.errors.watch import Busy, batches, data, mlp, refuse, refused
from whence.errors import BadData, Notice

TWICE = ("ekfac", "lowrank")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_inputs_not_finite(bad: float) -> None:
    x, y = data()
    x[17, 1] = bad
    refuse(Busy(), batches(x, y), BadData, "inputs", "batch 2", "1 NaN or infinite value", "nan or infinite", "clean")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_targets_not_finite(bad: float) -> None:
    x, _ = data()
    y = torch.randn(24, 3)
    y[9, 0] = bad
    refuse(Busy(), batches(x, y), BadData, "targets", "batch 1", "nan or infinite", likelihood="regression")


@pytest.mark.parametrize("structure", ["full", "kron", "ekfac", "diag", "lowrank"])
def test_outputs_not_finite(structure: str) -> None:
    class Log(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) + x[:, :1].log()

    x, y = data()
    x = x.abs() + 0.1
    x[20, 0] = 0.0
    refuse(
        Log(), batches(x, y), BadData, "outputs", "batch 2", "3 NaN or infinite value", "network", structure=structure
    )


def test_weights_not_finite() -> None:
    model = Busy()
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    with pytest.raises(BadData, match=r"head\.weight.*NaN"):
        whence.laplace(model, data(), likelihood="classification")


@pytest.mark.parametrize("method", ["linearised", "sampled"])
def test_prediction_inputs_not_finite(method: str) -> None:
    model = Busy()
    posterior = whence.laplace(model, data(), likelihood="classification")
    x, y = data()
    x[12] = math.nan
    with refused(BadData, "inputs", "batch 1", "nan", model=model):
        posterior.predict(batches(x, y), method=method)


@pytest.mark.parametrize("method", ["linearised", "sampled"])
def test_prediction_outputs_not_finite(method: str) -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x) + x[:, :1].sqrt()

    model = Root()
    x, y = data()
    posterior = whence.laplace(model, (x.abs(), y), likelihood="classification")
    x[:, 0] = 1.0
    x[13, 0] = -1.0
    with refused(BadData, "outputs", "nan", model=model):
        posterior.predict(x, method=method)


def test_validation_targets_not_finite() -> None:
    model = mlp(outputs=1)
    x = torch.randn(24, 4)
    y = torch.randn(24, 1)
    posterior = whence.laplace(model, (x, y), likelihood="regression")
    y[10] = math.nan
    with refused(BadData, "validation", "targets", "batch 1", model=model):
        posterior.tune(batches(x, y))


def empties() -> list:
    x, y = data()
    nothing = TensorDataset(x[:0], y[:0])
    return [[], (x[:0], y[:0]), DataLoader(nothing), iter([]), [(x[:0], y[:0])]]


@pytest.mark.parametrize("which", range(5))
def test_empty(which: int) -> None:
    refuse(Busy(), empties()[which], BadData, "data", "empty", "no example")


@pytest.mark.parametrize("which", range(3))
def test_empty_validation_and_prediction(which: int) -> None:
    model = Busy()
    posterior = whence.laplace(model, data(), likelihood="classification")
    with refused(BadData, "validation", "empty", model=model):
        posterior.tune(empties()[which])
    with refused(BadData, "empty", model=model):
        posterior.predict([] if which else torch.zeros(0, 4))


@pytest.mark.parametrize("structure", TWICE)
def test_generator_where_two_passes_are_needed(structure: str) -> None:
    source = (b for b in batches(*data()))
    remedy = ("DataLoader", "list", "tensors")
    refuse(Busy(), source, BadData, "one-shot", structure, "passes", *remedy, structure=structure)
    assert len(list(source)) == 3  # it was not read in vain


def test_generator_and_several_passes() -> None:
    source = (b for b in batches(*data()))
    refuse(Busy(), source, BadData, "one-shot", "passes=2", "DataLoader", passes=2)


def test_generator_for_tuning() -> None:
    model = Busy()
    posterior = whence.laplace(model, data(), likelihood="classification")
    with refused(BadData, "validation", "one-shot", "tuning", "DataLoader", model=model):
        posterior.tune(b for b in batches(*data()))


def test_generator_as_validation_is_refused_before_the_fit() -> None:
    class Counted:
        read = 0

        def __iter__(self):
            self.read += 1
            yield from batches(*data())

    given = Counted()
    source = (b for b in batches(*data()))
    refuse(Busy(), given, BadData, "validation", "one-shot", "DataLoader", validation=source)
    assert given.read == 0


@pytest.mark.parametrize("structure", ["kron", "diag", "block", "full"])
def test_generator_is_enough_for_one_pass(structure: str) -> None:
    x, y = data()
    once = whence.laplace(mlp(), (b for b in batches(x, y)), likelihood="classification", structure=structure)
    assert once.record.data_size == 24


@pytest.mark.parametrize("structure", TWICE)
def test_augmented_data_where_passes_must_agree(structure: str) -> None:
    class Augmented:
        def __iter__(self):
            x, y = data()
            yield from batches(x + torch.randn_like(x), y)

    remedy = ("augmentation", "tensors", "'kron'")
    refuse(Busy(), Augmented(), BadData, "changed between", structure, *remedy, structure=structure)


@pytest.mark.parametrize("structure", TWICE)
def test_data_that_runs_out_before_the_second_pass(structure: str) -> None:
    class Exhausted:
        """Re-iterable by its looks, but empty the second time."""

        def __init__(self) -> None:
            self.left = batches(*data())

        def __iter__(self):
            while self.left:
                yield self.left.pop()

    refuse(Busy(), Exhausted(), BadData, "exhausted", structure=structure)


def test_network_that_mixes_up_the_example_dimension() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x).flatten()

    given = (torch.randn(24, 4), torch.randn(24, 3))
    refuse(Flat(), given, BadData, "8 examples", "[24, 1]", "first dimension", likelihood="regression")


def network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 3).double(), torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3


def test_an_error_of_the_data_is_not_blamed_on_a_layer() -> None:
    model, x, y = network()

    class Breaks:
        def __iter__(self) -> Any:
            yield x, y
            raise RuntimeError("disk gone")

    with pytest.raises(RuntimeError, match=r"^disk gone$"):
        whence.laplace(model, Breaks(), likelihood="classification", structure="lowrank")


X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 3


def fit(model: nn.Module, x: Any = X, y: Tensor = Y, **options: Any) -> whence.Laplace:
    options = {"likelihood": "classification", "progress": False} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, (x, y), **options)


def test_a_network_that_fails_says_on_what() -> None:
    model = nn.Sequential(nn.Linear(5, 3)).double()
    with pytest.raises(BadData, match=r"failed on inputs \(\[12, 4\] float64\) with RuntimeError: mat1 and mat2"):
        fit(model)


@pytest.mark.parametrize("ask", ["predict", "sampled", "where"])
def test_questions_about_inputs_on_which_the_network_fails(ask: str) -> None:
    """Other features than in training: said as at the fit, not by torch's error alone."""
    x = torch.randn(12, 4)
    posterior = whence.laplace(nn.Linear(4, 3), (x, torch.arange(12) % 3), likelihood="classification", progress=False)
    questions = {
        "predict": posterior.predict,
        "sampled": lambda x: posterior.predict(x, method="sampled"),
        "where": posterior.where,
    }
    with pytest.raises(BadData, match=r"failed on inputs \(\[5, 7\] float32\) with RuntimeError: mat1 and mat2"):
        questions[ask](torch.randn(5, 7))
