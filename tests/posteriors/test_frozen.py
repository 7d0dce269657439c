"""Posteriors are frozen: asking changes nothing in them, and what is remembered beside them goes with them."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import torch

from tests.contract.posteriors import MAKE, NEW, generator, network
from whence.errors import Notice
from whence.posteriors.dropout import dropout, sites
from whence.posteriors.ensembles import ensemble
from whence.posteriors.ensembles import posterior as ensembles


def content(posterior: Any) -> dict[str, Any]:
    """Identities of the fields, and of what lists and mappings among them hold."""

    def inside(value: Any) -> Any:
        if isinstance(value, dict):
            return id(value), {k: id(v) for k, v in value.items()}
        return id(value), list(map(id, value)) if isinstance(value, (list, tuple)) else None

    return {name: inside(value) for name, value in vars(posterior).items()}


@pytest.mark.parametrize("name", ["variational", "swag", "dropout", "ensemble", "laplace ensemble", "hmc"])
def test_asking_writes_nothing_into_a_posterior(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        posterior = MAKE[name]()
        before = content(posterior)
        posterior.predict(NEW, num_samples=3, generator=generator())
        posterior.draw(2, generator=generator()).outputs(NEW)
        posterior.where(NEW)
        posterior.as_module(2, generator=generator())
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
