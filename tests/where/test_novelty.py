"""Novelty: uniform p-values where nothing is novel, tiny ones where all is; twins, identities, errors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import whence
from tests.comparison import assert_close
from tests.errors.watch import Busy, data, untouched
from tests.reference import novelty as slow
from tests.where.novel import trained
from whence.errors import BadData, BadOption, NotDefined, Notice
from whence.where.novelty import Novelty, Reference, novelty, reference_of
from whence.where.novelty_prior import novelty_precision, unexplained_by_layer, with_novelty_prior
from whence.where.one_pass import shares
from whence.where.p_values import COMBINATIONS, Combine, combined, conformal, reference_scores, shifted_up

REFERENCE, FRESH = 2000, 2000


@pytest.fixture(scope="module")
def references() -> dict[str, Reference]:
    made = {}
    for name in ("mlp", "conv"):
        posterior, draw = trained(name)
        made[name] = reference_of(posterior, draw(REFERENCE, 1))
    return made


def assert_uniform(p: torch.Tensor) -> None:
    """At 1 %. The reference is a sample too, so the bound is that of two samples (Smirnov 1939)."""
    distance = slow.kolmogorov_smirnov(p.numpy())
    bound = math.sqrt(-math.log(0.01 / 2) / 2) * math.sqrt(1 / REFERENCE + 1 / FRESH)
    assert distance < bound, f"{distance:.4f} ≥ {bound:.4f}"


@pytest.mark.parametrize("name", ["mlp", "conv"])
def test_p_values_of_fresh_inputs_are_uniform(name: str, references: dict[str, Reference]) -> None:
    posterior, draw = trained(name)
    x, _ = draw(FRESH, 2)
    found = novelty(posterior, x, reference=references[name])
    for layer in range(len(found.names)):
        assert_uniform(found.p_values[:, layer])
    for how in COMBINATIONS:
        assert_uniform(combined(references[name].unexplained, found.unexplained, how)[1])
    assert 0.003 < float(found.flag(0.01).double().mean()) < 0.025


@pytest.mark.parametrize("size", [150, pytest.param(400, marks=pytest.mark.slow)])
def test_overall_p_values_hold_with_many_dependent_layers(size: int) -> None:
    """40 layers that share a factor; averaged over 40 references, so that theirs is no longer the noise."""
    g = torch.Generator().manual_seed(3)
    rates: dict[str, list[float]] = {how: [] for how in COMBINATIONS}
    for _ in range(40):
        common, alone = torch.randn(size + 200, 1, generator=g), torch.randn(size + 200, 40, generator=g)
        u = torch.sigmoid((common + alone - 3).double())
        for how in rates:
            p = combined(u[:size], u[size:], how)[1]
            rates[how].append(float((p <= 0.05).double().mean()))
    for how, found in rates.items():
        assert abs(np.mean(found) - 0.05) < 0.015, f"{how}: {np.mean(found):.3f}"


@pytest.mark.parametrize("name", ["mlp", "conv"])
@pytest.mark.parametrize("how", Combine)
def test_far_inputs_have_tiny_p_values(name: str, how: str, references: dict[str, Reference]) -> None:
    posterior, draw = trained(name)
    x, _ = draw(20, 4)
    far = 5 * torch.randn(x.shape, generator=torch.Generator().manual_seed(5))
    if name == "mlp":
        far[:, :4] = 0.1  # off the plane that the training data lie near
    found = novelty(posterior, far, reference=references[name], combine=how)
    assert float(found.p_value.median()) < 0.001
    assert float(found.p_value.max()) < 0.1
    assert int(novelty(posterior, x, reference=references[name], combine=how).flag(0.01).sum()) <= 1


def test_one_layer_is_enough_to_be_seen() -> None:
    """A departure in 1 of 40 layers, beyond all of the reference, is found by all combinations."""
    g = torch.Generator().manual_seed(6)
    u = torch.sigmoid((torch.randn(1050, 1, generator=g) + torch.randn(1050, 40, generator=g) - 3).double())
    u[1000:, 7] = torch.sigmoid(torch.tensor(6.0, dtype=torch.float64))
    for how in ("gauss", "smallest", "cauchy"):
        assert float(combined(u[:1000], u[1000:], how)[1].median()) < 0.01, how


def test_the_twin_agrees() -> None:
    g = torch.Generator().manual_seed(7)
    reference = torch.rand(60, 3, generator=g, dtype=torch.float64) ** 3
    values = torch.rand(25, 3, generator=g, dtype=torch.float64)
    values[0], values[1] = reference[3], reference.amax(0)  # ties
    wanted = [[slow.p_value(reference[:, b].numpy(), float(v[b])) for b in range(3)] for v in values]
    assert_close(conformal(reference, values), torch.tensor(wanted, dtype=torch.float64), 1e-14)
    own, given = (slow.evidences(reference.numpy(), v) for v in (None, values.numpy()))
    for how, score in (("fisher", slow.fisher), ("smallest", slow.smallest), ("cauchy", slow.cauchy)):
        mine, theirs = reference_scores(reference, values, how)
        assert_close(mine, torch.tensor([score(e) for e in own], dtype=torch.float64), 1e-9)
        assert_close(theirs, torch.tensor([score(e) for e in given], dtype=torch.float64), 1e-9)
        p = [slow.p_value(mine.numpy(), float(s)) for s in theirs]
        assert_close(combined(reference, values, how)[1], torch.tensor(p, dtype=torch.float64), 1e-14)


def test_the_likelihood_ratio_is_that_of_all_subsets() -> None:
    g = torch.Generator().manual_seed(8)
    z = 3 * torch.randn(40, 5, generator=g, dtype=torch.float64)
    z[0] = -1.0
    mixed = torch.randn(200, 5, generator=g, dtype=torch.float64) @ torch.randn(5, 5, generator=g, dtype=torch.float64)
    correlation = 0.8 * torch.corrcoef(mixed.T) + 0.2 * torch.eye(5, dtype=torch.float64)
    wanted = [slow.shifted_up(row, correlation.numpy()) for row in z.numpy()]
    assert_close(shifted_up(z, correlation), torch.tensor(wanted, dtype=torch.float64), 1e-8, 1e-8)
    alone = shifted_up(z, torch.eye(5, dtype=torch.float64))
    assert_close(alone, z.clamp(min=0).square().sum(1), 1e-12)


def test_gauss_counts_copies_of_a_layer_less_than_fisher() -> None:
    g = torch.Generator().manual_seed(8)
    reference, values = (torch.rand(n, 2, generator=g, dtype=torch.float64) for n in (2000, 200))
    copies = [torch.cat([t[:, :1]] * 6 + [t[:, 1:]], 1) for t in (reference, values)]
    kept = {}
    for how in ("gauss", "fisher"):
        once, often = combined(reference, values, how)[1], combined(*copies, how)[1]
        kept[how] = float(np.corrcoef(once.log(), often.log())[0, 1])
    assert kept["gauss"] > 0.9 > kept["fisher"]


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full"])
def test_the_prior_of_novelty_leaves_what_it_says(structure: str) -> None:
    """tr[H (s H + δ D)⁻¹] / tr[H (δ D)⁻¹] by dense matrices, for every layer, or together where they are correlated."""
    torch.manual_seed(0)
    x, y = data(40)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    posterior = whence.laplace(model, (x.double(), y), likelihood="classification", structure=structure, progress=False)
    for scale in (1.0, 7.0):
        scaled = posterior.with_data_scale(scale)
        weak = with_novelty_prior(scaled, novelty_precision(scaled, 0.03))
        covariance, flat = weak.covariance(), weak.prior.flat([p for b in weak.blocks for p in b.params])
        precision = torch.linalg.inv(covariance)
        groups = [slice(0, 43)] if structure == "full" else [slice(0, 25), slice(25, 43)]
        for group in groups:
            curvature = (precision[group, group] - flat[group].diag()) / scale
            left = (curvature @ covariance[group, group]).trace() / (curvature / flat[group]).trace()
            assert_close(left, torch.tensor(0.03, dtype=torch.float64), 1e-6)


def test_neither_the_prior_precision_nor_the_data_scale_changes_it() -> None:
    posterior, draw = trained("mlp")
    x, _ = draw(50, 9)
    first, _ = unexplained_by_layer(posterior, x, novelty_precision(posterior))
    for other in (posterior.with_prior(1e4), posterior.with_prior(1e-3).with_data_scale(5.0)):
        assert_close(unexplained_by_layer(other, x, novelty_precision(other))[0], first, 1e-4)
        assert_close(unexplained_by_layer(other, x, novelty_precision(posterior))[0], first, 1e-4)
        assert not torch.allclose(shares(other, x).unexplained, first, rtol=0.1)


def test_for_one_output_it_is_a_ridge_leverage() -> None:
    """u = σ²δ · aᵀ(AᵀA + σ²δ)⁻¹a / ‖a‖²: the leverage of the layer's input, over its squared length."""
    g = torch.Generator().manual_seed(1)
    a = torch.randn(30, 5, generator=g, dtype=torch.float64)
    model, sigma = nn.Linear(5, 1, bias=False).double(), 0.5
    posterior = whence.laplace(
        model, (a, a[:, :1]), likelihood=whence.Gaussian(noise=sigma), prior_precision=2.0, progress=False
    )
    x = torch.randn(8, 5, generator=g, dtype=torch.float64)
    ridge = sigma**2 * 2.0
    inverse = torch.linalg.inv(a.mT @ a + ridge * torch.eye(5, dtype=torch.float64))
    leverage = (x @ inverse * x).sum(1)
    assert_close(shares(posterior, x).unexplained[:, 0], ridge * leverage / x.square().sum(1), 1e-8)
    assert_close(shares(posterior, 3 * x).unexplained, shares(posterior, x).unexplained, 1e-8)  # length does not count


