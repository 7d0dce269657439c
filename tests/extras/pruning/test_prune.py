"""Pruning: scores against dense matrices, masks that are exact."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune as torch_prune

import whence
from tests.errors.watch import refused, state_of, untouched
from tests.extras.pruning.cases import CRITERIA, data, fitted, masks, mlp, scores, vector
from whence import errors, zoo
from whence.extras.pruning.curve import prune_curve
from whence.extras.pruning.masks import prunable, prune

# Scores


@pytest.mark.parametrize("structure", ["full", "diag", "kron", "block", "lowrank", "ekfac"])
@pytest.mark.parametrize("prior", [0.7, whence.Prior(weight=0.5, bias=2.0), {"0": 0.5, "2": 3.0, "*": 1.5}])
def test_scores_are_those_of_the_dense_covariance(structure: str, prior) -> None:
    if structure == "ekfac" and isinstance(prior, whence.Prior):
        pytest.skip("ekfac takes one prior precision for a layer")
    model = mlp()
    posterior = fitted(model, structure, prior_precision=prior).with_data_scale(1.7)
    cov = posterior.covariance()
    names = posterior.names()
    delta = vector({n: torch.full_like(p, _precision(prior, n)) for n, p in model.named_parameters()})
    w = nn.utils.parameters_to_vector(model.parameters()).detach()
    expected = {
        "snr": w.abs() / cov.diagonal().sqrt(),
        "identified": 1 - cov.diagonal() * delta,
        "saliency": 0.5 * w**2 * (torch.linalg.inv(cov) - torch.diag(delta)).diagonal(),
        "magnitude": w.abs(),
    }
    sizes = [p.numel() for p in model.parameters()]
    for by, all_scores in expected.items():
        found = scores(posterior, prunable(posterior), by)
        assert list(found) == [n for n in names if n.endswith("weight")]
        for name, piece in zip(names, all_scores.split(sizes), strict=True):
            if name in found:
                torch.testing.assert_close(found[name].flatten(), piece, rtol=1e-7, atol=1e-9)


def _precision(prior, name: str) -> float:
    if isinstance(prior, dict):
        return prior.get(name.partition(".")[0], prior["*"])
    return prior if isinstance(prior, float) else (prior.bias if name.endswith("bias") else prior.weight)


def test_saliency_of_a_diagonal_is_the_gauss_newton_matrix() -> None:
    """H_ii = Σ over examples and classes of p_c (∂f_c − Σ p ∂f)², from autograd alone."""
    model, (x, y) = mlp(), data(12)
    posterior = fitted(model, "diag", (x, y))
    weight = model[2].weight
    expected = torch.zeros_like(weight)
    for example in x:
        logits = model(example)
        p = logits.softmax(-1).detach()
        rows = torch.stack([torch.autograd.grad(logits[c], weight, retain_graph=True)[0] for c in range(3)])
        centred = rows - (p[:, None, None] * rows).sum(0)
        expected += (p[:, None, None] * centred**2).sum(0)
    found = scores(posterior, ["2.weight"], "saliency")["2.weight"]
    torch.testing.assert_close(found, 0.5 * weight.detach() ** 2 * expected)


def test_random_is_seeded() -> None:
    posterior = fitted(mlp())
    one, two, other = (masks(prune(posterior, 0.5, by="random", seed=s)) for s in (3, 3, 4))
    assert all(torch.equal(one[n], two[n]) for n in one)
    assert any(not torch.equal(one[n], other[n]) for n in one)


# Masks of weights


@pytest.mark.parametrize("by", CRITERIA)
@pytest.mark.parametrize("fraction", [0, 0.1, 0.37, 0.9])
def test_the_lowest_scores_go_and_exactly_as_many_as_asked(by: str, fraction: float) -> None:
    model = mlp()
    posterior = fitted(model, "kron")
    pruned = prune(posterior, fraction, by=by)
    found = masks(pruned)
    assert list(found) == ["0.weight_mask", "2.weight_mask", "4.weight_mask"]
    total = 24 + 30 + 15
    assert sum(int((m == 0).sum()) for m in found.values()) == round(fraction * total)
    score = vector(scores(posterior, prunable(posterior), by))
    gone = vector(found) == 0
    if gone.any():
        assert float(score[gone].max()) <= float(score[~gone].min())
    for name, p in model.named_parameters():
        owner, _, kind = name.rpartition(".")
        after = pruned.get_submodule(owner)
        if kind == "bias":
            assert torch.equal(after.bias, p)
        else:
            stays = found[f"{name}_mask"].bool()
            assert torch.equal(after.weight[stays], p[stays])
            assert not after.weight[~stays].any()


def test_of_each_layer() -> None:
    found = masks(prune(fitted(mlp()), 0.4, per_layer=True))
    assert [int((m == 0).sum()) for m in found.values()] == [round(0.4 * n) for n in (24, 30, 15)]


def test_ties_go_by_index() -> None:
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 3, bias=False)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.5)
    found = masks(prune(fitted(model), 8 / 21, by="magnitude"))
    assert vector(found).tolist() == [0.0] * 8 + [1.0] * 13


def test_nothing_else_is_touched() -> None:
    model = mlp()
    posterior = fitted(model, "kron")
    before = state_of(posterior.network.module)
    x, y = data()
    with untouched(model), untouched(posterior.network.module):
        prune(posterior, 0.5)
        pruned = prune(posterior, 0.5, units=True)
        prune_curve(posterior, (x, y), fractions=(0, 0.5), progress=False)
        with torch.no_grad():
            for p in pruned.parameters():
                p.add_(1.0)
    assert before.keys() == state_of(posterior.network.module).keys()


def test_it_is_a_plain_module_with_masks_that_can_be_made_permanent() -> None:
    posterior = fitted(mlp())
    pruned = prune(posterior, 0.5)
    assert type(pruned) is nn.Sequential and torch_prune.is_pruned(pruned) and not pruned.training
    x = data()[0]
    before = copy.deepcopy(pruned)(x)
    pruned(x).sum().backward()  # it can be trained further; masked weights get no gradient
    grad, mask = pruned[0].weight_orig.grad, pruned[0].weight_mask
    assert grad is not None and not grad[mask == 0].any() and grad[mask == 1].any()
    for layer in (pruned[0], pruned[2], pruned[4]):
        torch_prune.remove(layer, "weight")
    assert not torch_prune.is_pruned(pruned)
    assert not masks(pruned) and set(pruned.state_dict()) == set(mlp().state_dict())
    assert sum(int((p == 0).sum()) for p in pruned.parameters()) == round(0.5 * 69)
    torch.testing.assert_close(pruned(x), before)


def test_only_layers_of_the_posterior_and_of_the_choice() -> None:
    last = fitted(mlp(), "full", layers="last")
    assert list(masks(prune(last, 0.4))) == ["4.weight_mask"]
    with refused(errors.NothingSelected, "output layer", "units=False"):
        prune(last, 0.4, units=True)
    every = fitted(mlp())
    assert list(masks(prune(every, 0.4, layers="last"))) == ["4.weight_mask"]
    assert list(masks(prune(every, 0.4, layers=["0", "2"]))) == ["0.weight_mask", "2.weight_mask"]
    assert list(masks(prune(every, 0.4, layers=lambda name, p: name.startswith("2")))) == ["2.weight_mask"]
    assert list(masks(prune(every, 0.4, units=True, layers=["0"]))) == ["0.weight_mask", "0.bias_mask"]


# Units


def dead_unit(unit: int = 3) -> nn.Sequential:
    """Nothing reads this unit of the first layer, whose own weights are the largest."""
    model = mlp()
    with torch.no_grad():
        model[2].weight[:, unit] = 0.0
        model[0].weight[unit] = 5.0
    return model


@pytest.mark.parametrize("structure", ["full", "diag", "kron"])
def test_a_dead_unit_is_not_identified_and_goes_first(structure: str) -> None:
    posterior = fitted(dead_unit(), structure)
    found = scores(posterior, ["0.weight"], "identified")["0.weight"]
    assert float(found[3].abs().max()) < 1e-8 and float(found[[0, 1, 2, 4, 5]].min()) > 1e-4
    pruned = prune(posterior, 1 / 11, by="identified", units=True)
    found = masks(pruned)
    assert found["0.weight_mask"].sum(1).tolist() == [4.0, 4.0, 4.0, 0.0, 4.0, 4.0]
    assert found["0.bias_mask"].tolist() == [1.0, 1.0, 1.0, 0.0, 1.0, 1.0]
    assert bool(found["2.weight_mask"].all()) and bool(found["2.bias_mask"].all())
    x = data()[0]
    torch.testing.assert_close(pruned(x), posterior.network.module(x))  # nothing read it
    kept = masks(prune(posterior, 1 / 11, by="magnitude", units=True))
    assert bool(kept["0.weight_mask"][3].all())  # by magnitude it would be the last


@pytest.mark.parametrize("by", CRITERIA)
def test_units_by_their_mean_or_sum(by: str) -> None:
    model = nn.Sequential(nn.Linear(20, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    posterior = fitted(model, "kron", data(inputs=20))
    score = scores(posterior, ["0.weight", "2.weight"], by)
    rows = torch.cat([s.sum(1) if by == "saliency" else s.sum(1) / s.shape[1] for s in score.values()])
    for count in range(1, 8):
        found = masks(prune(posterior, count / 11, by=by, units=True))
        assert set(found) == {"0.weight_mask", "0.bias_mask", "2.weight_mask", "2.bias_mask"}
        units = torch.cat([found["0.bias_mask"], found["2.bias_mask"]])
        assert int((units == 0).sum()) == count
        best = [int(rows[:6].argmax()), 6 + int(rows[6:].argmax())]  # they stay in any case
        others = [i for i in range(11) if i not in best and units[i]]
        if by != "random":
            assert float(rows[units == 0].max()) <= float(rows[others].min())
        for name in ("0", "2"):
            expected = found[f"{name}.bias_mask"].unsqueeze(1).expand_as(found[f"{name}.weight_mask"])
            assert torch.equal(found[f"{name}.weight_mask"], expected)


def test_every_layer_keeps_a_unit() -> None:
    posterior = fitted(mlp())
    for per_layer in (False, True):
        found = masks(prune(posterior, 0.99, units=True, per_layer=per_layer))
        assert [int(found[f"{n}.bias_mask"].sum()) for n in ("0", "2")] == [1, 1]


class Convolutions(nn.Module):
    """Channels first, batch norm after an activation as well, a transposed convolution in groups, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.first = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 4, 2, groups=2)
        self.late = nn.BatchNorm2d(4)
        self.other = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = self.late(torch.relu(self.up(x))).mean((2, 3))
        return self.head(x) + self.other(x)


