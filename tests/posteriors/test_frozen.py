"""Posteriors are frozen: asking changes nothing in them, and what is remembered beside them goes with them."""

from __future__ import annotations

import contextlib
import gc
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.contract.posteriors import MAKE, NEW, generator, network
from whence.errors import NotDefined, Notice
from whence.functional import Runtime
from whence.posteriors.dropout import dropout, sites
from whence.posteriors.ensembles import ensemble
from whence.posteriors.ensembles import posterior as ensembles


def content(posterior: Any) -> dict[int, tuple[str, dict[Any, int]]]:
    """Identities of everything inside a posterior, by object; what was learned while running is not of it."""
    found: dict[int, tuple[str, dict[Any, int]]] = {}

    def walk(value: Any, path: str) -> None:
        ours = type(value).__module__.startswith("whence.") and hasattr(value, "__dict__")
        if id(value) in found or isinstance(value, (Runtime, nn.Module)):
            return
        if isinstance(value, dict) or ours:
            inside = dict(value if isinstance(value, dict) else vars(value))
        elif isinstance(value, (list, tuple)):
            inside = dict(enumerate(value))
        else:
            return
        found[id(value)] = path, {key: id(part) for key, part in inside.items()}
        for key, part in inside.items():
            walk(part, f"{path}.{key}")

    walk(posterior, type(posterior).__name__)
    return found


@pytest.mark.parametrize("name", list(MAKE))
def test_asking_writes_nothing_into_a_posterior(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        posterior = MAKE[name]()
        before = content(posterior)
        posterior.predict(NEW, num_samples=3, generator=generator())
        posterior.draw(2, generator=generator()).outputs(NEW)
        posterior.where(NEW)
        posterior.as_module(2, generator=generator())
        posterior.summary(), posterior.fingerprint(), str(posterior), posterior.structures
        for ask in ("prior_variance", "variance"):
            with contextlib.suppress(NotDefined, AttributeError):
                getattr(posterior, ask)()
    assert content(posterior) == before


def test_what_is_remembered_of_networks_goes_with_them() -> None:
    gc.collect()
    before = len(sites._known), len(ensembles._stacks)
    masked = dropout(network(), likelihood="classification")
    members = ensemble([network(0), network(1)], likelihood="classification")
    assert torch.equal(members.predict(NEW).probs, members.with_weights([1, 1]).predict(NEW).probs)
    assert masked.sites(NEW) == ["2"] and masked.to(torch.float64).sites() == ["2"]
    assert len(sites._known) > before[0] and len(ensembles._stacks) > before[1]
    del masked, members
    gc.collect()
    assert (len(sites._known), len(ensembles._stacks)) == before
