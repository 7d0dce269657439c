"""Bayes by Backprop against exact answers, and against defects seen elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import whence
from tests.reference import networks_conv, networks_dense, networks_sequence, networks_wiring  # noqa: F401
from tests.reference.cases import CASES
from tests.reference.variational import LinearRegression, gaussian_kl
from whence.functional import arguments
from whence.outputs import output_tensor
from whence.posteriors.variational import ScaleMixture, Variational, VariationalModule, variational
from whence.posteriors.variational.estimators import half_normal

FAMILIES = ["mean_field", "alpha", "matrix_normal", "low_rank"]
QUIET = {"progress": False, "seed": 0}


def small(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def jiggle(module: VariationalModule, seed: int = 0) -> VariationalModule:
    """Variational parameters with nothing special about them."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.blocks.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=gen, dtype=p.dtype))
    return module


# Exact on linear regression


def fit(problem: LinearRegression, copies: int = 16, **options) -> Variational:
    """Data that are there 16 times with 16 times the noise variance say the same, and every copy has its own noise."""
    settings = {"epochs": 400, "lr": 0.1, "initial_std": 0.1, "batch_size": 10_000} | options
    posterior = variational(
        problem.network(), (problem.x.repeat(copies, 1), problem.y.repeat(copies, 1)), prior_precision=problem.prior,
        likelihood=whence.Gaussian(problem.noise * math.sqrt(copies)), **settings, **QUIET,
    )  # fmt: skip
    return replace(posterior, likelihood=whence.Gaussian(problem.noise))


def flat_mean(posterior: Variational) -> torch.Tensor:
    mean = posterior.mean()
    return torch.cat([mean["weight"], mean["bias"].unsqueeze(1)], dim=1)


@pytest.fixture(scope="module")
def problem() -> LinearRegression:
    return LinearRegression.make()


@pytest.fixture(scope="module")
def mean_field(problem) -> Variational:
    return fit(problem)


def test_mean_field_reaches_the_exact_mean_and_one_over_the_precision(problem, mean_field) -> None:
    posterior = mean_field
    exact = torch.linalg.inv(problem.precision()).diagonal().sqrt()
    assert ((flat_mean(posterior) - problem.mean()) / exact).abs().max() < 0.06  # in posterior standard deviations
    found = torch.cat([v.flatten() for v in posterior.variance().values()])
    torch.testing.assert_close(found, 1 / problem.precision().diagonal(), rtol=0.06, atol=0)


@pytest.mark.parametrize("family", ["matrix_normal", "low_rank"])
def test_full_families_reach_the_covariance_and_the_evidence(problem, family: str) -> None:
    shared = family == "low_rank"  # its shared numbers are drawn once for all copies, so it needs more passes
    more = {"num_samples": 4, "lr": 0.05, "epochs": 500} if shared else {}
    posterior = fit(problem, family=family, rank=4, **more)
    limit = 0.12 if shared else 0.06
    exact = problem.covariance()
    deviation = exact.diagonal().sqrt()
    assert ((flat_mean(posterior) - problem.mean()).flatten() / deviation).abs().max() < limit
    scaled = (posterior.covariance() - exact) / (deviation.unsqueeze(1) * deviation)
    assert scaled.abs().max() < limit
    bound = posterior.elbo((problem.x, problem.y), 1000, torch.Generator().manual_seed(0))
    assert abs(bound.value - problem.log_evidence()) < 3 * bound.standard_error + 0.02
    assert bound.standard_error < 0.1


def test_mean_field_bound_lies_below_the_evidence_by_the_correlations(problem, mean_field) -> None:
    """ELBO = log evidence − KL(q ‖ posterior), which is ½ (Σ log Λ_ii − log det Λ) at the optimum."""
    bound = mean_field.elbo((problem.x, problem.y), 1000, torch.Generator().manual_seed(0))
    precision = problem.precision()
    gap = 0.5 * float(precision.diagonal().log().sum() - precision.logdet())
    assert abs(bound.value + gap - problem.log_evidence()) < 3 * bound.standard_error + 0.03
    assert gap > 0.1


def test_matrix_normal_is_exact_for_several_outputs() -> None:
    problem = LinearRegression.make(seed=3, d=2, o=2)
    posterior = fit(problem, family="matrix_normal")
    deviation = problem.covariance().diagonal().sqrt()
    scaled = (posterior.covariance() - problem.covariance()) / (deviation.unsqueeze(1) * deviation)
    assert scaled.abs().max() < 0.07


