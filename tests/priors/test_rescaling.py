"""Rescalings that leave a network's function alone change nothing that whence says of it."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import whence
from tests.covering import covering
from tests.priors.networks import MEMBERS, columns, inputs, made, rows, statistics, stir
from whence.errors import Notice
from whence.predictive.linearised import moments

STRUCTURES = ("kron", "ekfac", "diag", "block", "full", "lowrank")
UNCHANGED = (
    "identified", "identified_q05", "identified_q95", "effective_parameters", "signal_to_noise", "relative_curvature",
    "variance_share", "prior_share", "explained",
)  # fmt: skip
OF_UNITS = ("identified", "signal_to_noise", "relative_curvature", "variance_share", "prior_share", "explained")


def rescaled(model: nn.Module, seed: int, most: int = 3) -> nn.Module:
    """A copy with another factor 2^k for every unit."""
    generator = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.rescale(lambda n: 2.0 ** torch.randint(-most, most + 1, (n,), generator=generator).double())
    return other


def targets(name: str, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if MEMBERS[name].likelihood == "classification":
        return torch.randint(3, (count,), generator=generator)
    if MEMBERS[name].likelihood == "binary":
        return torch.randint(2, (count, 3), generator=generator).double()
    return torch.randn(count, 1, generator=generator, dtype=torch.float64)


def likelihood_of(name: str) -> Any:
    kind = MEMBERS[name].likelihood
    return whence.Gaussian(0.5) if kind == "regression" else kind


def fitted(model: nn.Module, name: str, **options: Any) -> whence.Laplace:
    data = inputs(name, 24, 1), targets(name, 24, 2)
    options = {"rank": 10} | options if options.get("structure") == "lowrank" else options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, data, likelihood=likelihood_of(name), progress=False, **options)


def both(name: str, seed: int, most: int = 3, **options: Any) -> list[whence.Laplace]:
    model = made(name, seed)
    other = rescaled(model, seed + 1, most)
    x = inputs(name, 24, 1)
    torch.testing.assert_close(other(x), model(x), rtol=1e-10, atol=1e-10)
    return [fitted(m, name, **options) for m in (model, other)]


def assert_same(one: whence.Laplace, other: whence.Laplace, x: Tensor, tolerance: float = 1e-6) -> None:
    """Predictions, tables of layers and units, evidence."""

    def close(a: Any, b: Any, what: str) -> None:
        a, b = (torch.as_tensor(v).double() for v in (a, b))
        scale = float(a.abs().max())
        assert float((a - b).abs().max()) <= tolerance * max(scale, 1e-6), what

    close(moments(one, x).cov, moments(other, x).cov, "the covariance of the outputs")
    tables = one.where(x), other.where(x)
    for name in UNCHANGED:
        close(*([getattr(row, name) for row in table.layers] for table in tables), name)
    for block in one.blocks:
        units = [table.units(block.name) for table in tables]
        for name in OF_UNITS:
            close(units[0][name], units[1][name], f"{name} of the units of {block.name}")
    close(one.log_evidence(), other.log_evidence(), "the evidence")


@pytest.mark.parametrize(
    ("name", "structure"), covering(list(MEMBERS), STRUCTURES, always=lambda name, structure: structure == "kron")
)
def test_nothing_depends_on_the_scale(name: str, structure: str) -> None:
    assert_same(*both(name, 0, structure=structure), inputs(name, 6, 3))


@pytest.mark.parametrize("name", ["relu", "batch norm", "transformer"])
def test_an_isotropic_prior_does_depend_on_it(name: str) -> None:
    """What the law is about: otherwise the tests above would show nothing."""
    one, other = (p.where(inputs(name, 6, 3)) for p in both(name, 0, prior_precision=1.0))
    moved = [abs(a.variance_share - b.variance_share) for a, b in zip(one.layers, other.layers, strict=True)]
    assert max(moved) > 0.1


@pytest.mark.parametrize("name", ["relu", "convolutions", "batch norm", "transformer"])
@pytest.mark.parametrize("options", [{"curvature": "mc"}, {"curvature": "empirical"}, {"sharing": "reduce"},
                                     {"damping": "factored"}, {"max_factor": 4}], ids=str)  # fmt: skip
def test_other_curvatures_and_dampings(name: str, options: dict[str, Any]) -> None:
    if "curvature" in options:
        torch.manual_seed(5)
    one, other = both(name, 1, generator=torch.Generator().manual_seed(3), **options)
    if options.get("damping") == "factored":
        x = inputs(name, 6, 3)
        torch.testing.assert_close(moments(one, x).cov, moments(other, x).cov, rtol=1e-6, atol=1e-10)
        return
    if options.get("curvature") == "mc":  # the generator has moved on
        model = made(name, 1)
        one, other = (
            fitted(m, name, curvature="mc", generator=torch.Generator().manual_seed(3))
            for m in (model, rescaled(model, 2))
        )
    assert_same(one, other, inputs(name, 6, 3))


@pytest.mark.parametrize("curvature", ["kfra", "hessian"])
def test_curvatures_of_small_networks(curvature: str) -> None:
    structure = {"kfra": "kron", "hessian": "diag"}[curvature]
    options = {"structure": structure, "curvature": curvature, "prior_precision": whence.Relative(100.0)}
    assert_same(*both("relu", 0, **options), inputs("relu", 6, 3))


@pytest.mark.parametrize(
    ("name", "per_layer", "by"),
    covering(["relu", "batch norm", "transformer", "stream"], [False, True], ["validation", "evidence"]),
)
def test_tuning_finds_the_same(name: str, per_layer: bool, by: str) -> None:
    validation = (inputs(name, 30, 7), targets(name, 30, 8)) if by == "validation" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        tuned = [p.tune(validation, per_layer=per_layer, progress=False) for p in both(name, 0)]
    assert_same(*tuned, inputs(name, 6, 3), 1e-4)
    assert tuned[0].tuning.score == pytest.approx(tuned[1].tuning.score, rel=1e-6)


PRIORS = [
    ("kron", whence.Relative()),
    ("diag", 1.0),
    ("ekfac", whence.Relative()),
    ("kron", 1.0),
    ("diag", whence.Relative()),
]


@pytest.mark.parametrize(
    ("name", "given"), covering(["relu", "convolutions", "batch norm", "transformer", "recurrent"], PRIORS)
)
def test_novelty(name: str, given: tuple[str, Any]) -> None:
    """It has a prior of its own, so that it does not depend on the scale under an isotropic one either.

    The values of EKFAC belong to the prior of the fit.
    """
    structure, prior = given
    one, other = both(name, 0, structure=structure, prior_precision=prior)
    x, reference = inputs(name, 10, 3), inputs(name, 120, 4)
    found = [whence.novelty(p, x, reference=reference) for p in (one, other)]
    torch.testing.assert_close(found[0].unexplained, found[1].unexplained, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(found[0].p_values, found[1].p_values, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(found[0].score, found[1].score, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layers", ["last", ["head"]])
def test_some_layers_alone(layers: Any) -> None:
    """What is frozen is rescaled too: the input of the last layer depends on parameters all the same."""
    for name in ("batch norm", "transformer"):
        assert_same(*both(name, 0, layers=layers), inputs(name, 6, 3))


@pytest.mark.parametrize("chosen", ["weight", "bias"])
def test_weights_or_biases_alone(chosen: str) -> None:
    for name in ("relu", "batch norm", "other norms", "transformer"):
        options = {"layers": lambda n, p: chosen in n.rpartition(".")[2]}
        assert_same(*both(name, 0, **options), inputs(name, 6, 3))


def test_draws_are_the_same_functions() -> None:
    one, other = both("relu", 0)
    x = inputs("relu", 6, 3)
    a, b = (p.predict(x, method="sampled", generator=torch.Generator().manual_seed(0)).probs for p in (one, other))
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_merged_and_updated_fits_have_the_prior_of_all_the_data() -> None:
    """A relative prior follows the data: two halves make the fit of the whole."""
    for name in ("relu", "batch norm", "transformer", "recurrent"):
        model = made(name, 0)
        x, y = inputs(name, 24, 1), targets(name, 24, 2)
        options = {"likelihood": likelihood_of(name), "progress": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            whole = whence.laplace(model, (x, y), **options)
            half, rest = (whence.laplace(model, (x[s], y[s]), **options) for s in (slice(0, 9), slice(9, 24)))
            more = half.update((x[9:], y[9:]), progress=False)
        for found in (whence.merge(half, rest), more):
            assert_same(whole, found, inputs(name, 6, 3), 1e-8)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example("recurrent", 22, 1, "kron", 1.0)  # all units before the GRU are off
@given(
    name=st.sampled_from(sorted(MEMBERS)),
    seed=st.integers(0, 10_000),
    most=st.integers(1, 8),
    structure=st.sampled_from(STRUCTURES),
    tau=st.floats(0.01, 100.0),
)
def test_whatever_the_network(name: str, seed: int, most: int, structure: str, tau: float) -> None:
    one, other = both(name, seed, most, structure=structure, prior_precision=whence.Relative(tau))
    assert_same(one, other, inputs(name, 5, seed))


class Chain(nn.Module):
    """Layers of any widths, kinds of unit and normalisation, in any order."""

    def __init__(self, parts: list[tuple[str, int]]) -> None:
        super().__init__()
        self.parts = parts
        width, layers = 4, []
        for kind, wide in parts:
            layers.append(nn.Linear(width, wide))
            norm = {"batch": nn.BatchNorm1d(wide), "layer": nn.LayerNorm(wide, eps=0.0)}.get(kind)
            layers.append(norm or nn.Identity())
            width = wide
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for (kind, _), linear, norm in zip(self.parts, self.layers[::2], self.layers[1::2], strict=True):
            h = norm(linear(x))
            x = torch.relu(h) if kind in ("relu", "batch") else nn.functional.leaky_relu(h, 0.3)
        return self.head(x)

    def rescale(self, c: Any) -> None:
        readers = [*self.layers[2::2], self.head][: len(self.parts)]
        for (kind, wide), linear, norm, reader in zip(
            self.parts, self.layers[::2], self.layers[1::2], readers, strict=True
        ):
            out = c(wide)
            if kind == "batch":
                before = c(wide)
                rows(linear, before)
                statistics(norm, before)
            elif kind == "layer":
                rows(linear, c(1).expand(wide))
            rows(linear if kind in ("relu", "leaky") else norm, out)
            columns(reader, out)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(st.tuples(st.sampled_from(["relu", "leaky", "batch", "layer"]), st.integers(1, 7)), max_size=4),
    seed=st.integers(0, 1000),
    structure=st.sampled_from(STRUCTURES),
)
def test_whatever_the_chain(parts: list[tuple[str, int]], seed: int, structure: str) -> None:
    parts = [("relu" if kind == "layer" and wide < 3 else kind, wide) for kind, wide in parts]
    torch.manual_seed(seed)
    model = stir(Chain(parts))
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(3, (20,))
    other = rescaled(model, seed)
    found = []
    for network in (model, other):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            options = {"structure": structure, "rank": 8, "progress": False}
            found.append(whence.laplace(network, (x, y), likelihood="classification", **options))
    assert_same(*found, torch.randn(5, 4, dtype=torch.float64))