@pytest.mark.parametrize("name", ["mlp", "conv", "attention"])
@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag"])
def test_every_layer_kind(name: str, structure: str) -> None:
    posterior, draw = trained(name, structure)
    found = novelty(posterior, draw(7, 3)[0], reference=draw(120, 1))
    assert found.names == tuple(b.name for b in posterior.blocks)
    for tensor in (found.unexplained, found.p_values, found.score, found.p_value):
        assert bool(torch.isfinite(tensor).all()) and tensor.dtype == torch.float64
    assert float(found.p_values.min()) >= 1 / 121 and float(found.p_values.max()) <= 1
    assert float(found.unexplained.min()) > 0 and float(found.unexplained.max()) <= 1 + 1e-6


def test_layers_that_never_differ_say_nothing() -> None:
    reference = torch.full((200, 3), 0.2, dtype=torch.float64)
    reference[:, 0] = torch.rand(200, dtype=torch.float64)
    values = reference[:10] + torch.tensor([0.0, 1e-9, -1e-9], dtype=torch.float64)
    for how in COMBINATIONS:
        own, score = reference_scores(reference, values, how)
        assert bool(torch.isfinite(own).all() & torch.isfinite(score).all())
    assert float(combined(reference, values, "gauss")[1].min()) > 0.01


