"""Which outputs a profile is of, and random columns in their place, beside dense Jacobians."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.errors import BadOption, NotDefined, Notice
from whence.where.one_pass import shares
from whence.where.question import Question

STRUCTURES = ("kron", "ekfac", "diag", "block", "full", "lowrank")


class Tokens(nn.Module):
    """[N, T] → [N, T, C]."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 5)
        self.head = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.table(x))).cumsum(1))


def fitted(name: str, structure: str = "kron") -> tuple[Any, Tensor]:
    """A posterior and inputs: a map of classes, tokens, a map of numbers, several labels, and plain classes."""
    torch.manual_seed(0)
    n = 12
    if name == "tokens":
        net: nn.Module = Tokens()
        x, y = torch.randint(7, (n, 4)), torch.randint(3, (n, 4))
        likelihood: Any = whence.Categorical(class_dim=-1)
    elif name in ("map", "numbers"):
        net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4 if name == "map" else 2, 1))
        x = torch.randn(n, 1, 3, 4)
        y = torch.randint(4, (n, 3, 4)) if name == "map" else torch.randn(n, 2, 3, 4)
        likelihood = "classification" if name == "map" else "regression"
    else:
        net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 8))
        x = torch.randn(n, 3)
        y = torch.randint(8, (n,)) if name == "classes" else torch.randint(2, (n, 8)).float()
        likelihood = "classification" if name == "classes" else "binary"
    net = net.double()
    x = x if x.dtype == torch.long else x.double()
    y = y.double() if y.is_floating_point() else y
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        posterior = whence.laplace(
            net, (x, y), likelihood=likelihood, structure=structure, prior_precision=1.0, rank=6, progress=False
        )
    return posterior, x[:3]


def jacobian(posterior: Any, x: Tensor) -> Tensor:
    """d outputs / d weights, [N, *outputs, P], by torch."""
    params = {n: posterior.network.params[n].detach() for n in posterior.names()}
    found = torch.func.jacrev(lambda p: posterior.network.functional(p, x))(params)
    outputs = posterior.network(x).shape
    return torch.cat([found[n].reshape(*outputs, -1) for n in params], -1).detach()


