"""The Gaussian over weights: samples, variances, priors, identities."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.comparison import assert_close, bayesian, fitted, output_hessian
from tests.covering import covering
from tests.reference import curvature as slow
from tests.reference import kronecker as slow_kron
from tests.reference import posterior as slow_posterior
from tests.reference.networks import ALL

STRUCTURES = ["full", "block", "kron", "ekfac", "diag", "lowrank"]
SMALL = ["regression_1", "conv_transpose1d", "embedding", "layernorm", "cross_attention"]


@pytest.mark.parametrize(("name", "structure"), covering(["regression_1", "conv2d_depthwise", "embedding"], STRUCTURES))
def test_samples_have_the_covariance(name: str, structure: str) -> None:
    case = ALL[name](0)
    posterior = fitted(case, structure=structure, prior_precision=0.5, rank=8)
    count = 60_000
    draws = posterior.sample(count, generator=torch.Generator().manual_seed(0))
    flat = torch.cat([d.flatten(1) for d in draws.values()], dim=1)
    cov = posterior.covariance()
    mean = torch.cat([m.flatten() for m in posterior.mean().values()])
    off = flat - mean
    got = off.T @ off / count
    # Each entry has standard deviation √((σᵢᵢ σⱼⱼ + σᵢⱼ²) / S) around the truth.
    diag = cov.diagonal()
    sd = ((diag.unsqueeze(0) * diag.unsqueeze(1) + cov.square()) / count).sqrt()
    assert float(((got - cov).abs() / sd).max()) < 6
    assert float((off.mean(0).abs() / (diag / count).sqrt()).max()) < 6


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", SMALL)
def test_variance_is_the_diagonal_of_the_covariance(name: str, structure: str) -> None:
    posterior = fitted(ALL[name](1), structure=structure, prior_precision=2.0, rank=6)
    got = torch.cat([v.flatten() for v in posterior.variance().values()])
    assert_close(got, posterior.covariance().diagonal())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_generator_that_is_passed_is_used(structure: str) -> None:
    posterior = fitted(ALL["mlp"](2), structure=structure)
    one, same, other = (posterior.sample(2, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1))
    assert all(torch.equal(one[n], same[n]) for n in one)
    assert not any(torch.equal(one[n], other[n]) for n in one)
    torch.manual_seed(5)
    first = posterior.sample(2)
    torch.manual_seed(5)
    assert all(torch.equal(first[n], v) for n, v in posterior.sample(2).items())


def test_factored_damping_is_equation_nine() -> None:
    case = ALL["mlp"](6)
    tau = 0.4
    posterior = fitted(case, damping="factored", prior_precision=tau)
    exact = fitted(case, prior_precision=tau)
    where = slow.positions(bayesian(case))
    cov = posterior.covariance()
    for block, structure in zip(posterior.blocks, posterior.curvature.structures, strict=True):
        precision = slow_kron.factored_damping(structure.mean_input[0], structure.grads[0], len(case.y), tau)
        matrix = torch.arange(block.size).reshape(block.form.native)
        order = block.form.unpack(matrix.double()).long()
        index = torch.cat([where[p.name].flatten() for p in block.params])
        assert_close(cov[index][:, index], torch.linalg.inv(precision)[order][:, order])
    assert float((cov - exact.covariance()).norm()) > 1e-3 * float(cov.norm())
    with pytest.raises(whence.errors.NotDefined, match="evidence is not defined"):
        posterior.log_evidence()
    assert_close(exact.with_damping("factored").covariance(), cov)
    assert_close(posterior.with_damping("exact").covariance(), exact.covariance())
    with pytest.raises(whence.errors.BadOption, match="structure='kron'"):
        fitted(case, structure="diag").with_damping("factored")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_identified_adds_up_to_effective_parameters(structure: str) -> None:
    """MacKay's γ is the sum of 1 − posterior variance / prior variance."""
    posterior = fitted(ALL["conv2d"](7), structure=structure, prior_precision=0.2, rank=10)
    gamma = sum(float(g.effective_parameters()) for g, _ in posterior.gaussians())
    identified = sum(float((1 - v * 0.2).sum()) for v in posterior.variance().values())
    assert gamma == pytest.approx(identified, rel=1e-9)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_layer_shares_add_up(structure: str) -> None:
    case = ALL["conv2d"](8)
    posterior = fitted(case, structure=structure, rank=10)
    table = posterior.where(case.x).layers
    assert sum(row.variance_share for row in table) == pytest.approx(1, abs=1e-9)
    assert sum(row.prior_share for row in table) == pytest.approx(1, abs=1e-9)
    jac = slow.jacobian(case.model, bayesian(case), case.x)
    jac = jac - jac.mean(1, keepdim=True)
    total = slow_posterior.linearised_covariance(jac, posterior.covariance()).diagonal(dim1=1, dim2=2).sum()
    assert_close(posterior.where(case.x).shares.variance.sum(), total)


def test_nothing_changes_the_users_model_or_the_posterior() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(4, 2))
    model.train()
    model[4].bias.requires_grad_(False)
    model[4].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    x, y = torch.randn(12, 3), torch.randint(2, (12,))
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    first = posterior.predict(x).probs
    posterior.tune((x, y))
    posterior.where(x)
    posterior.sample(3)
    posterior.update((x, y))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert not model[4].bias.requires_grad
    assert model[0].weight.requires_grad
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():
        model[0].weight.mul_(3)
    assert torch.equal(posterior.predict(x).probs, first)


def test_lowrank_recovers_the_leading_eigenpairs() -> None:
    case = ALL["mlp"](9)
    h = slow.ggn_full(case.model, bayesian(case), case.x, output_hessian(case))
    values = torch.linalg.eigvalsh(h).flip(0)
    posterior = fitted(case, structure="lowrank", rank=10)  # the curvature has rank 5 × 2 = 10
    assert_close(posterior.curvature.structures[0].values, values[:10], 1e-6)
    assert_close(posterior.covariance(), torch.linalg.inv(h + torch.eye(len(h), dtype=h.dtype)), 1e-6)