def test_an_input_that_switches_a_layer_off_is_not_familiar() -> None:
    """All gradients of the first layer vanish, so that the ratio is 0 / 0."""
    torch.manual_seed(0)
    x, y = data(200)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    posterior = whence.laplace(model, (x, y), likelihood="classification", progress=False)
    found = novelty(posterior, torch.full((1, 4), 1e6), reference=x)
    assert float(found.unexplained[0, 0]) == 1 and float(found.p_values[0, 0]) == 1 / 201
    assert bool(found.flag(0.01)[0])


def known() -> Novelty:
    reference = Reference(
        ("first", "second"), torch.linspace(0.1, 0.9, 999, dtype=torch.float64).repeat(2, 1).T, (1, 1)
    )
    u = torch.tensor([[0.95, 0.5], [0.5, 0.5], [0.897, 0.95], [0.95, 0.95]], dtype=torch.float64)
    p = conformal(reference.unexplained, u)
    overall_p = torch.tensor([0.001, 0.6, 0.002, 0.001], dtype=torch.float64)
    score = torch.tensor([9.0, 1, 8, 12], dtype=torch.float64)
    return Novelty(reference.names, u, p, score, overall_p, reference, "gauss")


def test_words_and_tables() -> None:
    found = known()
    assert found.layer == ("first", "first", "second", "first")
    assert found.flag().tolist() == [True, False, True, True]
    assert found.words(0) == "input 0 differs from the training data (p = 0.001), most in layer `first` (p = 0.001)."
    assert found.words(1) == "input 1 is not flagged as novel (p = 0.60 over all layers)."
    second = "most in layer `second` (p = 0.001). It is noticed as early as layer `first` (p = 0.005)."
    assert second in found.words(2)
    assert found.words(-1).endswith("most in `first` and 1 more layer (all with p = 0.001).")
    assert "3 of 4 inputs have p ≤ 0.01 (about 0 would if none were novel; 999 reference inputs" in str(found)
    assert found.describe().splitlines()[-3:] == [found.words(3), found.words(0), found.words(2)]
    frame = found.to_pandas()
    assert len(frame) == len(found) == 4
    assert (
        frame["layer"][2] == "second" and frame["p_value:second"][2] == 0.001 and frame["unexplained:first"][1] == 0.5
    )


