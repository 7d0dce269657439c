"""Which weights are Bayesian."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, bayesian, fitted, output_hessian
from tests.reference import curvature as slow
from tests.reference import posterior as slow_posterior
from tests.reference.networks import ALL
from whence.errors import Notice, UnsupportedLayer


def chosen(posterior: whence.Laplace) -> list[str]:
    return posterior.names()


@pytest.mark.parametrize(
    ("name", "layers", "wanted"),
    [
        ("mlp", "last", ["4.weight", "4.bias"]),
        ("mlp", ["0", "4"], ["0.weight", "0.bias", "4.weight", "4.bias"]),
        ("mlp", ["*.bias"], ["0.bias", "2.bias", "4.bias"]),
        ("mlp", "2", ["2.weight", "2.bias"]),
        ("mlp", lambda name, p: p.dim() == 2, ["0.weight", "2.weight", "4.weight"]),
    ],
)
def test_names(name: str, layers, wanted: list[str]) -> None:
    assert chosen(fitted(ALL[name](0), layers=layers)) == wanted


def test_a_pattern_on_a_module_takes_all_below_it() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 2))
    data = (torch.randn(6, 3), torch.randint(2, (6,)))
    posterior = whence.laplace(model, data, likelihood="classification", layers=["0"])
    assert [b.name for b in posterior.blocks] == ["0.0", "0.1"]


def test_the_last_layer_of_a_convolutional_head() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(4, 3, 1)
            self.body = nn.Conv2d(1, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x).relu()).mean((2, 3))

    posterior = whence.laplace(
        Net(), (torch.randn(4, 1, 6, 6), torch.randint(3, (4,))), likelihood="classification", layers="last"
    )
    assert chosen(posterior) == ["head.weight", "head.bias"]


def test_the_last_layer_of_a_tied_head() -> None:
    case = ALL["tied_embedding"](0)
    posterior = fitted(case, layers="last")
    params = {n: p for n, p in bayesian(case).items() if n in posterior.names()}
    assert any("embed" in n or "head" in n for n in params)
    h = slow.ggn_full(case.model, params, case.x, output_hessian(case))
    where, cov = slow.positions(params), posterior.covariance()
    for block in posterior.blocks:  # the tied table is small, so dense; a bias alone is exact by its nature
        index = torch.cat([where[p.name].flatten() for p in block.params])
        corner = h[index][:, index]
        assert_close(cov[index][:, index], torch.linalg.inv(corner + torch.eye(len(index), dtype=h.dtype)))


@pytest.mark.parametrize("name", ["mlp", "conv2d", "cross_attention", "batchnorm2d", "embedding", "lora", "frozen"])
@pytest.mark.parametrize("structure", ["full", "block", "diag"])
def test_a_selection_is_the_corner_of_the_whole(name: str, structure: str) -> None:
    case = ALL[name](1)
    names = [n for n in bayesian(case) if hash_like(n)]
    params = {n: p for n, p in bayesian(case).items() if n in names}
    posterior = fitted(case, structure=structure, layers=names)
    assert posterior.names() == names
    h = slow.ggn_full(case.model, params, case.x, output_hessian(case))
    if structure == "full":
        assert_close(posterior.covariance(), torch.linalg.inv(h + torch.eye(len(h), dtype=h.dtype)))
    if structure == "diag":
        assert_close(torch.cat([v.flatten() for v in posterior.variance().values()]), 1 / (h.diagonal() + 1))
    jac = slow.jacobian(case.model, params, case.x)
    assert_close(posterior.predict(case.x).logit_cov, slow_posterior.linearised_covariance(jac, posterior.covariance()))


def hash_like(name: str) -> bool:
    """Weights of some layers, biases of others: the halves of layers must work too."""
    return sum(map(ord, name)) % 3 != 0


def test_frozen_parameters_stay_out() -> None:
    case = ALL["frozen"](2)
    posterior = fitted(case)
    assert set(posterior.names()) == {n for n, p in case.model.named_parameters() if p.requires_grad}
    assert len(posterior.names()) < len(list(case.model.parameters()))


@pytest.mark.parametrize("by", ["variance", "magnitude", "random"])
def test_subnetwork(by: str) -> None:
    """A full covariance inside the mask, nothing outside it."""
    case = ALL["conv2d"](3)
    params = bayesian(case)
    source = fitted(case, structure="diag") if by == "variance" else case.model
    mask = whence.subnetwork(source, 25, by=by, generator=torch.Generator().manual_seed(0))
    flat = torch.cat([m.flatten() for m in mask.values()])
    assert int(flat.sum()) == 25
    if by == "magnitude":
        theta = slow.theta(params).detach().abs()
        assert float(theta[flat].min()) >= float(theta[~flat].max())
    posterior = fitted(case, structure="full", layers=mask, prior_precision=0.3)
    params = {n: params[n] for n in posterior.names()}
    flat = torch.cat([mask[n].flatten() for n in params])
    h = slow.ggn_full(case.model, params, case.x, output_hessian(case))
    index = flat.nonzero().squeeze(1)
    wanted = torch.zeros_like(h)
    inside = torch.linalg.inv(h[index][:, index] + 0.3 * torch.eye(25, dtype=h.dtype))
    wanted[index.unsqueeze(1), index] = inside
    assert_close(posterior.covariance(), wanted)
    jac = slow.jacobian(case.model, params, case.x)
    assert_close(posterior.predict(case.x).logit_cov, slow_posterior.linearised_covariance(jac, wanted))
    draws = torch.cat([d.flatten(1) for d in posterior.sample(5).values()], dim=1)
    theta = slow.theta(params).detach()
    assert torch.equal(draws[:, ~flat], theta[~flat].expand(5, -1))
    assert float((draws[:, flat] - theta[flat]).abs().min()) > 0


def test_structures_say_what_each_block_got() -> None:
    posterior = fitted(ALL["vit"](0))
    rows = posterior.structures
    assert {row.structure for row in rows.values()} == {"kron", "dense", "diag"}
    assert all(row.reason for row in rows.values() if row.structure != "kron")
    assert sum(row.parameters for row in rows.values()) == posterior.parameters


def test_fallbacks_are_said_in_one_line() -> None:
    case = ALL["lstm"](0)
    with pytest.warns(whence.errors.Notice, match=r"no Kronecker rule for .*weight_ih_l0.*exact diagonal") as record:
        whence.laplace(case.model, (case.x, case.y), likelihood="classification")
    assert len([w for w in record if issubclass(w.category, whence.errors.Notice)]) == 1


def quietly(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(*args, progress=False, **kwargs)


class Refuses(torch.autograd.Function):
    """What must not be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise AssertionError("the backward pass went on below the first selected layer")


