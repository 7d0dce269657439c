"""Matrices that are not positive definite, and memory past a limit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import whence
from tests.errors.watch import Busy, data, mlp, refuse, refused
from whence.errors import NotPositiveDefinite, TooLarge


def far_from_a_minimum() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    model = mlp()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)
    return model, data()


@pytest.mark.parametrize("structure", ["block", "diag"])
def test_hessian_that_is_indefinite_names_the_layer(structure: str) -> None:
    model, given = far_from_a_minimum()
    with refused(NotPositiveDefinite, "0:", "eigenvalue -", "prior", "1e-06", "curvature='ggn'", model=model):
        whence.laplace(
            model,
            given,
            likelihood="classification",
            structure=structure,
            curvature="hessian",
            prior_precision=1e-6,
            layers="0",
        )


def test_hessian_of_all_layers() -> None:
    model, given = far_from_a_minimum()
    parts = ("all layers", "eigenvalue -", "minimum", "curvature='ggn'", "prior precision above")
    options = {"structure": "full", "curvature": "hessian", "prior_precision": 1e-6}
    refuse(model, given, NotPositiveDefinite, *parts, **options)


def test_bound_that_the_message_gives_is_right() -> None:
    model, given = far_from_a_minimum()
    options = {"likelihood": "classification", "structure": "full", "curvature": "hessian"}
    with pytest.raises(NotPositiveDefinite) as raised:
        whence.laplace(model, given, prior_precision=1e-6, **options)
    bound = float(str(raised.value).split("above ")[1].split(",")[0])
    whence.laplace(model, given, prior_precision=1.02 * bound, **options)
    with pytest.raises(NotPositiveDefinite):
        whence.laplace(model, given, prior_precision=0.98 * bound, **options)


def test_prior_that_is_too_small_afterwards() -> None:
    model, given = far_from_a_minimum()
    options = {"likelihood": "classification", "structure": "full", "curvature": "hessian"}
    posterior = whence.laplace(model, given, prior_precision=1e3, **options)
    with refused(NotPositiveDefinite, "eigenvalue -", "curvature='ggn'", model=model):
        posterior.with_prior(1e-6).predict(given[0])


class Never:
    """A loader of one small batch, and an error should more of it be wanted."""

    def __iter__(self):
        yield torch.randn(2, 170), torch.tensor([0, 1])
        raise AssertionError("the memory should have been looked at before the data")


def test_memory_of_full() -> None:
    model = nn.Sequential(nn.Linear(170, 140), nn.Tanh(), nn.Linear(140, 2))  # 24,222 weights
    parts = ("structure='full'", "24,222", "6.6 GiB", "limit 6.0 GiB", "'kron'", "'diag'", "'lowrank'", "layers='last'")
    refuse(model, Never(), TooLarge, *parts, structure="full")


def test_memory_of_a_block() -> None:
    model = nn.Sequential(nn.Linear(170, 140), nn.Tanh(), nn.Linear(140, 2))
    refuse(model, Never(), TooLarge, "structure='block'", "23,940", "GiB", "'kron'", structure="block")


def test_memory_of_a_small_layer_of_a_large_network() -> None:
    model = nn.Sequential(nn.Linear(170, 140), nn.Tanh(), nn.Linear(140, 2))
    given = (torch.randn(4, 170), torch.tensor([0, 1, 0, 1]))
    posterior = whence.laplace(model, given, likelihood="classification", structure="full", layers="last")
    assert posterior.parameters == 282


def test_backward_passes_of_a_hessian() -> None:
    model = nn.Sequential(nn.Linear(170, 140), nn.Tanh(), nn.Linear(140, 2))
    parts = ("curvature='hessian'", "24,222", "limit 20,000", "curvature='ggn'")
    refuse(model, Never(), TooLarge, *parts, structure="diag", curvature="hessian")


def test_dense_covariance() -> None:
    model = nn.Sequential(nn.Linear(170, 140), nn.Tanh(), nn.Linear(140, 2))
    given = (torch.randn(4, 170), torch.tensor([0, 1, 0, 1]))
    posterior = whence.laplace(model, given, likelihood="classification", structure="diag")
    parts = ("24,222 weights", "4.4 GiB", "limit 2.0 GiB", "variance()", "sample()", "predict()")
    with refused(TooLarge, *parts, model=model):
        posterior.covariance()


def test_joint_prediction(set_sizes: Any) -> None:
    model = Busy()
    posterior = whence.laplace(model, data(), likelihood="classification")
    set_sizes(joint=2**10)
    with refused(TooLarge, "joint", "MiB", "limit", "fewer", model=model):
        posterior.predict(data()[0], joint=True)


def test_joint_prediction_is_refused_before_it_is_computed() -> None:
    model = nn.Linear(3, 10)
    given = (torch.randn(4, 3), torch.arange(4))
    posterior = whence.laplace(model, given, likelihood="classification", structure="diag", curvature="mc")
    parts = ("joint", "GiB", "limit 4.0 GiB", "fewer")
    with refused(TooLarge, *parts, model=model):
        posterior.predict(torch.zeros(3000, 3), joint=True)
