"""Prior and noise learned during training, beside the exact marginal likelihood of a linear model."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence import zoo
from whence.errors import BadOption


def regression(count: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, dtype=torch.float64, generator=generator)
    y = x[:, :2].sum(1, keepdim=True) + 0.3 * torch.randn(count, 1, dtype=torch.float64, generator=generator)
    return x, y


def minimise(model: nn.Module, learner: Any, x: Tensor, y: Tensor) -> None:
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=100, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = learner.loss(model(x), y)
        loss.backward()
        return loss

    optimiser.step(closure)


def test_a_linear_model_reaches_the_optimum_of_its_marginal_likelihood() -> None:
    """log N(y; 0, X Xᵀ / δ + σ² I), maximised over δ and σ by plain torch."""
    x, y = regression()
    torch.manual_seed(1)
    model = nn.Linear(6, 1, bias=False).double()
    learner = whence.online_evidence(
        model, (x, y), likelihood="regression", structure="full", every=1, burn_in=0, prior_precision=5.0
    )
    for _ in range(25):
        minimise(model, learner, x, y)
        learner.step()
    logs = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # log δ, log σ
    optimiser = torch.optim.LBFGS([logs], max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-12)
    eye = torch.eye(len(x), dtype=torch.float64)

    def evidence() -> Tensor:
        cov = x @ x.mT / logs[0].exp() + (2 * logs[1]).exp() * eye
        return torch.distributions.MultivariateNormal(torch.zeros(len(x), dtype=torch.float64), cov).log_prob(y[:, 0])

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -evidence()
        loss.backward()
        return loss

    optimiser.step(closure)
    last = learner.records[-1]
    assert last.precision["weight"] == pytest.approx(float(logs[0].exp()), rel=1e-4)
    assert last.noise == pytest.approx(float(logs[1].exp()), rel=1e-4)
    assert last.log_evidence == pytest.approx(float(evidence()), rel=1e-6)
    values = [record.log_evidence for record in learner.records]
    assert values[-1] == pytest.approx(max(values), abs=1e-6) and values[0] < values[-1] - 1


def test_the_loss_is_the_posteriors() -> None:
    """N times the loss of all data is −log p(D) + ½ θᵀ Δ θ; its gradient is that of the sum."""
    x, y = regression()
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    for prior in (3.0, whence.Relative(2.0)):
        learner = whence.online_evidence(
            model, (x, y), likelihood=whence.Gaussian(noise=0.5), prior_precision=prior, every=1, burn_in=0
        )
        learner.step()
        posterior = learner.posterior
        variances = posterior.prior_variance()
        squares = sum(float((p.detach() ** 2 / variances[n]).sum()) for n, p in model.named_parameters())
        nll = learner.likelihood.nll(model(x), y).sum()
        wanted = float(nll.detach()) + 0.5 * squares
        assert 60 * float(learner.loss(model(x), y).detach()) == pytest.approx(wanted, rel=1e-6)
        (found,) = torch.autograd.grad(learner.penalty(), [model[0].weight])
        assert_close(60 * found, model[0].weight.detach() / variances["0.weight"], 1e-6)


def test_relative_scales_are_held_between_updates() -> None:
    x, y = regression()
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    learner = whence.online_evidence(
        model, (x, y), likelihood="regression", prior_precision=whence.Relative(1.0), every=1
    )
    before = float(learner.penalty().detach())
    with torch.no_grad():
        model[2].weight.mul_(2)
        model[2].bias.mul_(2)
        model[0].weight.mul_(2)
        model[0].bias.mul_(2)
    assert float(learner.penalty().detach()) == pytest.approx(4 * before, rel=1e-9), "a penalty that decays the weights"


def test_steps_updates_and_the_best_state() -> None:
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2))
    learner = whence.online_evidence(model, (x, y), likelihood="classification", every=3, burn_in=2)
    assert math.isnan(learner.log_evidence) and "no update yet" in repr(learner)
    with pytest.raises(BadOption, match="no best state"):
        learner.restore()
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    states: dict[int, Any] = {}
    for _ in range(12):
        model.train()
        optimiser.zero_grad()
        learner.loss(model(x), y).backward()
        optimiser.step()
        record = learner.step()
        states[learner.steps] = copy.deepcopy(model.state_dict())
        assert (record is not None) == (learner.steps in (3, 6, 9, 12))
        assert model.training, "the network stays in training mode"
    assert [r.step for r in learner.records] == [3, 6, 9, 12]
    assert learner.best is not None
    assert learner.best[1] == max(learner.records, key=lambda r: r.log_evidence).step
    learner.restore()
    for name, value in states[learner.best[1]].items():
        assert torch.equal(model.state_dict()[name], value)
    table = learner.table()
    assert len(table) == 4 * 3 and set(table["name"]) == {"0", "2", "3"} and "noise" not in table
    assert list(learner.to_pandas()["step"].unique()) == [3, 6, 9, 12]
    for before, after in zip(learner.records[:-1], learner.records[1:], strict=True):
        for layer, value in after.precision.items():
            assert 0.099 < value / before.precision[layer] < 10.1, "at most a factor of ten"
    for one in (False, True):
        same = whence.online_evidence(model, (x, y), likelihood="classification", per_layer=one, burn_in=0)
        found = same.step()
        assert found is not None and (len({round(v, 9) for v in found.precision.values()}) > 1) == one


def test_random_state_mode_and_gradients_are_untouched() -> None:
    x, y = torch.randn(40, 3), torch.randint(2, (40,))
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 2))
    learner = whence.online_evidence(model, (x, y), likelihood="classification", every=1, burn_in=0, curvature="mc")
    learner.loss(model(x), y).backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    state = torch.random.get_rng_state()
    learner.step()
    assert torch.equal(torch.random.get_rng_state(), state) and model.training
    assert all(torch.equal(a, b.grad) for a, b in zip(gradients, model.parameters(), strict=True) if b.grad is not None)


def test_a_subset_stands_for_all() -> None:
    x, y = regression(200)
    model = nn.Linear(6, 1).double()
    learner = whence.online_evidence(
        model, (x, y), likelihood=whence.Gaussian(noise=0.5), examples=50, every=1, burn_in=0, structure="full"
    )
    assert learner.data_size == 200
    found = learner.step()
    assert found is not None
    whole = whence.online_evidence(
        model, (x, y), likelihood=whence.Gaussian(noise=0.5), every=1, burn_in=0, structure="full"
    ).step()
    assert whole is not None and 0.7 < found.loss / whole.loss < 1.4


def test_in_the_training_of_the_zoo() -> None:
    """Its loss and its step are what zoo.train takes; without a decay of its own the penalty decays the weights."""
    x, y = torch.randn(64, 5, generator=torch.Generator().manual_seed(0)), torch.randint(3, (64,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    learner = whence.online_evidence(model, (x, y), likelihood="classification", every=2, burn_in=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zoo.train(
            model, (x, y), epochs=8, batch_size=32, loss=learner.loss, callback=lambda *_: learner.step(),
            progress=False,
        )  # fmt: skip
    assert [r.step for r in learner.records] == [3, 5, 7]
    assert learner.records[-1].precision["0"] > 1, "labels are noise, so weights are not needed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_precision": {"0": 1.0}}, "must be a number or whence.Relative"),
        ({"every": 0}, "every"),
        ({"burn_in": -1}, "burn_in"),
        ({"examples": 0}, "examples"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        whence.online_evidence(nn.Linear(6, 1).double(), regression(), likelihood="regression", **options)