def test_warm_up_and_blundell_reach_the_same_mean(problem) -> None:
    deviation = torch.linalg.inv(problem.precision()).diagonal().sqrt()
    for schedule in (20, "blundell"):
        posterior = fit(problem, kl_schedule=schedule, epochs=60, batch_size=96)
        assert ((flat_mean(posterior) - problem.mean()) / deviation).abs().max() < 0.25


# Families


@pytest.mark.parametrize("family", FAMILIES)
def test_draws_have_the_mean_and_covariance_they_claim(family: str) -> None:
    module = jiggle(VariationalModule(small(), family=family, initial_std=0.3, rank=3))
    posterior = Variational.of(module, whence.Categorical())
    draws = posterior.sample(40_000, torch.Generator().manual_seed(1))
    flat = torch.cat([v.flatten(1) for v in draws.values()], dim=1)
    mean = torch.cat([v.flatten() for v in posterior.mean().values()])
    covariance = posterior.covariance()
    deviation = covariance.diagonal().sqrt()
    assert ((flat.mean(0) - mean) / deviation).abs().max() < 0.025
    error = (flat.T.cov() - covariance) / (deviation.unsqueeze(1) * deviation)
    assert error.abs().max() < 0.03
    variance = torch.cat([v.flatten() for v in posterior.variance().values()])
    torch.testing.assert_close(variance, covariance.diagonal())


@pytest.mark.parametrize("family", FAMILIES)
def test_log_density_and_kl_are_those_of_the_dense_gaussian(family: str) -> None:
    prior = {"0": 2.0, "2.weight": 0.5, "2.bias": 3.0}
    module = jiggle(VariationalModule(small(), family=family, initial_std=0.3, rank=3, prior_precision=prior))
    posterior = Variational.of(module, whence.Categorical())
    mean = torch.cat([v.flatten() for v in posterior.mean().values()])
    dense = torch.distributions.MultivariateNormal(mean, posterior.covariance())
    draws = posterior.sample(5)
    flat = torch.cat([v.flatten(1) for v in draws.values()], dim=1)
    torch.testing.assert_close(posterior.log_prob(draws), dense.log_prob(flat))
    precision = torch.cat([torch.full((16,), 2.0), torch.full((8,), 0.5), torch.full((2,), 3.0)]).double()
    expected = gaussian_kl(mean, posterior.covariance(), precision)
    assert float(posterior.kl()) == pytest.approx(expected, rel=1e-9)
    assert float(module.kl().detach()) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_kl_by_draws_agrees_with_the_closed_form(family: str) -> None:
    """A mixture of two equal scales is a Gaussian."""
    same = ScaleMixture(0.3, 0.8, 0.8)
    module = jiggle(VariationalModule(small(), family=family, initial_std=0.3, rank=3, prior_precision=1 / 0.64))
    exact = float(module.kl().detach())
    module.prior = same
    with torch.no_grad():
        parts = torch.stack([b.kl_by_draws(same, 4000, None) for b in module.variational_blocks()]).sum(0)
    assert abs(float(parts.mean()) - exact) < 4 * float(parts.std()) / math.sqrt(4000)


def test_scale_mixture_density() -> None:
    prior = ScaleMixture(0.25, 1.0, 0.1)
    grid = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    density = prior.log_prob(grid).exp()
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1, abs=1e-9)
    assert float(torch.trapezoid(density * grid**2, grid)) == pytest.approx(prior.variance, rel=1e-8)


def test_alpha_form() -> None:
    module = VariationalModule(small(), family="alpha", initial_std=0.2)
    for name, variance in Variational.of(module, whence.Categorical()).variance().items():
        torch.testing.assert_close(variance, 0.04 * module.mean()[name].detach().square())


# Conversion


