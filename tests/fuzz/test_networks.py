"""Any network of torch's layers is fitted exactly, or refused by name; nothing about it is changed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import whence
from tests.comparison import assert_close, bayesian, fitted, likelihood_of, output_hessian
from tests.errors.watch import untouched
from tests.fuzz.budget import cases
from tests.fuzz.networks import CLASSES, networks
from tests.reference import posterior as slow_posterior
from tests.reference.cases import Case
from whence.errors import NothingSelected, UnsupportedLayer, WhenceError
from whence.predictive.linearised import moments

LIKELIHOODS = ("classification", "regression", "poisson", "binary")


@st.composite
def problems(draw: Any) -> Case:
    model, x = draw(networks())
    likelihood = draw(st.sampled_from(LIKELIHOODS))
    classes = likelihood == "classification"
    y = torch.randint(CLASSES, (len(x),)) if classes else torch.randint(2, (len(x), CLASSES)).double()
    return Case(model, x, y, likelihood)


def names_a_layer(error: WhenceError, model: nn.Module) -> bool:
    text = str(error)
    return any(repr(name) in text or f" {name}" in text for name, _ in model.named_parameters())


@cases(60)
@given(problems(), st.sampled_from(["full", "diag", "kron", "ekfac", "block"]))
def test_exact_or_refused_by_name(case: Case, structure: str) -> None:
    with untouched(case.model):
        compare(case, structure)


def compare(case: Case, structure: str) -> None:
    try:
        jac = jacobian(case)
    except RuntimeError:  # torch has no gradient either: something needed was overwritten in place
        with pytest.raises(UnsupportedLayer, match="inplace"):
            fitted(case, structure=structure)
        return
    try:
        posterior = fitted(case, structure=structure)
    except (UnsupportedLayer, NothingSelected) as error:
        if not names_a_layer(error, case.model):
            raise
        return
    h = torch.einsum("nkp,nkl,nlq->pq", jac, output_hessian(case), jac)
    covariance = posterior.covariance()
    if structure == "full":
        assert_close(covariance, torch.linalg.inv(h + torch.eye(len(h), dtype=h.dtype)), 1e-6)
    if structure == "diag":
        assert_close(torch.cat([v.flatten() for v in posterior.variance().values()]), 1 / (h.diagonal() + 1), 1e-7)
    wanted = slow_posterior.linearised_covariance(jac, covariance)
    assert_close(moments(posterior, case.x).cov, wanted, 1e-7, 1e-12)
    shares = posterior.where(case.x)
    if float(wanted.diagonal(dim1=-2, dim2=-1).sum()) > 1e-8:
        assert sum(row.variance_share or 0.0 for row in shares.layers) == pytest.approx(1, abs=1e-8)


def jacobian(case: Case) -> Tensor:
    """[N, C, P], of all examples together: torch's batch norm has a wrong gradient for one example on a CPU where the
    next layer reads its output transposed (torch 2.13).
    """
    outputs, params = case.model(case.x), list(bayesian(case).values())
    rows = [
        torch.cat(
            [torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(params, grads, strict=True)]
        )
        for output in outputs.flatten()
        for grads in [torch.autograd.grad(output, params, retain_graph=True, allow_unused=True)]
    ]
    return torch.stack(rows).unflatten(0, outputs.shape)


@st.composite
def calls(draw: Any) -> dict[str, Any]:
    """What is asked of a posterior, and in which batches and precision."""
    return {
        "batch": draw(st.integers(1, 3)),
        "dtype": draw(st.sampled_from([torch.float64, torch.float32])),
        "structure": draw(st.sampled_from(["kron", "ekfac", "diag", "block", "full", "lowrank"])),
        "curvature": draw(st.sampled_from(["auto", "ggn", "mc", "empirical"])),
        "prior": draw(st.sampled_from([whence.Relative(1.0), 0.1, 10.0])),
        "sharing": draw(st.sampled_from(["expand", "reduce"])),
        "method": draw(st.sampled_from(["linearised", "sampled"])),
        "layers": draw(st.sampled_from([None, "last", ["*"]])),
    }


@cases(40)
@given(problems(), calls())
def test_calls_agree_with_each_other(case: Case, call: dict[str, Any]) -> None:
    """Predictions do not depend on batches, files or a trip to another precision; errors are whence's own."""
    model, x = case.model.to(call["dtype"]), case.x.to(call["dtype"]) if case.x.is_floating_point() else case.x
    y = case.y.to(call["dtype"]) if case.y.is_floating_point() else case.y
    size = call["batch"]
    batches = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
    options = {key: call[key] for key in ("structure", "curvature", "sharing", "layers")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            posterior = whence.laplace(
                model, batches, likelihood=likelihood_of(case), prior_precision=call["prior"], progress=False,
                generator=torch.Generator().manual_seed(0), **options,
            )  # fmt: skip
        except WhenceError:
            return
        whole = predicted(posterior, x, call["method"])
        tolerance = 1e-7 if call["dtype"] == torch.float64 else 3e-3
        for i in range(len(x)):
            torch.testing.assert_close(
                predicted(posterior, x[i : i + 1], call["method"])[0], whole[i], rtol=tolerance, atol=tolerance
            )
        if case.likelihood != "poisson":  # the exponential of a draw may overflow
            assert bool(torch.isfinite(whole).all())


def predicted(posterior: Any, x: Tensor, method: str) -> Tensor:
    found = posterior.predict(x, method=method, num_samples=8, generator=torch.Generator().manual_seed(1))
    return found.probs if hasattr(found, "probs") else found.mean
