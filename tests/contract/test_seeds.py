"""Every verb that draws takes a seed, or a generator instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import whence
from whence.engine.randomness import resolve_seed
from whence.errors import BadOption, Notice

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def posterior() -> whence.Laplace:
    return whence.laplace(network(), (X, Y), likelihood="classification", progress=False)


def numbers(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.state_dict().values()])


def swag(**how: Any) -> torch.Tensor:
    options = {"likelihood": "classification", "epochs": 2, "batch_size": 16, "rank": 0, "progress": False}
    found = whence.swag(network(), (X, Y), **options, **how)
    return torch.cat([m.flatten() for m in found.mean().values()])


def fit_ensemble(**how: Any) -> torch.Tensor:
    options = {"likelihood": "classification", "members": 2, "epochs": 1, "progress": False}
    return numbers(whence.fit_ensemble(network_of, (X, Y), **options, **how).networks()[1])


def network_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def track(**how: Any) -> torch.Tensor:
    return whence.track(network(), (X, Y), likelihood="classification", subset=10, **how).subset[0]


def prune(**how: Any) -> torch.Tensor:
    return numbers(whence.prune(posterior(), 0.5, by="random", **how))


def prune_curve(**how: Any) -> torch.Tensor:
    found = whence.prune_curve(posterior(), (X, Y), fractions=[0.3, 0.6], by="random", progress=False, **how)
    return torch.tensor([row.nll for row in found.rows])


def audit(**how: Any) -> torch.Tensor:
    found = whence.audit(posterior(), test=(X, Y), sections=["quality"], progress=False, **how)
    return torch.tensor([found.record["run"]["seed"]])


def compare(**how: Any) -> torch.Tensor:
    methods = {"a": posterior(), "b": whence.ensemble([network(), network_of(3)], likelihood="classification")}
    found = whence.compare(methods, (X, Y), progress=False, **how)
    return torch.tensor([found.record["run"]["seed"]])


VERBS = [swag, fit_ensemble, track, prune, prune_curve, audit, compare]


@pytest.mark.parametrize("verb", VERBS, ids=lambda v: v.__name__)
def test_seeds_and_generators(verb: Callable[..., torch.Tensor]) -> None:
    def made(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        plain, zero, one = verb(), verb(seed=0), verb(seed=1)
        first, again, other = verb(generator=made(5)), verb(generator=made(5)), verb(generator=made(6))
    assert torch.equal(plain, zero) and not torch.equal(zero, one)
    assert torch.equal(first, again) and not torch.equal(first, other)
    with pytest.raises(BadOption, match=r"seed= or generator=, not both"):
        verb(seed=1, generator=made(5))


def test_a_generator_is_moved_on() -> None:
    generator = torch.Generator().manual_seed(0)
    assert resolve_seed(None, generator) != resolve_seed(None, generator)
    assert resolve_seed(None, None) == 0 and resolve_seed(7, None) == 7
