"""Random networks through the same comparison as the chosen ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.comparison import assert_close, bayesian, fitted, output_hessian
from tests.reference import curvature as slow
from tests.reference import posterior as slow_posterior
from tests.reference.cases import Case

ACTIVATIONS = [nn.Tanh, nn.ReLU, lambda: nn.ReLU(inplace=True), nn.GELU, nn.Softplus, nn.Sigmoid, nn.PReLU]


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.inner(x)))


@st.composite
def dense_networks(draw) -> Case:
    torch.manual_seed(draw(st.integers(0, 10_000)))
    width = draw(st.integers(2, 5))
    layers: list[nn.Module] = []
    features = width
    for _ in range(draw(st.integers(1, 3))):
        bias = draw(st.booleans())
        shape = draw(st.sampled_from(["plain", "residual", "twice", "norm"]))
        if shape == "plain":
            out = draw(st.integers(2, 5))
            layers.append(nn.Linear(features, out, bias=bias))
            features = out
        elif shape == "norm":
            layers.append(draw(st.sampled_from([nn.LayerNorm, nn.BatchNorm1d, nn.RMSNorm]))(features))
        else:
            wrap = Residual if shape == "residual" else Twice
            layers.append(wrap(nn.Linear(features, features, bias=bias)))
        layers.append(draw(st.sampled_from(ACTIVATIONS))())
    layers.append(nn.Linear(features, 3, bias=draw(st.booleans())))
    return finished(nn.Sequential(*layers), torch.randn(draw(st.integers(1, 5)), width), draw)


@st.composite
def conv_networks(draw) -> Case:
    torch.manual_seed(draw(st.integers(0, 10_000)))
    dims = draw(st.integers(1, 2))
    groups = draw(st.integers(1, 2))
    channels = 2 * draw(st.integers(1, 2))
    transposed = draw(st.booleans())
    kinds = [[nn.Conv1d, nn.ConvTranspose1d], [nn.Conv2d, nn.ConvTranspose2d]]
    options = {
        "kernel_size": draw(st.integers(1, 3)),
        "stride": draw(st.integers(1, 2)),
        "dilation": draw(st.integers(1, 2)),
        "padding": draw(st.integers(0, 1)),
        "groups": groups,
        "bias": draw(st.booleans()),
    }
    if transposed:
        options["output_padding"] = draw(st.integers(0, max(options["stride"], options["dilation"]) - 1))
    else:
        options["padding_mode"] = draw(st.sampled_from(["zeros", "reflect", "circular", "replicate"]))
    conv = kinds[dims - 1][transposed](2, channels, **options)
    pool = nn.AdaptiveAvgPool1d(1) if dims == 1 else nn.AdaptiveAvgPool2d(1)
    act = draw(st.sampled_from(ACTIVATIONS))()
    model = nn.Sequential(conv, act, pool, nn.Flatten(), nn.Linear(channels, 3))
    return finished(model, torch.randn(draw(st.integers(1, 4)), 2, *[6] * dims), draw)


def finished(model: nn.Module, x: Tensor, draw) -> Case:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean = torch.randn_like(module.running_mean)
            module.running_var = torch.rand_like(module.running_var) + 0.5
    likelihood = draw(st.sampled_from(["classification", "regression", "poisson", "binary"]))
    y = torch.randint(3, (len(x),)) if likelihood == "classification" else torch.randint(2, (len(x), 3)).double()
    return Case(model.double().eval(), x.double(), y, likelihood)


def compare(case: Case) -> None:
    params = bayesian(case)
    h = slow.ggn_full(case.model, params, case.x, output_hessian(case))
    eye = torch.eye(len(h), dtype=h.dtype)
    full = fitted(case, structure="full")
    assert_close(full.covariance(), torch.linalg.inv(h + eye))
    diag = fitted(case, structure="diag")
    assert_close(torch.cat([v.flatten() for v in diag.variance().values()]), 1 / (h.diagonal() + 1))
    jac = slow.jacobian(case.model, params, case.x)
    for structure in ("kron", "ekfac"):
        posterior = fitted(case, structure=structure)
        cov = posterior.covariance()
        assert_close(posterior.predict(case.x, joint=True).covariance, slow_posterior.joint_covariance(jac, cov))
        from whence.predictive.linearised import moments

        assert_close(moments(posterior, case.x).cov, slow_posterior.linearised_covariance(jac, cov))


COMMON = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


@settings(max_examples=16, **COMMON)
@given(dense_networks())
def test_dense(case: Case) -> None:
    compare(case)


@settings(max_examples=16, **COMMON)
@given(conv_networks())
def test_convolutional(case: Case) -> None:
    compare(case)


@pytest.mark.slow
@settings(max_examples=400, **COMMON)
@given(st.one_of(dense_networks(), conv_networks()))
def test_many_more(case: Case) -> None:
    compare(case)