def test_units_with_their_batch_norm_are_zero_behind_it() -> None:
    model = Convolutions().double().eval()
    for norm in (model.norm, model.late):
        nn.init.normal_(norm.running_mean)
        nn.init.normal_(norm.bias)
    x, y = torch.randn(20, 1, 6, 6, dtype=torch.float64), torch.arange(20) % 3
    pruned = prune(fitted(model, "diag", (x, y)), 0.5, units=True, per_layer=True)
    assert {n for n in masks(pruned) if "head" in n or "other" in n} == set()
    inner = F.relu(pruned.norm(pruned.first(x)))
    gone = pruned.first.bias_mask == 0
    assert int(gone.sum()) == 2 and not inner[:, gone].any() and bool(inner[:, ~gone].any())
    up = pruned.up(inner)
    gone = pruned.up.bias_mask == 0
    assert int(gone.sum()) == 2 and not up[:, gone].any()  # rows of a transposed convolution in groups
    late = pruned.late(torch.relu(up))
    assert not late[:, gone].any() and bool(late[:, ~gone].any())
    assert int((pruned.up.weight_mask == 0).sum()) == 2 * 2 * 4


# Left out, refused


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_tied_weights_are_left_out_with_a_notice() -> None:
    posterior = fitted(Tied().double())
    with pytest.warns(errors.Notice, match=r"not pruned: first\.weight \(tied\)"):
        assert list(masks(prune(posterior, 0.5))) == ["head.weight_mask"]


