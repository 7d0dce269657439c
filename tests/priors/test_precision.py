"""Priors given by weight, by layer, and for biases."""

from __future__ import annotations

import pytest
import torch

import whence
from tests.comparison import assert_close, bayesian, fitted, output_hessian
from tests.reference import curvature as slow
from tests.reference import posterior as slow_posterior
from tests.reference.networks import ALL


def test_biases_of_recurrent_layers_are_biases() -> None:
    posterior = fitted(ALL["lstm"](0), prior_precision=whence.Prior(weight=1.0, bias=9.0))
    values = posterior.prior.values
    assert {v for n, v in values.items() if "bias" in n} == {9.0}
    assert {v for n, v in values.items() if "bias" not in n} == {1.0}


@pytest.mark.parametrize("structure", ["block", "diag", "full"])
def test_prior_per_weight(structure: str) -> None:
    case = ALL["conv1d"](3)
    params = bayesian(case)
    generator = torch.Generator().manual_seed(0)
    prior = {n: torch.rand(p.shape, generator=generator, dtype=torch.float64) + 0.1 for n, p in params.items()}
    flat = torch.cat([v.flatten() for v in prior.values()])
    h = slow.ggn_full(case.model, params, case.x, output_hessian(case))
    posterior = fitted(case, structure=structure, prior_precision=prior)
    if structure == "diag":
        h = torch.diag(h.diagonal())
    if structure == "block":
        keep = torch.zeros_like(h)
        where = slow.positions(params)
        for block in posterior.blocks:
            index = torch.cat([where[p.name].flatten() for p in block.params])
            keep[index.unsqueeze(1), index] = 1
        h = h * keep
    assert_close(posterior.covariance(), slow_posterior.posterior_covariance(h, flat))
    jac = slow.jacobian(case.model, params, case.x)
    assert_close(
        posterior.predict(case.x, joint=True).covariance, slow_posterior.joint_covariance(jac, posterior.covariance())
    )
    assert_close(posterior.predict(case.x).logit_cov, slow_posterior.linearised_covariance(jac, posterior.covariance()))


@pytest.mark.parametrize("name", ["mlp", "conv2d", "conv_transpose2d", "cross_attention", "called_twice"])
def test_separate_prior_for_biases(name: str) -> None:
    """(G ⊗ A + Δ)⁻¹ with two numbers in Δ, from a new decomposition of A."""
    case = ALL[name](4)
    params = bayesian(case)
    posterior = fitted(case, prior_precision=whence.Prior(weight=0.7, bias=3.0))
    plain = fitted(case, prior_precision=1.0)
    precision = torch.linalg.inv(plain.covariance())
    delta = torch.cat(
        [torch.full((p.numel(),), 3.0 if n.endswith("bias") else 0.7, dtype=torch.float64) for n, p in params.items()]
    )
    wanted = torch.linalg.inv(precision - torch.eye(len(precision), dtype=torch.float64) + torch.diag(delta))
    assert_close(posterior.covariance(), wanted, 1e-7)
    jac = slow.jacobian(case.model, params, case.x)
    assert_close(posterior.predict(case.x).logit_cov, slow_posterior.linearised_covariance(jac, wanted), 1e-7)


def test_prior_per_layer_and_unused_layer_names() -> None:
    case = ALL["mlp"](5)
    posterior = fitted(case, prior_precision={"0": 1.0, "2": 2.0, "4": 3.0})
    deltas = [g.delta for g, _ in posterior.gaussians()]
    assert deltas == [1.0, 2.0, 3.0]
    with pytest.raises(whence.errors.BadOption, match="'7', which is not a layer"):
        fitted(case, prior_precision={"0": 1.0, "2": 2.0, "4": 3.0, "7": 1.0})
