"""What a review found in dropout, ensembles and SWAG."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.errors import BadFile, BadOption, NotDefined, Notice
from whence.posteriors.dropout import dropout
from whence.posteriors.ensembles import ensemble, fit_ensemble, laplace_ensemble
from whence.posteriors.front import laplace
from whence.posteriors.swag import SwagCollector, swag
from whence.zoo import loop


def small(out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, out)).double()


def labelled(size: int = 48) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


FIT = {"likelihood": "classification", "epochs": 2, "progress": False}


# Dropout in place


class Shared(nn.Module):
    """Drops out its input, and a weight that all examples share."""

    def __init__(self, inplace: bool, always: bool = False) -> None:
        super().__init__()
        self.d, self.w, self.always = nn.Dropout(0.3, inplace=inplace), nn.Parameter(torch.ones(1, 4)), always

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x, 0.2, True, inplace=self.d.inplace) if self.always else self.d(x)
        return F.linear(x, F.dropout(self.w, 0.1, self.training))


@pytest.mark.parametrize("always", [False, True])
def test_in_place_dropout_of_the_inputs_is_that_of_a_copy(always: bool) -> None:
    x = torch.ones(5, 4)
    found = []
    for inplace in (False, True):
        posterior = dropout(Shared(inplace, always), likelihood="binary")
        generator = torch.Generator().manual_seed(0)
        found.append(posterior.draw(200, generator=generator).outputs(x))
        assert torch.equal(x, torch.ones(5, 4))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert 3.4 < float(found[0].mean()) < 4.6


@pytest.mark.parametrize("always", [False, True])
def test_in_place_dropout_leaves_the_users_inputs(always: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.d, self.last = nn.Dropout(0.3, inplace=True), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.dropout(x, 0.3, True, inplace=True) if always else self.d(x))

    x = torch.randn(6, 4)
    before = x.clone()
    posterior = dropout(Net(), likelihood="classification")
    for count in (1, 2):
        posterior.predict(x, num_samples=count)
        assert torch.equal(x, before)
    draws = posterior.draw(3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(draws[1](x), draws.outputs(x)[1])
    torch.testing.assert_close(draws[1](x), draws[1](x), rtol=0, atol=0)
    for module in draws.modules():
        module(x)
    posterior.as_module(2)(x)
    assert torch.equal(x, before)
    leaf = x.clone().requires_grad_()
    draws[0](leaf).sum().backward()
    assert leaf.grad is not None


# SWAG


def test_swag_does_not_go_on_from_another_network(tmp_path) -> None:
    model, other, file = small(), small(), tmp_path / "c.safetensors"
    whole = swag(model, labelled(), checkpoint=file, **FIT)
    again = swag(model, labelled(), checkpoint=file, **FIT)
    torch.testing.assert_close(again.covariance(), whole.covariance(), rtol=0, atol=0)
    with pytest.raises(BadFile, match="another network: its training started from other weights"):
        swag(other, labelled(), checkpoint=file, **FIT)


@pytest.mark.parametrize("rank", [0, 2])
def test_nor_after_a_break_before_the_first_collection(rank: int, tmp_path, monkeypatch) -> None:
    model, other, file = small(), small(), tmp_path / "c.safetensors"
    whole = swag(model, labelled(), rank=rank, **FIT)
    original = SwagCollector.write

    def stops(self, path, meta):
        if meta["epoch"] == 1:
            raise KeyboardInterrupt
        original(self, path, meta)

    monkeypatch.setattr(SwagCollector, "write", stops)
    with pytest.raises(KeyboardInterrupt):
        swag(model, labelled(), checkpoint=file, rank=rank, **FIT)
    monkeypatch.setattr(SwagCollector, "write", original)
    assert file.exists()
    with pytest.raises(BadFile, match="started from other weights"):
        swag(other, labelled(), checkpoint=file, rank=rank, **FIT)
    again = swag(model, labelled(), checkpoint=file, rank=rank, **FIT)
    torch.testing.assert_close(again.covariance(), whole.covariance(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_torchs_generator_is_left_alone(kind: str) -> None:
    x, y = labelled()
    pairs = torch.utils.data.TensorDataset(x, y if kind == "classification" else x[:, :3])
    loader = torch.utils.data.DataLoader(pairs, batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    settings = FIT | {"likelihood": kind}
    state = torch.random.get_rng_state()
    posterior = swag(model, loader, **settings)
    assert torch.equal(torch.random.get_rng_state(), state)
    collector = SwagCollector(model, 2)
    collector.collect()
    collector.collect()
    collector.posterior(kind, loader)
    assert torch.equal(torch.random.get_rng_state(), state)
    fit_ensemble(small, loader, members=2, vectorised=False, **settings)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert posterior.collections == 2


def test_a_scale_is_a_number() -> None:
    posterior = swag(small(), labelled(), **FIT)
    for wrong in ("a", None, True, 0, -1.0, float("inf"), float("nan"), [1.0]):
        with pytest.raises(BadOption, match="scale="):
            posterior.with_scale(wrong)  # type: ignore[arg-type]
    assert posterior.with_scale(2).scale == posterior.with_scale(torch.tensor(2.0)).scale == 2.0  # type: ignore[arg-type]


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift, self.part = nn.Parameter(torch.zeros(3).double()), small()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) + self.shift


def test_a_bare_parameter_is_a_layer_by_its_own_name() -> None:
    found = swag(Bare(), labelled(), **FIT).layers()
    assert found["shift"] == ["shift"] and found["part.0"] == ["part.0.weight", "part.0.bias"] and "" not in found


# Factories


@pytest.mark.parametrize("vectorised", [False, True, "auto"])
@pytest.mark.parametrize("members", [1, 2, 3])
def test_a_factory_of_one_object_is_refused_and_the_object_left_alone(vectorised, members: int) -> None:
    net = small()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(BadOption, match="must make a fresh network each time"):
        fit_ensemble(lambda: net, labelled(), members=members, vectorised=vectorised, **FIT)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


def test_factories_that_come_back_to_one_object_or_share_a_part() -> None:
    nets = itertools.cycle([small(), small()])
    with pytest.raises(BadOption, match="same object for members 0 and 2"):
        fit_ensemble(lambda: next(nets), labelled(), members=3, vectorised=False, **FIT)
    body = nn.Linear(4, 6).double()

    def make() -> nn.Module:
        return nn.Sequential(body, nn.Linear(6, 3).double())

    with pytest.raises(BadOption, match=r"members 0 and 1 of this one share the parameter '0.weight'"):
        fit_ensemble(make, labelled(), members=2, **FIT)
    body.requires_grad_(False)
    kept = body.weight.clone()
    assert len(fit_ensemble(make, labelled(), members=2, **FIT)) == 2
    assert torch.equal(body.weight, kept)


def test_a_factory_that_seeds_itself_is_refused() -> None:
    def seeds() -> nn.Module:
        torch.manual_seed(0)
        return small()

    state = torch.random.get_rng_state()
    with pytest.raises(BadOption, match="sets torch's seed itself"):
        fit_ensemble(seeds, labelled(), members=2, **FIT)
    assert torch.equal(torch.random.get_rng_state(), state)

    def takes(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return small()

    assert len(fit_ensemble(takes, labelled(), members=2, **FIT)) == 2
    net = small()
    with pytest.warns(Notice, match="the same first weights"):
        fit_ensemble(lambda: copy.deepcopy(net), labelled(), members=2, **FIT)


def test_a_factory_that_needs_arguments() -> None:
    for factory in (lambda a, b: small(), lambda seed, width: small(), nn.Linear):
        with pytest.raises(BadOption, match="called without arguments"):
            fit_ensemble(factory, labelled(), members=2, **FIT)


@pytest.mark.parametrize("numpy", [False, True])
def test_members_of_other_outputs_are_refused_before_training(numpy: bool, monkeypatch) -> None:
    def never(*_args, **_kwargs):
        raise AssertionError("trained")

    monkeypatch.setattr(loop, "_epoch", never)
    sizes = itertools.cycle([3, 4])
    data = tuple(t.numpy() for t in labelled()) if numpy else labelled()
    with pytest.raises(BadOption, match=r"member 1 gives outputs of shape \[4\].* member 0 of shape \[3\]"):
        fit_ensemble(lambda: small(next(sizes)), data, members=2, **FIT)


def test_checked_members_are_trained_as_before(tmp_path) -> None:
    """The networks that are looked at first are those that are trained; each from the weights of its seed."""
    calls = []

    def make() -> nn.Module:
        calls.append(1)
        return small()

    one = fit_ensemble(make, labelled(), members=2, vectorised=False, **FIT)
    assert len(calls) == 2
    two = fit_ensemble(make, labelled(), members=2, vectorised=False, checkpoint=tmp_path / "f", **FIT)
    for a, b in zip(one.networks(), two.networks(), strict=True):
        for name, value in a.state_dict().items():
            assert torch.equal(value, b.state_dict()[name])


# Weighted variances


WEIGHTS = [0.123456789, 0.5, 0.0031, 0.37]


@pytest.mark.parametrize("kind", ["classification", "binary"])
def test_the_variances_of_a_weighted_ensemble_are_exact(kind: str) -> None:
    torch.manual_seed(0)
    models, x = [small() for _ in WEIGHTS], 3 * torch.randn(7, 4, dtype=torch.float64)
    prediction = ensemble(models, likelihood=kind, weights=WEIGHTS).predict(x)
    w = torch.tensor(WEIGHTS, dtype=torch.float64)
    w = (w / w.sum()).reshape(-1, 1, 1)
    outputs = torch.stack([m(x) for m in models]).detach()
    probs = outputs.softmax(-1) if kind == "classification" else outputs.sigmoid()
    mean = (w * probs).sum(0)
    total, aleatoric, epistemic = prediction.variance_split()
    torch.testing.assert_close(total, prediction.probs * (1 - prediction.probs), rtol=0, atol=1e-12)
    torch.testing.assert_close(aleatoric, (w * probs * (1 - probs)).sum(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(epistemic, (w * (probs - mean).square()).sum(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(total, aleatoric + epistemic, rtol=0, atol=1e-12)
    if kind == "binary":
        with pytest.raises(NotDefined):
            prediction.variance_split(full=True)
        return
    full = prediction.variance_split(full=True)
    torch.testing.assert_close(full.total, full.aleatoric + full.epistemic, rtol=0, atol=1e-12)
    for matrix, diagonal in zip(full, (total, aleatoric, epistemic), strict=True):
        torch.testing.assert_close(matrix.diagonal(dim1=1, dim2=2), diagonal, rtol=0, atol=1e-12)


def test_and_those_of_a_weighted_laplace_ensemble() -> None:
    torch.manual_seed(0)
    x, y = labelled()
    mixed = laplace_ensemble([small(), small()], (x, y), likelihood="classification", weights="equal")
    mixed = mixed.with_weights([0.123457, 0.876543])
    prediction = mixed.predict(x[:5], num_samples=30, generator=torch.Generator().manual_seed(0))
    total, aleatoric, epistemic = prediction.variance_split()
    torch.testing.assert_close(total, prediction.probs * (1 - prediction.probs), rtol=0, atol=1e-6)
    torch.testing.assert_close(total, aleatoric + epistemic, rtol=0, atol=1e-6)
    assert bool((epistemic > 0).all())
    with pytest.raises(NotDefined):
        mixed.predict(x[:5], link="probit").variance_split()
    alone = laplace(small(), (x, y), likelihood="classification").predict(x[:5])
    assert type(alone) is type(prediction)  # metrics hold them against each other
