"""The sampled Fisher: unbiased, and with randomness that belongs to examples and not to batches."""

from __future__ import annotations

import pytest
import torch

import whence
from tests.comparison import assert_close, bayesian, fitted, likelihood_of, output_hessian
from tests.reference import curvature as slow
from tests.reference.networks import ALL
from whence.posteriors.covariance import network_order
from whence.randomness import example_uniform

CASES = ["mlp", "multilabel_head", "regression_2", "heteroscedastic", "poisson"]


@pytest.mark.parametrize("name", CASES)
def test_many_draws_approach_the_ggn(name: str) -> None:
    case = ALL[name](0)
    wanted = slow.ggn_full(case.model, bayesian(case), case.x, output_hessian(case))
    posterior = fitted(case, structure="full", curvature="mc", draws=20_000, generator=torch.Generator().manual_seed(1))
    order = network_order(posterior)
    got = posterior.curvature.structures[0].matrix[order][:, order]
    assert float((got - wanted).norm() / wanted.norm()) < 0.04


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("structure", ["kron", "diag", "full", "ekfac"])
def test_draws_do_not_depend_on_batching(name: str, structure: str) -> None:
    case = ALL[name](1)
    found = []
    for sizes in ([5], [2, 3], [1, 1, 1, 1, 1], [4, 1]):
        batches = list(zip(case.x.split(sizes), case.y.split(sizes), strict=True))
        posterior = whence.laplace(
            case.model,
            batches,
            likelihood=likelihood_of(case),
            structure=structure,
            curvature="mc",
            draws=2,
            generator=torch.Generator().manual_seed(3),
        )
        found.append(torch.cat([v.flatten() for v in posterior.variance().values()]))
    for other in found[1:]:
        assert_close(other, found[0], 1e-10)


def test_the_generator_is_used() -> None:
    case = ALL["mlp"](2)
    one, same, other = (
        fitted(case, curvature="mc", generator=torch.Generator().manual_seed(seed)).variance() for seed in (1, 1, 2)
    )
    assert all(torch.equal(one[n], same[n]) for n in one)
    assert not all(torch.equal(one[n], other[n]) for n in one)


def test_uniform_numbers_are_uniform_and_independent() -> None:
    u = example_uniform(7, 0, torch.arange(20_000), (20_000, 4))
    assert 0 < float(u.min()) < float(u.max()) < 1
    assert abs(float(u.mean()) - 0.5) < 0.005
    assert abs(float(u.var()) - 1 / 12) < 0.002
    correlation = torch.corrcoef(torch.cat([u, u.roll(1, 0)], dim=1).T) - torch.eye(8)
    assert float(correlation.abs().max()) < 0.03
    again = example_uniform(7, 0, torch.arange(100, 150), (50, 4))
    assert torch.equal(again, u[100:150])
    assert not torch.equal(example_uniform(7, 1, torch.arange(100, 150), (50, 4)), again)


def test_auto_is_exact_for_few_outputs_and_sampled_for_many() -> None:
    few = torch.nn.Linear(3, 5)
    many = torch.nn.Linear(3, 101)
    x = torch.randn(8, 3)
    assert (
        whence.laplace(few, (x, torch.arange(8) % 5), likelihood="classification").curvature.options.curvature == "ggn"
    )
    with pytest.warns(whence.errors.Notice, match="101 outputs"):
        posterior = whence.laplace(many, (x, torch.arange(8)), likelihood="classification")
    assert posterior.curvature.options.curvature == "mc"