class Barred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.early, self.late, self.head = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = Refuses.apply(torch.tanh(self.early(x)))
        return self.head(torch.tanh(self.late(x)))


@pytest.mark.parametrize("chosen", [["late", "head"], "last", lambda name, p: name.startswith("late"), "frozen"])
@pytest.mark.parametrize("structure", ["kron", "diag", "ekfac"])
def test_the_backward_pass_stops_at_the_first_chosen_layer(structure: str, chosen: Any) -> None:
    model = Barred().double()
    layers = chosen
    if chosen == "frozen":
        model.early.requires_grad_(False)
        layers = None
    data = (torch.randn(9, 4, dtype=torch.float64), torch.randint(3, (9,)))
    posterior = quietly(model, data, likelihood="classification", structure=structure, layers=layers)
    assert all(not b.name.startswith("early") for b in posterior.blocks)
    posterior.predict(data[0])
    recording = posterior.plan.record(data[0], 9)
    refs = {r.name for use in recording.seen.uses for r in (use.weight, use.bias) if r is not None}
    assert not any(name.startswith("early") for name in refs), "nothing of it is kept"


X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 3


def fit(model: nn.Module, x: Any = X, y: Tensor = Y, **options: Any) -> whence.Laplace:
    options = {"likelihood": "classification", "progress": False} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, (x, y), **options)


class Phases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wave, self.head = nn.Parameter(torch.randn(4, 5, dtype=torch.complex128)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x.to(self.wave.dtype) @ self.wave).abs())


@pytest.mark.parametrize("layers", [None, ["wave"], lambda name, p: True, ["*"]])
def test_complex_parameters_are_refused_by_name(layers: Any) -> None:
    model = Phases().double()
    with pytest.raises(UnsupportedLayer, match=r"'wave' is complex.*view_as_complex.*not p.is_complex"):
        fit(model, layers=layers)


def test_complex_parameters_can_be_left_at_their_values() -> None:
    posterior = fit(Phases().double(), layers=lambda name, p: not p.is_complex())
    assert posterior.names() == ["head.weight", "head.bias"]
