"""The sampled Fisher: unbiased, and with randomness that belongs to examples and not to batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, bayesian, fitted, likelihood_of, output_hessian
from tests.reference import curvature as slow
from tests.reference.networks import ALL
from whence.curvature.columns import columns_for
from whence.curvature.options import CurvatureKind, LabelDraws
from whence.engine.randomness import example_uniform
from whence.likelihoods import Categorical
from whence.posteriors.laplace.covariance import network_order

CASES = ["mlp", "multilabel_head", "regression_2", "heteroscedastic", "poisson"]


@pytest.mark.parametrize("name", CASES)
def test_many_draws_approach_the_ggn(name: str) -> None:
    """Of 20,000 draws for each example: ten for each of 2,000 copies of it, which draw on their own."""
    case = ALL[name](0)
    wanted = slow.ggn_full(case.model, bayesian(case), case.x, output_hessian(case))
    copies = replace(case, x=torch.cat([case.x] * 2000), y=torch.cat([case.y] * 2000))
    posterior = fitted(copies, structure="full", curvature="mc", draws=10, generator=torch.Generator().manual_seed(1))
    order = network_order(posterior)
    got = posterior.curvature.structures[0].matrix[order][:, order] / 2000
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


def test_gradients_of_labels_in_place() -> None:
    likelihood = Categorical(class_dim=-1)
    outputs = torch.randn(3, 4, 5, dtype=torch.float64)
    targets = torch.randint(5, (3, 4))
    targets[1, 2] = likelihood.ignore_index
    leaf = outputs.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(likelihood.nll(leaf, targets).sum(), leaf)
    before = outputs.clone()
    torch.testing.assert_close(likelihood.gradient(outputs, targets), wanted)
    assert torch.equal(outputs, before)
    assert likelihood.gradient(leaf, targets).requires_grad
    columns = columns_for(CurvatureKind.MC, likelihood, outputs, targets, LabelDraws(7, 1), torch.arange(3)).chunk(0, 1)
    assert not columns[0, 1, 2].any() and torch.allclose(columns.sum(-1), torch.zeros(()).double())
    twice = columns_for(CurvatureKind.MC, likelihood, outputs, targets, LabelDraws(7, 2), torch.arange(3)).chunk(0, 2)
    torch.testing.assert_close(twice[0] * 2**0.5, columns[0])


def test_your_own_sampler_draws_anew_for_every_example() -> None:
    def nll(f: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (f - y).square().sum(1)

    def sample(f: Tensor, generator: torch.Generator) -> Tensor:
        return f + torch.randn(f.shape, generator=generator, dtype=f.dtype)

    model = nn.Linear(2, 1).double()
    x, y = torch.randn(400, 2, dtype=torch.float64), torch.randn(400, 1, dtype=torch.float64)
    exact = whence.laplace(model, (x, y), likelihood=whence.Custom(nll), structure="full")
    for size in (4, 400):
        drawn = whence.laplace(
            model,
            list(zip(x.split(size), y.split(size), strict=True)),
            likelihood=whence.Custom(nll, sample),
            structure="full",
        )
        assert_close(drawn.curvature.structures[0].matrix, exact.curvature.structures[0].matrix, 0.1)
