"""Every structure on every kind of network, against brute force in float64."""

from __future__ import annotations

import pytest
import torch

from tests.comparison import assert_close, bayesian, fitted, output_hessian
from tests.covering import covering
from tests.reference import curvature as slow
from tests.reference import posterior as slow_posterior
from tests.reference.networks import ALL

DELTA = 0.3
NAMES = sorted(ALL)
STRUCTURES = ["full", "block", "diag", "kron", "ekfac", "lowrank"]


def positions(posterior, params):
    """Indices of each block's weights in the network's order."""
    where = slow.positions(params)
    return [torch.cat([where[p.name].flatten() for p in b.params]) for b in posterior.blocks]


@pytest.mark.parametrize("name", NAMES)
def test_full(name: str) -> None:
    case = ALL[name](0)
    params = bayesian(case)
    h = slow.ggn_full(case.model, params, case.x, output_hessian(case))
    posterior = fitted(case, structure="full", prior_precision=DELTA)
    wanted = slow_posterior.posterior_covariance(h, torch.full((len(h),), DELTA, dtype=h.dtype))
    assert_close(posterior.covariance(), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_block_and_diag(name: str) -> None:
    case = ALL[name](1)
    params = bayesian(case)
    h = slow.ggn_full(case.model, params, case.x, output_hessian(case))
    block = fitted(case, structure="block", prior_precision=DELTA)
    for index, structure in zip(positions(block, params), block.curvature.structures, strict=True):
        assert_close(structure.matrix, h[index][:, index])
    diag = fitted(case, structure="diag", prior_precision=DELTA)
    got = torch.cat([v.flatten() for v in diag.variance().values()])
    assert_close(got, 1 / (h.diagonal() + DELTA))


@pytest.mark.parametrize(
    ("name", "structure"), covering(NAMES, STRUCTURES, always=lambda name, structure: structure == "kron")
)
def test_linearised_covariance(name: str, structure: str) -> None:
    """J Σ Jᵀ from the fast path, against the brute-force Jacobian and the posterior's dense covariance."""
    case = ALL[name](2)
    jac = slow.jacobian(case.model, bayesian(case), case.x)
    posterior = fitted(case, structure=structure, prior_precision=DELTA, rank=12)
    moments = posterior.predict(case.x, joint=True)
    cov = posterior.covariance()
    assert_close(moments.covariance, slow_posterior.joint_covariance(jac, cov))
    from whence.predictive.linearised import moments as linearised

    assert_close(linearised(posterior, case.x).cov, slow_posterior.linearised_covariance(jac, cov))


@pytest.mark.parametrize("name", NAMES)
def test_evidence(name: str) -> None:
    case = ALL[name](3)
    params = bayesian(case)
    h = slow.ggn_full(case.model, params, case.x, output_hessian(case))
    posterior = fitted(case, structure="full", prior_precision=DELTA)
    delta = torch.full((len(h),), DELTA, dtype=h.dtype)
    theta = slow.theta(params).detach()
    wanted = slow_posterior.log_evidence(h, delta, theta, torch.zeros_like(theta), -posterior.record.loss)
    assert_close(posterior.log_evidence(), torch.as_tensor(wanted).detach())
