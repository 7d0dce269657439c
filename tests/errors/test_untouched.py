"""The user's model is exactly as it was: after a fit, after what follows it, and after an exception."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.errors.watch import Busy, batches, data, mlp, untouched

STRUCTURES = ("full", "block", "kron", "ekfac", "diag", "lowrank")


class Broken(Exception):
    """What the user's own loader raises."""


class BreaksLater:
    """A loader that fails at its second batch, in the pass that is given."""

    def __init__(self, breaks_in: int) -> None:
        self.breaks_in, self.read = breaks_in, 0

    def __iter__(self):
        x, y = data()
        mine, self.read = self.read, self.read + 1
        for index, batch in enumerate(batches(x, y)):
            if index == 1 and mine == self.breaks_in:
                raise Broken("the disk is gone")
            yield batch


@pytest.mark.parametrize("structure", STRUCTURES)
def test_fit(structure: str) -> None:
    model = Busy()
    with untouched(model):
        whence.laplace(model, data(), likelihood="classification", structure=structure)


@pytest.mark.parametrize("curvature", ["mc", "empirical", "hessian"])
def test_fit_with_other_curvatures(curvature: str) -> None:
    model = Busy()
    with untouched(model):
        whence.laplace(
            model, data(), likelihood="classification", structure="diag", curvature=curvature, prior_precision=1e3
        )


def test_everything_after_the_fit(tmp_path) -> None:
    model = Busy()
    x, y = data()
    with untouched(model):
        posterior = whence.laplace(model, (x, y), likelihood="classification")
        posterior.predict(x)
        posterior.predict(x, method="sampled", num_samples=3)
        posterior.predict(x[:2], joint=True)
        posterior.where(x)
        posterior.as_module(2)(x)
        posterior.update((x, y))
        posterior.tune((x, y), data_scale=False)
        posterior.save(tmp_path / "posterior")
        whence.load(tmp_path / "posterior", model).predict(x)
        posterior.to(torch.float64).predict(x)


def test_later_training_does_not_reach_the_posterior() -> None:
    model = mlp()
    x, y = data()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    before = posterior.predict(x).probs
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)
    assert torch.equal(posterior.predict(x).probs, before)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_exception_in_the_first_pass(structure: str) -> None:
    model = Busy()
    with untouched(model), pytest.raises(Broken, match="the disk is gone"):
        whence.laplace(model, BreaksLater(0), likelihood="classification", structure=structure)


@pytest.mark.parametrize("structure", ["ekfac", "lowrank"])
def test_exception_in_the_second_pass(structure: str) -> None:
    model = Busy()
    with untouched(model), pytest.raises(Broken, match="the disk is gone"):
        whence.laplace(model, BreaksLater(1), likelihood="classification", structure=structure)


def test_exception_while_tuning_and_predicting() -> None:
    model = Busy()
    posterior = whence.laplace(model, data(), likelihood="classification")
    with untouched(model), pytest.raises(Broken):
        posterior.tune(BreaksLater(0))
    with untouched(model), pytest.raises(Broken):
        posterior.predict(BreaksLater(0))


def test_exception_in_the_network() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.limit = mlp(), 8

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) < self.limit and len(x) == 5:
                raise Broken("five is refused")
            return self.body(x)

    model = Fails()
    x, y = data(21)
    with untouched(model), pytest.raises(Broken, match="five is refused"):
        whence.laplace(model, batches(x, y, 8), likelihood="classification")