def test_the_reference_is_kept_in_mind_and_may_be_a_loader_or_a_pair() -> None:
    posterior, draw = trained("mlp")
    x, y = draw(150, 1)
    made = reference_of(posterior, x)
    for other in ((x, y), [(x[:70], y[:70]), (x[70:], y[70:])], x.numpy(), iter([(x, y)])):
        assert_close(reference_of(posterior, other).unexplained, made.unexplained, 1e-5)
    tuned = replace(posterior)
    object.__setattr__(tuned, "reference", made)
    asked = draw(5, 2)[0]
    wanted = novelty(posterior, asked, reference=x).p_value
    assert torch.equal(novelty(tuned, asked).p_value, wanted)
    assert torch.equal(novelty(posterior, asked, reference=replace(made, precision=())).p_value, wanted)


def test_nothing_is_changed() -> None:
    model = Busy()
    x, y = data()
    with untouched(model):
        posterior = whence.laplace(model, (x, y), likelihood="classification", progress=False)
        before = posterior.variance(), posterior.prior_precision
        with pytest.warns(Notice, match="24 inputs"):
            novelty(posterior, x, reference=x)
    assert before[1] == posterior.prior_precision
    for name, value in posterior.variance().items():
        assert torch.equal(value, before[0][name])


def test_errors() -> None:
    posterior, draw = trained("mlp")
    x, _ = draw(120, 1)
    with pytest.raises(NotDefined, match="tune it on validation data, or pass reference="):
        novelty(replace(posterior), x)
    with pytest.raises(BadOption, match=r"unknown combine 'fischer'. Did you mean 'fisher'\?"):
        novelty(posterior, x, reference=x, combine="fischer")  # type: ignore[arg-type]
    made = reference_of(posterior, x)
    with pytest.raises(BadOption, match="has the layers 'conv'"):
        novelty(posterior, x, reference=replace(made, names=("conv",)))
    with pytest.raises(BadOption, match="other weights"):
        novelty(posterior, x, reference=replace(made, network="0"))
    with pytest.raises(BadData, match="at least two inputs, not 1"):
        reference_of(posterior, x[:1])
    with pytest.raises(BadOption, match=r"left=1 is not in \(0, 1\)"):
        reference_of(posterior, x, left=1)
    found = novelty(posterior, x, reference=made)
    with pytest.raises(BadOption, match=r"level=0.001 is not in 0.0083..1: 120 reference inputs"):
        found.flag(0.001)
    with pytest.raises(BadOption, match="there is no input 120 among 120"):
        found.words(120)
    with pytest.raises(BadOption, match="is a str, not a posterior"):
        reference_of("posterior", x)  # type: ignore[arg-type]
