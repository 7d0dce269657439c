"""Ranks that compare other posteriors are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.auditing.comparison import check_ranks
from whence.engine.ranks import Ranks
from whence.errors import RanksDiffer


def small(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).to(dtype)


def labelled(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    x = torch.randn(40, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return x.to(dtype), (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def fitted(network: nn.Module, **options: Any) -> whence.Laplace:
    dtype = next(network.parameters()).dtype
    return whence.laplace(network, labelled(dtype), likelihood="classification", progress=False, **options)


def drawn(posterior: whence.Laplace, num_samples: int = 6) -> whence.Unstructured:
    generator = torch.Generator().manual_seed(0)
    data = labelled(posterior.network.dtype)
    return posterior.unstructured(data, num_samples=num_samples, generator=generator, progress=False)


class Pair(Ranks):
    """Rank 0 of two; the other brings a signature of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.brought = 2, list[Any]()

    @property
    def alone(self) -> bool:
        return False

    def synchronise(self, doing: str, value: Any = None) -> list[Any]:
        self.brought.append(value)
        return self.brought


def pairs() -> dict[str, tuple[Any, Any]]:
    """Posteriors that read the same, and are not."""
    one, other = fitted(small(0)), fitted(small(1))
    drawn_one = drawn(one)
    moved = {n: v + 1e-3 for n, v in drawn_one.deviations.items()}
    ensembles = [whence.ensemble([small(s), small(s + 1)], likelihood="classification") for s in (0, 5)]
    mixtures = [
        whence.laplace_ensemble(
            [small(s), small(s + 1)], labelled(), likelihood="classification", weights="equal", progress=False
        )
        for s in (0, 5)
    ]
    return {
        "ensemble": (ensembles[0], ensembles[1]),
        "laplace": (one, other),
        "prior": (one, one.with_prior(whence.Relative(1.00002))),
        "data scale": (one, replace(one, data_scale=1.00002)),
        "draws": (drawn_one, replace(drawn_one, deviations=moved)),
        "mixture": (mixtures[0], mixtures[1]),
    }


def test_ranks_with_other_posteriors_are_refused() -> None:
    data = labelled()
    held: Any = type("Held", (), {"inputs": data[0], "targets": data[1]})()

    def both(one: Any, other: Any) -> None:
        ranks = Pair()
        for posterior in (one, other):
            check_ranks(ranks, {"m": posterior}, (data, None), (held, None), ())

    for name, (one, other) in pairs().items():
        assert one.fingerprint() == one.to("cpu").fingerprint() != other.fingerprint(), name
        both(one, one.to("cpu"))
        with pytest.raises(RanksDiffer, match="the digest of the methods" if name == "ensemble" else "is .* for 'm'"):
            both(one, other)
