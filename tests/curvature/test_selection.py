"""Which weights are Bayesian."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.comparison import assert_close, bayesian, fitted, output_hessian
from tests.reference import curvature as slow
from tests.reference import posterior as slow_posterior
from tests.reference.networks import ALL


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
