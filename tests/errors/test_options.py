"""Options that are unknown, out of their bounds, or do not go together."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import whence
from tests.errors.watch import Busy, data, mlp, refuse, refused
from whence.errors import BadOption

NEAREST = {
    "structure": ("ekfc", "ekfac"),
    "curvature": ("hesian", "hessian"),
    "likelihood": ("clasification", "classification"),
    "sharing": ("reduced", "reduce"),
    "damping": ("factorised", "factored"),
}
TOGETHER = {
    "full": ("ggn", "mc", "empirical", "hessian"),
    "block": ("ggn", "mc", "empirical", "hessian"),
    "diag": ("ggn", "mc", "empirical", "hessian"),
    "kron": ("ggn", "mc", "empirical", "kfra"),
    "ekfac": ("ggn", "mc", "empirical"),
    "lowrank": ("ggn", "empirical"),
}
CURVATURES = ("ggn", "mc", "empirical", "kfra", "hessian")
APART = [(s, c) for s, fits in TOGETHER.items() for c in CURVATURES if c not in fits]


@pytest.fixture(scope="module")
def fitted() -> whence.Laplace:
    return whence.laplace(mlp(), data(), likelihood="classification")


@pytest.mark.parametrize("option", sorted(NEAREST))
def test_unknown_option_names_the_nearest(option: str) -> None:
    given, nearest = NEAREST[option]
    refuse(Busy(), data(), BadOption, option, repr(given), f"did you mean {nearest!r}", "known", **{option: given})


@pytest.mark.parametrize("option", sorted(NEAREST))
@pytest.mark.parametrize("given", [None, 3, ["kron"]])
def test_option_of_another_type(option: str, given) -> None:
    refuse(Busy(), data(), BadOption, option, **{option: given})


def test_unknown_option_of_a_prediction(fitted: whence.Laplace) -> None:
    x, y = data()
    with refused(BadOption, "method", "'sample'", "did you mean 'sampled'"):
        fitted.predict(x, method="sample")
    with refused(BadOption, "method", "'linearized'", "did you mean 'linearised'"):
        fitted.predict(x, method="linearized")
    with refused(BadOption, "link", "'probbit'", "did you mean 'probit'"):
        fitted.predict(x, link="probbit")
    with refused(BadOption, "method", "'linear'", "did you mean 'linearised'"):
        fitted.tune((x, y), method="linear")


@pytest.mark.parametrize(("structure", "curvature"), APART)
def test_structure_and_curvature_apart(structure: str, curvature: str) -> None:
    parts = (f"structure={structure!r}", f"curvature={curvature!r}", *map(repr, TOGETHER[structure]))
    fits = [s for s, c in TOGETHER.items() if curvature in c]
    refuse(Busy(), data(), BadOption, *parts, *map(repr, fits), structure=structure, curvature=curvature)


@pytest.mark.parametrize("structure", ["full", "block", "diag", "lowrank"])
def test_sharing_without_factors(structure: str) -> None:
    parts = ("sharing='reduce'", "'kron'", "'ekfac'", repr(structure))
    refuse(Busy(), data(), BadOption, *parts, sharing="reduce", structure=structure)


@pytest.mark.parametrize("structure", ["full", "block", "diag", "lowrank", "ekfac"])
def test_factored_damping_without_factors(structure: str) -> None:
    parts = ("damping='factored'", "structure='kron'", repr(structure))
    refuse(Busy(), data(), BadOption, *parts, damping="factored", structure=structure)


@pytest.mark.parametrize("option", ["draws", "rank", "passes", "data_size"])
@pytest.mark.parametrize("value", [0, -2])
def test_counts(option: str, value: int) -> None:
    refuse(Busy(), data(), BadOption, f"{option}={value}", "at least 1", **{option: value})


@pytest.mark.parametrize("option", ["draws", "rank", "passes"])
@pytest.mark.parametrize("value", [1.5, "3"])
def test_counts_that_are_no_counts(option: str, value) -> None:
    refuse(Busy(), data(), BadOption, option, str(value), **{option: value})


def test_one_draw_of_the_sampled_fisher_needs_a_sampler() -> None:
    own = whence.Custom(lambda f, y: 0.5 * (f - y).square().sum(1))
    given = (torch.randn(8, 4), torch.randn(8, 3))
    refuse(mlp(), given, BadOption, "sample", "Custom(nll, sample=", likelihood=own, curvature="mc")


def test_indefinite_likelihood() -> None:
    own = whence.Custom(lambda f, y: (f - y).square().sum(1).log1p())
    given = (torch.randn(8, 4), 10 + torch.randn(8, 3))
    refuse(mlp(), given, BadOption, "indefinite", "eigenvalue -", "sample", likelihood=own)


@pytest.mark.parametrize("noise", [0.0, -1.0, float("nan"), float("inf"), [0.1, -0.2]])
def test_noise(noise) -> None:
    with refused(BadOption, "noise", "positive", str(noise)):
        whence.Gaussian(noise)


def test_class_dim() -> None:
    with refused(BadOption, "class_dim=2", "1", "-1"):
        whence.Categorical(class_dim=2)


def test_numbers_of_samples(fitted: whence.Laplace) -> None:
    x, _ = data()
    with refused(BadOption, "num_samples=0", "positive"):
        fitted.predict(x, num_samples=0)
    with refused(BadOption, "num_samples=-1", "positive"):
        fitted.sample(-1)
    with refused(BadOption, "num_samples=0", "positive"):
        fitted.as_module(0)


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_level_of_an_interval(fitted: whence.Laplace, level: float) -> None:
    with refused(BadOption, f"level={level}", "between 0 and 1", "0.95"):
        fitted.predict(data()[0]).interval(level)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_data_scale(fitted: whence.Laplace, scale: float) -> None:
    with refused(BadOption, "data scale", "positive", str(scale)):
        fitted.with_data_scale(scale)


@pytest.mark.parametrize(
    ("options", "home"),
    [
        ({"structure": "diag", "rank": 5}, "lowrank"),
        ({"structure": "diag", "max_factor": 5}, "kron"),
        ({"structure": "kron", "curvature": "ggn", "draws": 3}, "mc"),
        ({"structure": "kron", "draws": 3}, "mc"),
    ],
    ids=str,
)
def test_an_option_without_a_part_is_told_of(options: dict[str, Any], home: str) -> None:
    name, value = list(options.items())[-1]
    with pytest.warns(whence.errors.Notice, match=f"{name}={value} applies only to .*'{home}'"):
        whence.laplace(mlp(), data(), likelihood="classification", **options)


@pytest.mark.parametrize(
    "options",
    [{"structure": "lowrank", "rank": 5}, {"max_factor": 2000}, {"curvature": "mc", "draws": 3}],
    ids=str,
)
def test_an_option_that_applies_gives_no_notice(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whence.laplace(mlp(), data(), likelihood="classification", **options)


def test_draws_are_told_of_once() -> None:
    with pytest.warns(whence.errors.Notice, match="draws=3 applies only"):
        posterior = whence.laplace(mlp(), data(), likelihood="classification", draws=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior.update(data())


def test_draws_of_a_likelihood_are_its_own() -> None:
    likelihood = whence.Custom(lambda f, y: (f - y).square().sum(-1), sample=lambda f, g: f, draws=4)
    x, _ = data()
    with pytest.warns(whence.errors.Notice, match="draws=3 applies only .*4 of its own"):
        whence.laplace(mlp(), (x, torch.randn(len(x), 3)), likelihood=likelihood, curvature="ggn", draws=3)