@pytest.mark.parametrize("name", sorted(CASES))
def test_conversion_is_lossless(name: str) -> None:
    """Circular and reflected padding, groups, dilation, transposed convolution, tying, attention, recurrence …"""
    case = CASES[name](0)
    args, kwargs = arguments(case.x)
    plain = output_tensor(case.model(*args, **kwargs)).detach()
    for family, estimator in [
        ("mean_field", "local"), ("mean_field", "flipout"), ("mean_field", "weights"), ("alpha", "local"),
        ("matrix_normal", "local"), ("low_rank", "flipout"),
    ]:  # fmt: skip
        module = VariationalModule(case.model, family=family, estimator=estimator, initial_std=1e-9).train()
        module.check(case.x)
        torch.testing.assert_close(module.outputs(case.x).detach(), plain, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(module.eval().outputs(case.x).detach(), plain)


@pytest.mark.parametrize("estimator", ["local", "flipout", "weights"])
def test_every_weight_is_reached_by_noise(estimator: str) -> None:
    """Every layer kind the issue names gets gradients for both its mean and its spread."""
    for name in (
        "conv1d", "conv2d_padding_circular", "conv3d", "conv_transpose2d", "encoder_layer", "embedding", "lstm",
        "layernorm", "groupnorm", "batchnorm2d", "self_attention", "tied_embedding",
    ):  # fmt: skip
        case = CASES[name](0)
        module = VariationalModule(case.model, estimator=estimator, initial_std=0.05).train()
        module.outputs(case.x).square().sum().backward()
        for block in module.variational_blocks():
            assert bool(block.locs[0].grad.abs().sum() > 0), (name, block.names)
            assert bool(block.scale.grad.abs().sum() > 0), (name, block.names)


def test_table_of_normals() -> None:
    """The noise of large float32 outputs: moments of a standard normal, and another one every time."""
    torch.manual_seed(0)
    e = 2 * half_normal(torch.empty(1_000_003), None).double()
    assert e.shape == (1_000_003,) and abs(e.mean()) < 0.004 and abs(e.var() - 1) < 0.006
    assert abs(e.pow(3).mean()) < 0.02 and abs(e.pow(4).mean() - 3) < 0.03
    assert abs((e[1:] * e[:-1]).mean()) < 0.004 and abs((e[4:] * e[:-4]).mean()) < 0.004
    assert float((e.abs() > 3).double().mean()) == pytest.approx(0.0027, rel=0.1)
    assert not torch.equal(half_normal(torch.empty(5000), None), half_normal(torch.empty(5000), None))
    gen = lambda: torch.Generator().manual_seed(1)  # noqa: E731
    assert torch.equal(half_normal(torch.empty(5000), gen()), half_normal(torch.empty(5000), gen()))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_have_the_exact_moments(dims: int, transposed: bool) -> None:
    """The output is linear in the weights: its variance is Σ J² σ², by the plain layer's Jacobian."""
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    padding = {} if transposed else {"padding_mode": "zeros" if dims == 3 else "circular"}
    layer = kind(4, 4, 3, stride=2, padding=1, groups=2, **padding).double()
    x = torch.randn(2, 4, *([4] * dims), dtype=torch.float64)
    for estimator, copies in (("local", 500), ("flipout", 2)):
        module = jiggle(VariationalModule(layer, estimator=estimator, initial_std=0.3)).train()
        variance = {n: v for b in module.variational_blocks() for n, v in b.variance().items()}
        jacobian = torch.func.jacrev(lambda w: torch.func.functional_call(layer, w, (x,)))(module.mean())
        exact = sum((jacobian[n].square() * v).flatten(4 + dims - 2).sum(-1) for n, v in variance.items()).detach()
        wide = x.repeat(copies, *[1] * (dims + 1))
        with torch.no_grad():
            many = torch.cat([module(wide).unflatten(0, (copies, 2)) for _ in range(1000 // copies)])
            centre = module.eval()(x)
        assert ((many.mean(0) - centre) / exact.sqrt()).abs().max() < 0.2
        ratio = many.var(0) / exact
        assert abs(float(ratio.mean()) - 1) < 0.06 and float(ratio.min()) > 0.6 and float(ratio.max()) < 1.6


def test_padding_row_of_a_table_stays() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=0), nn.Flatten(), nn.Linear(6, 2))
    for family in ("mean_field", "low_rank"):
        module = VariationalModule(model, family=family, initial_std=0.5)
        draws = module.sample(3)["0.weight"]
        assert bool((draws[:, 0] == 0).all()) and bool((draws[:, 1:].std(0) > 0).all())
        assert bool(torch.isfinite(module.kl()))
        free = VariationalModule(nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 2)), family=family,
                                 initial_std=0.5)  # fmt: skip
        assert sum(p.numel() for p in free.mean().values()) == sum(p.numel() for p in module.mean().values()) - 3


# Estimators


