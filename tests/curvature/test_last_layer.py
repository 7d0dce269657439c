"""The last layer alone: Λ itself instead of columns, in fits and in predictions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.recording.calls import Recording


@pytest.mark.parametrize("structure", ["kron", "diag"])
@pytest.mark.parametrize(("classes", "gain"), [(2, 9.0), (10, 12.0), (10, 15.0)])
def test_the_last_layer_of_a_sure_network(structure: str, classes: int, gain: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, classes))
    with torch.no_grad():
        model[2].bias[0] += gain
    x, y = torch.randn(500, 5), torch.zeros(500, dtype=torch.long)
    options: dict[str, Any] = {"likelihood": "classification", "layers": "last", "curvature": "ggn"}
    single = whence.laplace(model, (x, y), structure=structure, **options).curvature.structures[0]
    double = whence.laplace(model.double(), (x, y), structure=structure, **options).curvature.structures[0]
    for key in ("grads", "values"):
        if key in single.tensors():
            assert_close(single.tensors()[key].double(), double.tensors()[key], 1e-4)


LIKELIHOODS = {
    "classification": (whence.Categorical(), torch.tensor([0, 3, 1, -100, 2, 4])),
    "binary": (whence.Bernoulli(), torch.rand(6, 5, dtype=torch.float64).round()),
    "regression": (whence.Gaussian(0.3), torch.randn(6, 5, dtype=torch.float64)),
    "poisson": (whence.Poisson(), torch.arange(30, dtype=torch.float64).reshape(6, 5)),
    "custom": (whence.Custom(lambda f, y: (f - y).cosh().log().sum(-1)), torch.randn(6, 5, dtype=torch.float64)),
}


@pytest.mark.parametrize("kind", sorted(LIKELIHOODS))
@pytest.mark.parametrize("structure", ["kron", "diag", "block"])
@pytest.mark.parametrize("layers", ["last", ["2.weight"], ["2.bias"]], ids=str)
def test_the_last_layer_needs_no_columns(kind: str, structure: str, layers, monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood, y = LIKELIHOODS[kind]
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5)).double()
    x = torch.randn(6, 4, dtype=torch.float64)

    def fit() -> Tensor:
        options = {"likelihood": likelihood, "structure": structure, "layers": layers, "curvature": "ggn"}
        return whence.laplace(model, (x, y), **options).covariance()

    fast = fit()
    assert direct_is_used(model, x, layers)
    monkeypatch.setattr(Recording, "is_last_layer", property(lambda _: False))
    assert_close(fast, fit(), 1e-10)


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block"])
@pytest.mark.parametrize("prior", [2.0, whence.Prior(weight=3.0, bias=0.5)], ids=["one", "two"])
def test_the_last_layer_is_predicted_without_columns(
    structure: str, prior, monkeypatch: pytest.MonkeyPatch, set_sizes
) -> None:
    from whence.predictive import linearised

    if structure == "ekfac" and not isinstance(prior, float):
        return
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 3, 1, 1, 2, 4])
    options = {"likelihood": "classification", "structure": structure, "layers": "last", "prior_precision": prior}
    posterior = whence.laplace(model, (x, y), **options)
    fast = posterior.predict(x).logit_cov
    set_sizes(covariance=0)
    lean = posterior.predict(x, link="probit")
    monkeypatch.setattr(linearised, "direct", lambda *_: None)
    lean_too = posterior.predict(x, link="probit")
    set_sizes(covariance=2**30)
    slow = posterior.predict(x, link="probit")
    assert_close(fast, slow.logit_cov, 1e-12)
    for other in (lean, lean_too):
        assert_close(other.probs, slow.probs, 1e-12)
        assert_close(other.logit_cov, slow.logit_cov, 1e-12)


def direct_is_used(model: nn.Module, x: Tensor, layers) -> bool:
    posterior = whence.laplace(model, (x, torch.zeros(6, dtype=torch.long)), likelihood="classification", layers=layers)
    return posterior.plan.record(x, len(x)).is_last_layer


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 3), nn.Tanh()),
        nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)),
        nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)), nn.Linear(2, 1), nn.Flatten()),
    ],
)
def test_other_outputs_are_not_taken_for_the_last_layer(model: nn.Module) -> None:
    assert not direct_is_used(model, torch.randn(6, 4), None)