def by_hand(posterior: Any, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """tr V_b of every input and layer under posterior and prior, [2, N, B]; ``mask`` is over targets."""
    rows = jacobian(posterior, x)
    likelihood = posterior.likelihood
    if likelihood.shift_invariant:
        dim = likelihood.class_dim if likelihood.class_dim == 1 else rows.dim() - 2
        rows = rows - rows.mean(dim, keepdim=True)
        rows = rows if mask is None else rows * mask.unsqueeze(dim).unsqueeze(-1)
    else:
        rows = rows if mask is None else rows * mask.unsqueeze(-1)
    rows = rows.flatten(1, -2)  # [N, K, P]
    found = []
    prior = torch.cat([v.flatten() for v in posterior.prior_variance().values()]).diag()
    for covariance in (posterior.covariance(), prior):
        weights = (rows * (rows @ covariance)).sum(1)  # J_p (Σ Jᵀ)_p, [N, P]
        layers = [sum(posterior.network.params[n].numel() for n in names) for names in posterior.layers().values()]
        found.append(torch.stack([part.sum(1) for part in weights.split(layers, 1)], 1))
    return found[0], found[1]


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", ["tokens", "map", "numbers", "labels", "classes"])
def test_dense_outputs_beside_the_dense_jacobian(name: str, structure: str) -> None:
    posterior, x = fitted(name, structure)
    where = posterior.where(x, probes="exact")
    variance, prior = by_hand(posterior, x)
    torch.testing.assert_close(where.shares.variance, variance)
    torch.testing.assert_close(where.shares.prior, prior)
    sums = torch.stack([where.units(name)["variance_share"].sum() for name in where.shares.names])
    torch.testing.assert_close(sums, variance.sum(0) / variance.sum())


@pytest.mark.parametrize(
    ("name", "at", "index"),
    [
        ("tokens", 2, (2,)),
        ("tokens", slice(1, 3), (slice(1, 3),)),
        ("map", (1, 2), (1, 2)),
        ("map", (slice(0, 2), 3), (slice(0, 2), 3)),
        ("numbers", (0, 1, 2), (0, 1, 2)),
        ("labels", [1, 4], ([1, 4],)),
    ],
)
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_some_targets(name: str, at: Any, index: Any, structure: str) -> None:
    posterior, x = fitted(name, structure)
    shape = {"tokens": (4,), "map": (3, 4), "numbers": (2, 3, 4), "labels": (8,)}[name]
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[index] = True
    wanted = by_hand(posterior, x, mask.expand(len(x), *shape))[0]
    for asked in (at, mask, mask.expand(len(x), *shape)):
        torch.testing.assert_close(posterior.where(x, at=asked, probes="exact").shares.variance, wanted)


def test_one_region_for_each_input_and_in_any_batch() -> None:
    posterior, x = fitted("map")
    mask = torch.rand(len(x), 3, 4, generator=torch.Generator().manual_seed(3)) < 0.4
    wanted = by_hand(posterior, x, mask)[0]
    found = posterior.where(x, at=mask)
    torch.testing.assert_close(found.shares.variance, wanted)
    torch.testing.assert_close(posterior.where([x[:1], x[1:]], at=mask).shares.variance, wanted)
    units = found.units("0")["variance_share"]
    torch.testing.assert_close(found.connections("0")["variance_share"].sum(), torch.as_tensor(units).sum())


def test_information_of_a_map() -> None:
    """½ tr(Λ V) of all pixels."""
    posterior, x = fitted("map", "block")
    rows = jacobian(posterior, x).movedim(1, -2)  # [N, H, W, C, P]
    p = posterior.network(x).softmax(1).movedim(1, -1).detach()
    hessian = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    cov = rows @ posterior.covariance() @ rows.mT
    wanted = (hessian * cov).sum((1, 2, 3, 4)) / 2
    torch.testing.assert_close(posterior.where(x, measure="information").shares.total, wanted)


# Random columns


@pytest.mark.parametrize("structure", ["kron", "diag", "block", "full", "lowrank"])
@pytest.mark.parametrize("name", ["map", "tokens", "numbers", "classes"])
def test_random_columns_are_unbiased_and_their_errors_hold(name: str, structure: str) -> None:
    """Over 60 seeds: the mean is exact, and so are the standard errors, within what 60 seeds can tell."""
    posterior, x = fitted(name, structure)
    exact = shares(posterior, x, Question(probes="exact"), units=True)
    wanted, trials = exact.over_inputs(), 60
    found = [shares(posterior, x, Question(probes=4, seed=s), units=True) for s in range(trials)]
    sums = torch.stack([f.variance.sum(0) for f in found])
    error = sums.std(0) / trials**0.5
    assert bool(((sums.mean(0) - wanted.variance).abs() < 4.5 * error + 1e-12).all())
    for of in ("variance_share", "explained"):
        values = torch.stack([getattr(f.over_inputs(), of) for f in found])
        stated = torch.stack([getattr(f.over_inputs(), f"{of}_error") for f in found])
        actual = (values - getattr(wanted, of)).square().mean(0).sqrt()
        ratio = stated.square().mean(0).sqrt() / actual
        assert bool(((ratio > 0.6) & (ratio < 1.6)).all()), (of, ratio)
    layer = exact.names[0]
    total = float(exact.variance.sum())
    units = torch.stack([f.units[layer].variance / f.variance.sum() for f in found])
    stated = torch.stack([f.units[layer].share_error for f in found]).square().mean(0).sqrt()
    actual = (units - exact.units[layer].variance / total).square().mean(0).sqrt()
    large = actual > 1e-6
    ratio = stated[large] / actual[large]
    assert bool(((ratio > 0.5) & (ratio < 1.8)).all()), ratio


def test_columns_belong_to_an_input_and_not_to_its_batch() -> None:
    posterior, x = fitted("map")
    whole = shares(posterior, x, Question(probes=3)).variance
    torch.testing.assert_close(shares(posterior, [x[:2], x[2:]], Question(probes=3)).variance, whole)
    assert not torch.allclose(shares(posterior, x, Question(probes=3, seed=1)).variance, whole)
    same = shares(posterior, x[:1].expand(3, -1, -1, -1), Question(probes=3)).variance
    assert not torch.allclose(same[0], same[1])
    common = shares(posterior, x[:1].expand(3, -1, -1, -1), Question(probes=3, same_columns=True)).variance
    torch.testing.assert_close(common[0], common[1])


def test_the_choice_is_made_by_cost_and_said(set_sizes: Any) -> None:
    posterior, x = fitted("map")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert posterior.where(x).question.probes == "exact"
    set_sizes(exact=1)
    with pytest.warns(Notice, match=r"16 random columns for each input instead of all 48 outputs .* probes='exact'"):
        found = posterior.where(x)
    assert found.question.random_columns == 16 and all(row.variance_share_error > 0 for row in found.layers)
    assert "± error" in str(found) and "variance_share_error" in found.units("0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert posterior.where(x, at=(0, 0)).question.probes == "exact", "few outputs are never random"
        assert found.sensitivity()["variance_share"]
    few, x = fitted("classes")
    assert few.where(x, probes=7).question.probes == "exact", "seven columns are as many as eight centred classes have"
    assert few.where(x, probes=6).question.random_columns == 6


def test_outputs_that_would_fill_the_memory_are_not_all_differentiated(set_sizes: Any) -> None:
    posterior, x = fitted("map")
    set_sizes(exact_memory=1)
    with pytest.warns(Notice, match="16 random columns for each input instead of all 48 outputs"):
        assert posterior.where(x).question.random_columns == 16


def test_masks_that_differ_from_input_to_input(set_sizes: Any) -> None:
    """Each input has columns for its own targets alone, and the largest mask decides whether that is too much."""
    posterior, _ = fitted("map")
    x = torch.randn(12, 1, 3, 4, dtype=torch.float64)
    one_each = torch.eye(12, dtype=torch.bool).reshape(12, 3, 4)
    asked = Question(at=one_each, probes="exact")
    assert asked.columns(posterior.likelihood, posterior.network(x).detach()).shape[0] == 4
    torch.testing.assert_close(posterior.where(x, at=one_each).shares.variance, by_hand(posterior, x, one_each)[0])
    information = posterior.where(x, at=one_each, measure="information").shares.total
    alone = [posterior.where(x[i : i + 1], at=one_each[i], measure="information").shares.total for i in range(12)]
    torch.testing.assert_close(information, torch.cat(alone))
    grown = torch.zeros(12, 3, 4, dtype=torch.bool)
    grown[1:] = True
    set_sizes(exact=1)
    with pytest.warns(Notice, match="instead of all 48 outputs"):
        found = posterior.where(x, at=grown.numpy())
    assert float(found.shares.total[0]) == 0
    with pytest.raises(BadOption, match="12 masks for 3 inputs"):
        posterior.where(x[:3], at=one_each)
    for wrong in (torch.zeros(3, 4, dtype=torch.bool), True, torch.ones(3, 4)):
        with pytest.raises(BadOption, match="at="):
            posterior.where(x, at=wrong)


def test_a_layer_that_reaches_no_output_explains_nothing() -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x) + 0 * self.unused(x)

    x, y = torch.randn(20, 3), torch.randint(2, (20,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        found = whence.laplace(Apart(), (x, y), likelihood="classification", progress=False).where(x[:4])
    rows = {row.name: row.explained for row in found.layers}
    assert rows["unused"] == 0
    table = found.by_input()
    assert all(e == 0 for name, e in zip(table["name"], table["explained"], strict=True) if name == "unused")


def test_information_of_two_outputs_for_each_number() -> None:
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    net = nn.Linear(3, 4)
    posterior = whence.laplace(net, (x, y), likelihood=whence.HeteroscedasticGaussian(), progress=False)
    assert bool((posterior.where(x[:3], measure="information").shares.total > 0).all())


def test_novelty_with_the_same_columns_for_all() -> None:
    posterior, x = fitted("map")
    data = torch.randn(110, 1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    reference = whence.reference_of(posterior, data, probes=5)
    assert reference.probes == 5
    whole = whence.novelty(posterior, x, reference=reference)
    alone = whence.novelty(posterior, x[1:2], reference=reference)
    torch.testing.assert_close(alone.unexplained[0], whole.unexplained[1])
    exact = whence.novelty(posterior, x, reference=data, probes="exact")
    assert exact.reference.probes == 0
    torch.testing.assert_close(whole.unexplained, exact.unexplained, rtol=0.5, atol=0.1)
    with pytest.raises(BadOption, match="probes='exact': the reference has 5"):
        whence.novelty(posterior, x, reference=reference, probes="exact")


def test_a_reference_with_random_columns_is_saved(tmp_path: Any) -> None:
    posterior, x = fitted("tokens")
    tuned = posterior.tune(progress=False)
    kept = whence.reference_of(tuned, torch.randint(7, (100, 4)), probes=4)
    from dataclasses import replace

    held = replace(tuned, reference=kept)
    held.save(tmp_path / "p.safetensors")
    again = whence.load(tmp_path / "p.safetensors", posterior.network.module)
    assert again.reference.probes == 4
    torch.testing.assert_close(whence.novelty(again, x).p_value, whence.novelty(held, x).p_value)


@pytest.mark.parametrize("probes", [0, 1, True, "many", 2.5])
def test_bad_probes(probes: Any) -> None:
    posterior, x = fitted("classes")
    with pytest.raises(BadOption, match="must be 'auto', 'exact', or a whole number"):
        posterior.where(x, probes=probes)


def test_bad_targets() -> None:
    posterior, x = fitted("map")
    with pytest.raises(BadOption, match=r"mask of shape \[4, 3\].*targets of an input have shape \[3, 4\]"):
        posterior.where(x, at=torch.ones(4, 3, dtype=torch.bool))
    with pytest.raises(BadOption, match=r"at=\(9, 0\) is no index"):
        posterior.where(x, at=(9, 0))
    with pytest.raises(BadOption, match="selects none"):
        posterior.where(x, at=(slice(2, 2), 0))
    classes, x = fitted("classes")
    with pytest.raises(BadOption, match="here it has one"):
        classes.where(x, at=0)
    ensemble = whence.ensemble([nn.Linear(3, 2), nn.Linear(3, 2)], likelihood="classification")
    with pytest.raises(NotDefined, match="at=0 needs"):
        ensemble.where(torch.randn(4, 3), at=0)
    with pytest.raises(NotDefined, match="probes=4 needs"):
        ensemble.where(torch.randn(4, 3), probes=4)


class Sentences(nn.Module):
    """Four numbers for each sentence of four tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 5), nn.Linear(5, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        rows = self.table(input_ids).tanh() * attention_mask.unsqueeze(-1)
        return self.head(rows.sum(1))


def test_as_many_outputs_as_tokens_are_not_taken_for_positions() -> None:
    torch.manual_seed(0)
    ids, mask = torch.randint(9, (6, 4)), torch.tensor([[1, 1, 1, 0]]).expand(6, 4)
    model, inputs = Sentences().double(), {"input_ids": ids, "attention_mask": mask}
    posterior = whence.laplace(model, (inputs, torch.randn(6, 4, dtype=torch.float64)), likelihood="gaussian:1.0")
    found = posterior.where(inputs)
    assert sum(row.variance_share for row in found.layers) == pytest.approx(1)
    head = posterior.where(inputs, at=torch.ones(4, dtype=torch.bool))
    assert found.layers[0].variance_share == pytest.approx(head.layers[0].variance_share)