def test_three_estimators_have_the_same_expected_gradient() -> None:
    """Of the loss in mean and ρ, on a network of Linear layers."""
    model = small()
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.randint(2, (6,))
    expected: dict[str, torch.Tensor] = {}
    spread: dict[str, torch.Tensor] = {}
    for estimator in ("local", "flipout", "weights"):
        module = jiggle(VariationalModule(model, estimator=estimator, initial_std=0.4)).train()
        params = list(module.blocks.parameters())
        torch.manual_seed(1)
        rows = []
        for _ in range(700):
            grads = torch.autograd.grad(F.cross_entropy(module(x), y, reduction="sum"), params)
            rows.append(torch.cat([g.flatten() for g in grads]))
        stacked = torch.stack(rows)
        expected[estimator], spread[estimator] = stacked.mean(0), stacked.std(0) / math.sqrt(len(rows))
    for other in ("local", "flipout"):
        error = (expected[other] - expected["weights"]).abs() / (spread[other] ** 2 + spread["weights"] ** 2).sqrt()
        assert error.max() < 4.5 and error.square().mean() < 2
    assert spread["local"].mean() < spread["weights"].mean()  # what it is for


def test_matrix_normal_local_has_the_moments_of_weight_draws() -> None:
    layer = nn.Linear(3, 2).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    module = jiggle(VariationalModule(layer, family="matrix_normal", initial_std=0.4)).train()
    with torch.no_grad():
        local = module(x.repeat(20_000, 1)).unflatten(0, (20_000, 4))
        weights = module.sample(20_000)
        outputs = torch.einsum("soi,ni->sno", weights["weight"], x) + weights["bias"].unsqueeze(1)
    for n in range(4):
        torch.testing.assert_close(local[:, n].T.cov(), outputs[:, n].T.cov(), rtol=0.06, atol=0.01)
    assert abs(torch.stack([local[:, 0, 0], local[:, 1, 0]]).corrcoef()[0, 1]) < 0.03  # each row by itself


def test_examples_share_weights_under_draws_and_not_under_local_or_flipout() -> None:
    x = torch.ones(2, 3, dtype=torch.float64)
    for estimator, same in (("weights", True), ("local", False), ("flipout", False)):
        out = VariationalModule(small(), estimator=estimator, initial_std=0.3).train()(x).detach()
        assert torch.equal(out[0], out[1]) is same


# Defects seen elsewhere


def test_kl_is_summed_not_averaged_and_not_divided_by_the_layers() -> None:
    def kl(*layers: nn.Module) -> float:
        return float(VariationalModule(nn.Sequential(*layers), initial_std=0.1, prior_precision=2.0).kl().detach())

    def zero(layer: nn.Linear) -> nn.Linear:
        nn.init.zeros_(layer.weight)
        return layer

    each = 0.5 * (2 * 0.01 - 1 - math.log(2 * 0.01))
    layer = [zero(nn.Linear(3, 4, bias=False)), zero(nn.Linear(4, 5, bias=False))]
    assert kl(layer[0]) == pytest.approx(12 * each, rel=1e-5)
    assert kl(*layer) == pytest.approx(32 * each, rel=1e-5)


def test_kl_has_the_right_direction() -> None:
    """KL(q ‖ p) of a narrow q is finite and small where KL(p ‖ q) is huge."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    found = float(VariationalModule(layer, initial_std=1e-3, prior_precision=1.0).kl().detach())
    assert found == pytest.approx(-0.5 - math.log(1e-3), rel=1e-4)  # KL(p ‖ q) would be about 5e5


def test_flipout_adds_the_mean_once() -> None:
    layer = nn.Linear(3, 2)
    x = torch.randn(5, 3)
    module = VariationalModule(layer, estimator="flipout", initial_std=1e-8).train()
    torch.testing.assert_close(module(x), layer(x))


def test_every_draw_is_another_draw() -> None:
    posterior = Variational.of(VariationalModule(small(), initial_std=0.3), whence.Categorical())
    x = torch.randn(4, 3, dtype=torch.float64)
    outputs = posterior.draw(6).outputs(x)
    assert all(not torch.equal(outputs[i], outputs[j]) for i in range(6) for j in range(i))
    assert float(posterior.predict(x, num_samples=20).epistemic.min()) > 0
    module = VariationalModule(small(), initial_std=0.3, estimator="weights").train()
    assert not torch.equal(module(x), module(x))


def test_trained_weights_are_where_it_starts() -> None:
    model = small()
    module = VariationalModule(model)
    for name, p in model.named_parameters():
        assert torch.equal(module.mean()[name], p)
    gen = torch.Generator().manual_seed(1)
    anew = VariationalModule(model, start="scratch", generator=gen).mean()
    assert not torch.equal(anew["0.weight"], model[0].weight)
    again = VariationalModule(model, start="scratch", generator=torch.Generator().manual_seed(1)).mean()
    assert torch.equal(anew["0.weight"], again["0.weight"])