def test_attention_is_left_out_with_a_notice() -> None:
    network = zoo.networks.transformer((1, 8, 8), 3, units=8, heads=2, depth=1).double()
    x, y = torch.randn(6, 1, 8, 8, dtype=torch.float64), torch.arange(6) % 3
    posterior = fitted(network, "diag", (x, y))
    with pytest.warns(errors.Notice, match="in_proj_weight.*MultiheadAttention.*out_proj"):
        pruned = prune(posterior, 0.5)
    assert not any("attn" in name for name in masks(pruned)) and "head.weight_mask" in masks(pruned)
    with (
        pytest.warns(errors.Notice, match="not pruned"),
        pytest.warns(errors.Notice, match="could not be traced.*'head', the last layer"),
    ):
        found = masks(prune(posterior, 0.5, units=True))
    assert "head.weight_mask" not in found and "encoder.layers.0.linear1.bias_mask" in found


def test_unknown_wiring_with_batch_norm_is_refused_for_units() -> None:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.norm(self.a(x))) if len(x) > 0 else x

    posterior = fitted(Turns().double())
    prune(posterior, 0.5)
    with refused(errors.UnsupportedLayer, "could not be traced", "batch norm", "units=False"):
        prune(posterior, 0.5, units=True)


def test_options_are_refused_in_words() -> None:
    posterior = fitted(mlp())
    with refused(errors.BadOption, "unknown by 'salience'", "'saliency'"):
        prune(posterior, 0.5, by="salience")  # type: ignore[arg-type]
    for fraction in (1, 1.0, -0.1, 2, math.nan, True, "half"):
        with refused(errors.BadOption, "fraction=", "[0, 1)"):
            prune(posterior, fraction)  # type: ignore[arg-type]
    with refused(errors.BadData, "whence.laplace", "Sequential"):
        prune(mlp(), 0.5)  # type: ignore[arg-type]
    with refused(errors.BadOption, "mask"):
        prune(posterior, 0.5, layers={"0.weight": torch.ones(6, 4)})
    with refused(errors.NothingSelected, "'conv'"):
        prune(posterior, 0.5, layers="conv")
    with refused(errors.NothingSelected, "nothing can be pruned", "0.bias"):
        prune(fitted(mlp(), layers=["*.bias"]), 0.5)
    subnetwork = fitted(mlp(), "full", layers=whence.subnetwork(posterior, 10))
    with refused(errors.NotDefined, "mask"):
        prune(subnetwork, 0.5)


def test_a_loaded_posterior_prunes_the_same(tmp_path) -> None:
    model = mlp()
    posterior = fitted(model, "kron")
    posterior.save(tmp_path / "p.safetensors")
    loaded = whence.load(tmp_path / "p.safetensors", model)
    for units in (False, True):
        one, two = masks(prune(posterior, 0.4, units=units)), masks(prune(loaded, 0.4, units=units))
        assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)
