"""The shim for users of laplace-torch, beside the original where both compute the same."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import whence
from tests.comparison import assert_close
from whence.compat.laplace_torch import Laplace
from whence.errors import BadOption, NotDefined

original: Any = pytest.importorskip("laplace")


def problem(task: str, bias: bool = True) -> tuple[nn.Module, DataLoader[Any], Tensor]:
    torch.manual_seed(0)
    x = torch.randn(90, 4, dtype=torch.float64)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.7).long() if task == "classification" else x[:, :2].sin()
    model = nn.Sequential(
        nn.Linear(4, 7, bias=bias), nn.Tanh(), nn.Linear(7, 3 if task == "classification" else 2, bias=bias)
    )
    model = model.double()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(60):
        optimiser.zero_grad()
        outputs = model(x[:60])
        loss = (
            nn.functional.cross_entropy(outputs, y[:60])
            if task == "classification"
            else (outputs - y[:60]).square().mean()
        )
        loss.backward()
        optimiser.step()
    return model, DataLoader(TensorDataset(x[:60], y[:60]), batch_size=25), x[60:]


def both(task: str, bias: bool = True, **options: Any) -> tuple[Any, Any, Tensor]:
    """Fitted by the original and by the shim."""
    model, loader, x = problem(task, bias)
    found = []
    for make in (original.Laplace, Laplace):
        one = make(model, task, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.fit(loader)
        found.append(one)
    return found[0], found[1], x


# A bias has a Kronecker block of its own there, so Kronecker factors agree without biases; the others always.
CASES = [
    (task, subset, structure, structure != "kron")
    for task, subset, structure in itertools.product(
        ("classification", "regression"), ("all", "last_layer"), ("full", "kron", "diag")
    )
]


@pytest.mark.parametrize(("task", "subset", "structure", "bias"), CASES)
def test_numbers_are_those_of_the_original(task: str, subset: str, structure: str, bias: bool) -> None:
    """Evidence under several hyperparameters, predictions by every link, covariance, and the tuned prior."""
    options = {"subset_of_weights": subset, "hessian_structure": structure, "prior_precision": 2.0}
    if task == "regression":
        options["sigma_noise"] = 0.5
    theirs, ours, x = both(task, bias, **options)
    assert ours.n_params == theirs.n_params and ours.n_data == theirs.n_data and ours.n_outputs == theirs.n_outputs
    assert_close(ours.mean, theirs.mean.double(), 1e-9)
    assert float(ours.log_marginal_likelihood()) == pytest.approx(float(theirs.log_marginal_likelihood()), rel=1e-4)
    if task == "classification":
        for link in ("probit", "bridge"):
            assert_close(ours(x, link_approx=link), theirs(x, link_approx=link).double(), 1e-4)
        assert_close(
            ours(x, link_approx="mc", n_samples=4000), theirs(x, link_approx="mc", n_samples=4000).double(), 0.03
        )
    else:
        mean, cov = theirs(x)
        assert_close(ours(x)[0], mean.double(), 1e-6)
        assert_close(ours(x)[1], cov.double(), 1e-4)
        theirs_joint, ours_joint = theirs(x, joint=True), ours(x, joint=True)
        assert_close(ours_joint[0], theirs_joint[0].double(), 1e-6)
        assert_close(ours_joint[1], theirs_joint[1].double(), 1e-4)
    for value in (0.1, 30.0):
        other = theirs.log_marginal_likelihood(prior_precision=torch.tensor(value))
        assert float(ours.log_marginal_likelihood(prior_precision=value)) == pytest.approx(float(other), rel=1e-4)
        assert ours.prior_precision == value
    theirs.optimize_prior_precision(n_steps=3000, lr=0.05)
    ours.optimize_prior_precision()
    assert float(ours.prior_precision) == pytest.approx(float(theirs.prior_precision), rel=0.02)
    assert float(ours.log_marginal_likelihood()) >= float(theirs.log_marginal_likelihood()) - 1e-3


def test_temperature_and_noise() -> None:
    theirs, ours, x = both(
        "regression", hessian_structure="full", subset_of_weights="all", temperature=0.5, sigma_noise=0.7
    )
    assert_close(ours(x)[1], theirs(x)[1].double(), 1e-4)
    wanted = theirs.log_marginal_likelihood(sigma_noise=torch.tensor(0.3))
    found = ours.log_marginal_likelihood(sigma_noise=0.3)
    assert float(ours.sigma_noise) == pytest.approx(0.3)
    assert_close(ours(x)[1], theirs(x)[1].double(), 1e-4)
    assert torch.isfinite(found) and torch.isfinite(wanted)


def test_samples_and_what_is_inside() -> None:
    _, ours, x = both("classification", hessian_structure="diag", subset_of_weights="all")
    weights = ours.sample(2000, torch.Generator().manual_seed(0))
    assert weights.shape == (2000, ours.n_params)
    assert_close(weights.var(0), ours.posterior_covariance.diagonal(), 0.2)
    probs = ours.predictive_samples(x, n_samples=3000, generator=torch.Generator().manual_seed(0))
    assert probs.shape == (3000, 30, 3)
    assert_close(probs.mean(0), ours(x, link_approx="mc", n_samples=3000), 0.03)
    by_weights = ours(x, pred_type="nn", n_samples=50, generator=torch.Generator().manual_seed(0))
    assert_close(by_weights.sum(1), torch.ones(30).double(), 1e-9)
    assert ours.predictive_samples(x, pred_type="nn", n_samples=5).shape == (5, 30, 3)
    assert isinstance(ours.posterior, whence.Laplace) and "not fitted" in repr(Laplace(nn.Linear(1, 1), "regression"))
    assert sum(row.variance_share for row in ours.posterior.where(x).layers) == pytest.approx(1)


def test_regression_by_weights_and_more_data() -> None:
    model, loader, x = problem("regression")
    ours = Laplace(model, "regression", "all", "full", sigma_noise=0.5)
    ours.fit(loader)
    mean, variance = ours(x, pred_type="nn", n_samples=200, generator=torch.Generator().manual_seed(0))
    assert mean.shape == variance.shape == (30, 2)
    once = ours.posterior_covariance
    ours.fit(loader, override=False)
    assert ours.n_data == 120 and float(ours.posterior_covariance.trace()) < float(once.trace())
    assert ours.predictive_samples(x, n_samples=4).shape == (4, 30, 2)


def test_a_prior_for_each_layer_and_validation_data() -> None:
    model, loader, x = problem("classification")
    ours = Laplace(model, "classification", "all", "kron", prior_precision=torch.tensor([1.0, 5.0]))
    ours.fit(loader)
    assert ours.posterior.prior_precision == {"0.weight": 1.0, "0.bias": 1.0, "2.weight": 5.0, "2.bias": 5.0}
    ours.optimize_prior_precision(prior_structure="layerwise")
    assert torch.as_tensor(ours.prior_precision).shape == (2,)
    before = float(ours.log_marginal_likelihood())
    assert before >= float(ours.log_marginal_likelihood(prior_precision=torch.tensor([1.0, 5.0])))
    validation = (x, model(x).argmax(1))
    ours.optimize_prior_precision(method="gridsearch", val_loader=validation)
    assert isinstance(ours.prior_precision, float) and ours.posterior.tuning is not None


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (lambda m: Laplace(m, "classification", "subnetwork", "full"), NotDefined, "whence.subnetwork"),
        (lambda m: Laplace(m, "classification", "all", "gp"), NotDefined, "function_space"),
        (lambda m: Laplace(m, "reward_modeling"), NotDefined, "Likelihood of your own"),
        (lambda m: Laplace(m, "classification", backend=object), BadOption, "backend.*Leave them out"),
        (lambda m: Laplace(m, "klassification"), BadOption, "likelihood"),
        (lambda m: Laplace(m, "classification")(torch.zeros(1, 4)), BadOption, "call fit"),
    ],
)
def test_what_is_refused_names_its_equal(ask: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        ask(nn.Linear(4, 3))


def test_options_without_a_meaning_here_are_refused() -> None:
    _, ours, x = both("classification")
    with pytest.raises(BadOption, match="n_steps: whence chooses its own steps"):
        ours.optimize_prior_precision(n_steps=5)
    with pytest.raises(BadOption, match="needs val_loader"):
        ours.optimize_prior_precision(method="gridsearch")
    with pytest.raises(NotDefined, match="diagonal_output"):
        ours(x, diagonal_output=True)
    with pytest.raises(BadOption, match="has 7 values for 1 layers"):
        ours.prior_precision = torch.ones(7)
    with pytest.raises(BadOption, match="sigma_noise is for regression"):
        ours.log_marginal_likelihood(sigma_noise=1.0)
