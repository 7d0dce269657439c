"""Factories of members: fresh networks, seeds, equal outputs."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

from whence.errors import BadOption, Notice
from whence.posteriors.ensembles import fit_ensemble
from whence.training import loop


def small(out: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, out)).double()


def labelled(size: int = 48) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


FIT = {"likelihood": "classification", "epochs": 2, "progress": False}


# Factories


@pytest.mark.parametrize("vectorised", [False, True, "auto"])
@pytest.mark.parametrize("members", [1, 2, 3])
def test_a_factory_of_one_object_is_refused_and_the_object_left_alone(vectorised, members: int) -> None:
    net = small()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(BadOption, match="must make a new network each time"):
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

    with pytest.raises(BadOption, match=r"members 0 and 1 share the parameter '0.weight'"):
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
    with pytest.warns(Notice, match="the same initial weights"):
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
    with pytest.raises(BadOption, match=r"member 1 has outputs of shape \[4\].* member 0 of shape \[3\]"):
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
