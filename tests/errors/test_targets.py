"""Batches and targets that do not fit the network or the likelihood."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.errors.watch import Busy, batches, data, mlp, refuse, refused
from whence.errors import BadData

X = torch.linspace(-1, 1, 96).reshape(24, 4)


@pytest.mark.parametrize("label", [3, 7, -1])
def test_label_out_of_range(label: int) -> None:
    x, y = data()
    y[20] = label
    refuse(Busy(), batches(x, y), BadData, "batch 2", f"label {label}", "3 outputs", "0 to 2")


def test_label_out_of_range_in_validation() -> None:
    model = Busy()
    posterior = whence.laplace(model, data(), likelihood="classification")
    x, y = data()
    y[9] = 5
    with refused(BadData, "batch 1", "label 5", "0 to 2", model=model):
        posterior.tune(batches(x, y))


def test_float_labels() -> None:
    x, y = data()
    remedy = ("class indices", "'binary'", "'regression'")
    refuse(Busy(), (x, y.float()), BadData, "batch 0", "whole numbers", "float32", *remedy)


def test_one_hot_labels() -> None:
    x, y = data()
    hot = nn.functional.one_hot(y, 3)
    refuse(Busy(), (x, hot), BadData, "batch 0", "[24, 3]", "expected [24]")


def test_labels_of_a_sequence_ask_for_class_dim() -> None:
    y = torch.zeros(8, 5, dtype=torch.long)
    refuse(mlp(), (torch.randn(8, 5, 4), y), BadData, "[8, 5]", "[8, 5, 3]", "class_dim=-1")


def test_one_logit_for_classification_asks_for_binary() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp(outputs=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).squeeze(-1)

    refuse(One(), (X, torch.zeros(24, dtype=torch.long)), BadData, "[N, C]", "likelihood='binary'")


def test_single_output_of_classification_asks_for_binary() -> None:
    y = torch.arange(24) % 2
    refuse(mlp(outputs=1), (X, y), BadData, "label 1", "1 output", "likelihood='binary'")


WRONG = {
    "regression, a vector for two outputs": ("regression", 2, torch.zeros(24), "[24]", "[24, 2]"),
    "regression, two targets for one output": ("regression", 1, torch.zeros(24, 2), "[24, 2]", "[24, 1]"),
    "regression, transposed": ("regression", 2, torch.zeros(2, 24).mT.reshape(24, 2, 1, 1), "[24, 2, 1, 1]", "[24, 2]"),
    "binary, a vector for two logits": ("binary", 2, torch.zeros(24), "[24]", "[24, 2]"),
    "counts, a vector for two rates": (whence.Poisson(), 2, torch.zeros(24), "[24]", "[24, 2]"),
    "heteroscedastic": (whence.HeteroscedasticGaussian(), 4, torch.zeros(24, 4), "[24, 4]", "[24, 2]"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_shape(case: str) -> None:
    likelihood, outputs, y, *parts = WRONG[case]
    refuse(mlp(outputs=outputs), (X, y), BadData, "batch 0", "shape", *parts, likelihood=likelihood)


def test_odd_number_of_heteroscedastic_outputs() -> None:
    given = (X, torch.randn(24, 1))
    refuse(mlp(), given, BadData, "even number", "has 3", likelihood=whence.HeteroscedasticGaussian())


@pytest.mark.parametrize("value", [2.0, -0.5])
def test_binary_targets_outside(value: float) -> None:
    y = torch.zeros(24, 1)
    y[10] = value
    given = batches(X, y)
    refuse(mlp(outputs=1), given, BadData, "batch 1", "between 0 and 1", f"{value:g}", likelihood="binary")


@pytest.mark.parametrize("value", [-2.0, 1.5])
def test_counts_that_are_none(value: float) -> None:
    y = torch.ones(24, 1)
    y[10] = value
    given = batches(X, y)
    refuse(mlp(outputs=1), given, BadData, "batch 1", "counts", f"{value:g}", likelihood=whence.Poisson())


def test_noise_of_another_length() -> None:
    noise = whence.Gaussian([0.1, 0.2])
    refuse(mlp(), (X, torch.randn(24, 3)), BadData, "2 noise values", "3 outputs", likelihood=noise)


@pytest.mark.parametrize("likelihood", ["classification", "regression", "binary"])
def test_more_inputs_than_targets(likelihood: str) -> None:
    y = torch.zeros(20, 3) if likelihood != "classification" else torch.zeros(20, dtype=torch.long)
    refuse(mlp(), (X, y), BadData, "24 inputs", "20 targets", likelihood=likelihood)
    refuse(mlp(), [(X, y)], BadData, "batch 0", "24", "20", likelihood=likelihood)


def test_more_inputs_than_targets_of_a_custom_likelihood() -> None:
    own = whence.Custom(lambda f, y: 0.5 * (f - y).square().sum(1))
    refuse(mlp(), [(X, torch.zeros(20, 3))], BadData, "batch 0", "24", "20", likelihood=own)


def test_custom_likelihood_of_the_wrong_shape() -> None:
    own = whence.Custom(lambda f, y: 0.5 * (f - y).square().sum())
    refuse(mlp(), (X, torch.zeros(24, 3)), BadData, "one number for each example", "[24]", likelihood=own)


def test_residuals_that_vanish() -> None:
    model = mlp()
    y = model(X).detach()
    refuse(model, (X, y), BadData, "residuals", "Gaussian(noise=", likelihood="regression")


def test_batches_of_another_form() -> None:
    x, y = data()
    refuse(Busy(), [(x, y, y)], BadData, "batch 0", "tuple of length 3", "(inputs, targets)")
    refuse(Busy(), [{"x": x}], BadData, "batch 0", "'labels'", "(inputs, targets)")
    refuse(Busy(), [x], BadData, "batch 0", "Tensor", "(inputs, targets)")
    refuse(Busy(), x, BadData, "one tensor", "(inputs, targets)")
    refuse(Busy(), 5, BadData, "int", "loader")
    refuse(Busy(), TensorLess(), BadData, "TensorLess", "loader")


class TensorLess:
    """Neither a loader nor a pair."""


def test_targets_that_are_no_tensor() -> None:
    x, y = data()
    refuse(Busy(), [(x, ["a"] * 24)], BadData, "batch 0", "targets")
    refuse(Busy(), [(x, {"class": y})], BadData, "batch 0", "targets")


def test_inputs_that_disagree() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.body(a) + b.sum()

    _, y = data()
    refuse(Two(), ((X, torch.zeros(5, 4)), y), BadData, "disagree", "[5, 24]", "first dimension")


def test_network_that_returns_no_tensor() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.body(x), x

    refuse(Pair(), data(), BadData, "returns a tuple", "one tensor", "'logits'", "wrap")


def network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 3).double(), torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3


@pytest.mark.parametrize("labels", [torch.tensor(1), torch.zeros(0, dtype=torch.long)])
def test_targets_of_the_wrong_size_are_named(labels: Tensor) -> None:
    model, x, y = network()
    with pytest.raises(BadData, match="batch 1"):
        whence.laplace(model, [(x, y), (x, labels)], likelihood="classification")
