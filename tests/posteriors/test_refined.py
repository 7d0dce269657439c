"""The optimum of the linearised model, beside plain torch in float64, and the posterior and evidence there."""

from __future__ import annotations

import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from tests.posteriors.test_function_space import LIKELIHOODS, moments, network, targets
from whence.errors import BadOption, NotDefined, Notice


def fitted(name: str = "classification", kind: str = "mlp", **options: Any) -> tuple[Any, tuple[Tensor, Tensor]]:
    model, x = network(kind, 4)
    data = x, targets(name, len(x), 4)
    given: dict[str, Any] = {"structure": "full", "curvature": "ggn", "prior_precision": 0.7, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, data, likelihood=LIKELIHOODS[name], **given | options), data


def dense(posterior: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f*(x) [N, C], J [N, C, P] and θ* [P], in the order of the parameters."""
    names = posterior.names()
    params = {n: posterior.network.params[n].detach() for n in names}
    outputs = posterior.network.functional(params, x).detach()
    found = torch.func.jacrev(lambda p: posterior.network.functional(p, x))(params)
    rows = torch.cat([found[n].reshape(*outputs.shape, -1) for n in names], -1).detach()
    return outputs, rows, torch.cat([params[n].flatten() for n in names])


def flat(posterior: Any) -> Tensor:
    return torch.cat([posterior.network.shift[n].flatten() for n in posterior.names()])


def precision_of(posterior: Any) -> Tensor:
    variances = posterior.prior_variance()
    return 1 / torch.cat([variances[n].flatten() for n in posterior.names()])


def loss_at(posterior: Any, data: Any, delta: Tensor, scale: float = 1.0) -> Tensor:
    """The loss of the linear model, by a dense Jacobian."""
    outputs, rows, theta = dense(posterior, data[0])
    linear = outputs + rows @ delta
    likelihood = posterior.likelihood
    nll = likelihood.nll(linear, likelihood.check(linear, data[1])).sum()
    return scale * nll + 0.5 * (precision_of(posterior) * (theta + delta).square()).sum()


@pytest.mark.parametrize("prior", [0.7, whence.Relative(1.0)], ids=["isotropic", "relative"])
@pytest.mark.parametrize("kind", ["mlp", "odd"])
@pytest.mark.parametrize("name", [n for n in LIKELIHOODS if n != "heteroscedastic"])
def test_it_is_the_optimum_of_the_linear_model(name: str, kind: str, prior: Any) -> None:
    """No gradient is left, and no other weights of the linear model have a lower loss."""
    posterior, data = fitted(name, kind, structure="kron", prior_precision=prior)
    posterior = posterior.with_data_scale(1.5)
    found = posterior.refined(data, tolerance=1e-10, progress=False)
    delta = flat(found).requires_grad_()
    value = loss_at(posterior, data, delta, 1.5)
    (gradient,) = torch.autograd.grad(value, delta)
    scale = float(precision_of(posterior).sqrt().mean())
    assert float(gradient.abs().max()) < 1e-4 * scale
    generator = torch.Generator().manual_seed(0)
    for size in (1e-3, 0.1):
        noise = size * torch.randn(len(delta), generator=generator, dtype=torch.float64)
        assert float(loss_at(posterior, data, delta.detach() + noise, 1.5)) > float(value) - 1e-12
    assert float(value) < float(loss_at(posterior, data, torch.zeros_like(delta), 1.5)) - 1e-3, "not at a mode before"


def test_a_linear_regression_is_solved_exactly() -> None:
    """Mean, covariance and marginal likelihood of Bayesian linear regression in the features J."""
    posterior, (x, y) = fitted("gaussian", "odd")
    found = posterior.refined((x, y), tolerance=1e-12, progress=False)
    outputs, rows, theta = dense(posterior, x)
    features, noise, delta = rows.flatten(0, 1), 0.4**2, precision_of(posterior)
    residual = (y - outputs).flatten() + features @ theta  # the linear model's targets for θ ~ N(0, Δ⁻¹)
    covariance = torch.linalg.inv(features.mT @ features / noise + torch.diag(delta))
    wanted = covariance @ (features.mT @ residual) / noise
    assert_close(theta + flat(found), wanted, 1e-6)
    assert_close(torch.cat([found.mean()[n].flatten() for n in found.names()]), wanted, 1e-6)
    assert_close(found.covariance(), covariance, 1e-8)
    new = torch.randn(5, *x.shape[1:], dtype=torch.float64)
    far, jac, _ = dense(posterior, new)
    mean, cov = moments(found.predict(new))
    assert_close(mean, far + jac @ (wanted - theta), 1e-6)
    assert_close(
        cov,
        (jac @ covariance @ jac.mT).diagonal(dim1=-2, dim2=-1) + noise if cov.dim() == 2 else jac @ covariance @ jac.mT,
        1e-6,
    )
    gram = features @ torch.diag(1 / delta) @ features.mT + noise * torch.eye(len(features), dtype=torch.float64)
    exact = torch.distributions.MultivariateNormal(torch.zeros(len(gram), dtype=torch.float64), gram)
    assert float(found.log_evidence()) == pytest.approx(float(exact.log_prob(residual)), rel=1e-7)
    assert float(posterior.log_evidence()) < float(found.log_evidence()) - 1, "at θ* it is only a bound here"


@pytest.mark.parametrize("prior", [0.7, whence.Relative(1.0)], ids=["isotropic", "relative"])
def test_other_data_leave_the_prior_as_it_is(prior: Any) -> None:
    """Optimum, covariance and evidence are of one model, also for augmented inputs and for a part of the data."""
    posterior, (x, y) = fitted("gaussian", prior_precision=prior)
    noisy = x * torch.logspace(-1, 1, len(x), dtype=torch.float64).unsqueeze(1)
    for inputs, values in ((noisy, y), (noisy[:5], y[:5])):
        found = posterior.refined((inputs, values), tolerance=1e-12, progress=False)
        assert_close(precision_of(found), precision_of(posterior), 1e-12)
        stronger = [precision_of(one.with_prior(whence.Relative(3.0))) for one in (found, posterior)]
        assert_close(*stronger, 1e-12)
        outputs, rows, theta = dense(posterior, inputs)
        features, noise, weight = rows.flatten(0, 1), 0.4**2, len(x) / len(inputs)
        delta = precision_of(posterior)
        covariance = torch.linalg.inv(weight * features.mT @ features / noise + torch.diag(delta))
        residual = (values - outputs).flatten() + features @ theta
        assert_close(found.covariance(), covariance, 1e-8)
        assert_close(theta + flat(found), weight * covariance @ (features.mT @ residual) / noise, 1e-6)


@pytest.mark.parametrize("structure", ["full", "kron", "diag", "block"])
def test_the_curvature_is_taken_at_the_linear_models_outputs(structure: str) -> None:
    posterior, data = fitted("classification", structure=structure)
    found = posterior.refined(data, tolerance=1e-8, progress=False)
    outputs, rows, _ = dense(posterior, data[0])
    linear = outputs + rows @ flat(found)
    assert_close(found.predict(data[0]).logit_mean, linear, 1e-9)
    losses = nn.functional.cross_entropy(linear, data[1], reduction="sum")
    assert found.record.loss == pytest.approx(float(losses), rel=1e-9)
    assert found.record.correct == int((linear.argmax(1) == data[1]).sum())
    if structure == "full":
        p = linear.softmax(1)
        curvature = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
        precision = torch.einsum("ncp,ncd,ndq->pq", rows, curvature, rows) + 0.7 * torch.eye(rows.shape[-1]).double()
        assert_close(found.covariance(), torch.linalg.inv(precision), 1e-8)
    assert found.tuning is None and found.structures.keys() == posterior.structures.keys()


def test_refining_again_changes_nothing_but_after_a_new_prior() -> None:
    posterior, data = fitted("classification", structure="kron")
    once = posterior.refined(data, tolerance=1e-9, progress=False)
    again = once.refined(data, tolerance=1e-9, progress=False)
    assert_close(flat(again), flat(once), 1e-5)
    assert float(again.log_evidence()) == pytest.approx(float(once.log_evidence()), rel=1e-6)
    stronger = once.with_prior(5.0).refined(data, tolerance=1e-9, progress=False)
    direct = posterior.with_prior(5.0).refined(data, tolerance=1e-9, progress=False)
    assert_close(flat(stronger), flat(direct), 1e-4)
    assert float((flat(stronger) - flat(once)).norm()) > 0.1 * float(flat(once).norm())


def test_evidence_and_prior_in_turns_only_raise_it() -> None:
    """tune() without data maximises the evidence at the present δ; with the exact structure each turn raises it."""
    posterior, data = fitted("gaussian", "odd")
    evidences = []
    for _ in range(4):
        posterior = posterior.refined(data, tolerance=1e-8, progress=False)
        evidences.append(float(posterior.log_evidence()))
        posterior = posterior.tune(progress=False)
        evidences.append(float(posterior.log_evidence()))
    assert all(later >= before - 1e-6 for before, later in itertools.pairwise(evidences))


def test_everything_that_predicts_is_of_the_linear_model() -> None:
    """Gradients in the inputs, draws, sources, shares, novelty and tuning too."""
    posterior, (x, y) = fitted("classification", structure="kron")
    found = posterior.refined((x, y), tolerance=1e-8, progress=False)
    outputs, rows, _ = dense(posterior, x)
    linear = outputs + rows @ flat(found)
    draws = found.draw(6, generator=torch.Generator().manual_seed(0))
    z = found.sample(6, generator=torch.Generator().manual_seed(0))
    theta = torch.cat([found.network.params[n].detach().flatten() for n in found.names()])
    away = torch.cat([z[n].flatten(1) for n in found.names()], 1) - theta  # δ + z
    assert_close(draws.outputs(x), outputs + torch.einsum("ncp,sp->snc", rows, away), 1e-9)
    assert_close(draws[2](x), draws.outputs(x)[2], 1e-12)
    assert_close(found.predict(x, num_samples=4000, link="mc").logit_mean, linear, 1e-9)
    (source,) = found.sources()
    ((compute, _),) = source.parts(x, False, None)
    assert_close(compute().softmax(-1).mean(0), found.predict(x).probs, 1e-6)
    given = x[:2].clone().requires_grad_()
    found.predict(given).logit_mean.sum().backward()
    assert given.grad is not None
    small = 1e-6
    for i in range(3):
        ahead, back = x[:2].clone(), x[:2].clone()
        ahead[0, i] += small
        back[0, i] -= small
        difference = (found.predict(ahead).logit_mean - found.predict(back).logit_mean)[0].sum() / (2 * small)
        assert float(given.grad[0, i]) == pytest.approx(float(difference), rel=1e-4, abs=1e-6)
    shares = found.where(x)
    assert sum(row.variance_share for row in shares.layers) == pytest.approx(1)
    tuned = found.tune((x, y), progress=False)
    assert tuned.network.shift is not None and bool(torch.isfinite(whence.novelty(tuned, x).score).all())


def test_files_copies_and_served_modules(tmp_path: Path) -> None:
    posterior, (x, y) = fitted("classification", "odd", structure="kron")
    found = posterior.refined((x, y), progress=False)
    wanted = found.predict(x)
    found.save(tmp_path / "refined.safetensors")
    again: Any = whence.load(tmp_path / "refined.safetensors", network("odd", 4)[0])
    assert_close(again.predict(x).probs, wanted.probs, 1e-9)
    assert float(again.log_evidence()) == pytest.approx(float(found.log_evidence()))
    single: Any = found.to(torch.float32)
    assert_close(single.predict(x.float()).probs.double(), wanted.probs, 1e-3)
    served = found.as_module(200, check=x)
    assert served.difference is not None and served.difference.mean < 0.05


def test_in_single_precision_on_a_trained_network() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 5)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    model = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.BatchNorm1d(20), nn.Linear(20, 3))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    posterior = whence.laplace(model.eval(), (x, y), likelihood="classification", prior_precision=1.0, progress=False)
    found = posterior.refined([(x[:90], y[:90]), (x[90:], y[90:])], progress=False)
    assert float(found.log_evidence()) > float(posterior.log_evidence())
    assert math.isfinite(found.record.loss)


def test_what_cannot_be_asked() -> None:
    posterior, data = fitted("classification", structure="kron")
    found = posterior.refined(data, progress=False)
    with pytest.raises(NotDefined, match="refined posterior are a linear model's"):
        whence.prune(found, 0.5)
    with pytest.raises(NotDefined, match="activations need weights of the network"):
        _ = found.where(data[0]).activations
    for make in (found.unstructured, found.function_space):
        with pytest.raises(NotDefined, match="before refined"):
            make(data, progress=False)
    with pytest.raises(NotDefined, match="cannot be updated"):
        found.update(data, progress=False)
    with pytest.raises(NotDefined, match="cannot be merged"):
        whence.merge(posterior, found)
    with pytest.raises(BadOption, match="tolerance=0 must be positive"):
        posterior.refined(data, tolerance=0)
    with pytest.raises(NotDefined, match="structure='ekfac' cannot be refined"):
        fitted("classification", structure="ekfac")[0].refined(data)
    hessian, _ = fitted("classification", structure="full", curvature="hessian", prior_precision=50.0)
    with pytest.raises(NotDefined, match="curvature='hessian' is not that of the linear model"):
        hessian.refined(data)
    with pytest.raises(BadOption, match="max_steps=0 must be a whole number"):
        posterior.refined(data, max_steps=0)
    with pytest.warns(Notice, match="optimum was not reached in max_steps=1"):
        posterior.refined(data, tolerance=1e-12, max_steps=1, progress=False)
