"""Priors that are not positive, of the wrong shape, or of a layer that is not there."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import whence
from tests.errors.watch import Busy, data, mlp, refuse, refused, untouched
from whence.errors import BadOption, Notice

NOT_POSITIVE = [0, 0.0, -1.0, math.nan, math.inf]
LAYERS = {"first": 1.0, "norm": 1.0, "head": 1.0}


class Counted:
    """Counts how often the data are read."""

    read = 0

    def __iter__(self):
        self.read += 1
        yield data()


@pytest.mark.parametrize("precision", NOT_POSITIVE)
def test_number(precision: float) -> None:
    refuse(Busy(), data(), BadOption, "prior precision", "positive", f"{precision:g}", prior_precision=precision)


@pytest.mark.parametrize("precision", NOT_POSITIVE)
def test_with_prior(precision: float) -> None:
    model = Busy()
    posterior = whence.laplace(model, data(), likelihood="classification")
    with refused(BadOption, "prior precision", "positive", f"{precision:g}", model=model):
        posterior.with_prior(precision)


def test_number_is_refused_before_the_data_are_read() -> None:
    given = Counted()
    refuse(Busy(), given, BadOption, "prior precision", "positive", prior_precision=-1.0)
    assert given.read == 0


@pytest.mark.parametrize("precision", ["strong", None, torch.ones(63), [1.0, 2.0]])
def test_no_number(precision) -> None:
    refuse(Busy(), data(), BadOption, "prior precision", "positive number", "mapping", prior_precision=precision)


def test_prior_object() -> None:
    refuse(Busy(), data(), BadOption, "positive", "-2", "weight", prior_precision=whence.Prior(weight=-2.0))
    refuse(Busy(), data(), BadOption, "positive", "0", "bias", prior_precision=whence.Prior(weight=1.0, bias=0.0))


def test_unknown_layer() -> None:
    parts = ("'tail'", "not a layer", "first", "norm", "head")
    refuse(Busy(), data(), BadOption, *parts, prior_precision={**LAYERS, "tail": 1.0})


def test_layer_that_is_missing() -> None:
    parts = ("has no entry", "head", "'*'")
    refuse(Busy(), data(), BadOption, *parts, prior_precision={"first": 1.0, "norm": 1.0})


@pytest.mark.parametrize("precision", NOT_POSITIVE)
def test_number_of_a_layer(precision: float) -> None:
    given = {**LAYERS, "head": precision}
    refuse(Busy(), data(), BadOption, "head", "positive", f"{precision:g}", prior_precision=given)


def test_tensor_of_another_shape() -> None:
    given = {**LAYERS, "head.weight": torch.ones(6, 3), "head.bias": torch.ones(3)}
    del given["head"]
    parts = ("'head.weight'", "[6, 3]", "[3, 6]")
    refuse(Busy(), data(), BadOption, *parts, prior_precision=given, structure="diag")


@pytest.mark.parametrize("bad", NOT_POSITIVE)
def test_entry_of_a_tensor(bad: float) -> None:
    weights = torch.ones(3, 6)
    weights[1, 2] = bad
    given = {"*": 1.0, "head.weight": weights}
    refuse(Busy(), data(), BadOption, "'head.weight'", "positive", prior_precision=given, structure="diag")


@pytest.mark.parametrize("structure", ["kron", "ekfac"])
def test_precision_of_every_weight_needs_no_factors(structure: str) -> None:
    given = {"*": 1.0, "head.weight": torch.linspace(1, 2, 18).reshape(3, 6)}
    parts = ("head", "'diag'", "'block'", "'full'")
    refuse(Busy(), data(), BadOption, *parts, prior_precision=given, structure=structure)


@pytest.mark.parametrize("structure", ["ekfac", "lowrank"])
def test_another_shape_needs_another_fit(structure: str) -> None:
    """Their eigenvectors are relative to the prior of the fit: another number is fine, another shape is not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        posterior = whence.laplace(Busy(), data(), likelihood="classification", structure=structure, progress=False)
    assert posterior.with_prior(whence.Relative(3.0)).prior_precision == whence.Relative(3.0)
    with pytest.raises(BadOption, match=f"structure='{structure}' was computed relative to the prior of the fit"):
        posterior.with_prior(2.0)


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full", "lowrank"])
def test_prior_that_fits(structure: str) -> None:
    model = Busy()
    with untouched(model):
        whence.laplace(
            model,
            data(),
            likelihood="classification",
            structure=structure,
            prior_precision=whence.Prior(weight=1.0, bias=0.1),
        )


def test_prior_mean() -> None:
    model = mlp()
    means = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    shorter = {n: m for n, m in means.items() if n != "2.weight"}
    refuse(model, data(), BadOption, "prior_mean", "'2.weight'", prior_mean=shorter)
    wrong = {**means, "2.weight": torch.zeros(5, 3)}
    refuse(model, data(), BadOption, "prior_mean", "'2.weight'", "[5, 3]", "[3, 5]", prior_mean=wrong)


def test_prior_mean_that_is_none() -> None:
    model = mlp()
    means = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    refuse(model, data(), BadOption, "prior_mean", "'zero'", prior_mean="zero")
    refuse(model, data(), BadOption, "prior_mean", "finite", "nan", prior_mean=math.nan)
    unknown = {**means, "tail.weight": torch.zeros(3)}
    refuse(model, data(), BadOption, "prior_mean", "'tail.weight'", prior_mean=unknown)
    with_nan = {**means, "2.weight": torch.full((3, 5), math.nan)}
    refuse(model, data(), BadOption, "prior_mean", "'2.weight'", "finite", prior_mean=with_nan)
