"""One small posterior of every kind, made once, for the laws that all of them keep."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import whence
from whence.errors import Notice

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
NEW = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
COMMON: dict[str, Any] = {"likelihood": "classification"}


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3)).eval()


def _laplace(**options: Any) -> Callable[[], whence.Posterior]:
    return lambda: whence.laplace(network(), (X, Y), **COMMON, progress=False, **options)


def _drawn_whole() -> whence.Posterior:
    return whence.laplace(network(), (X, Y), **COMMON, progress=False).unstructured(
        (X, Y), num_samples=8, generator=torch.Generator().manual_seed(0), progress=False
    )


MAKE: dict[str, Callable[[], whence.Posterior]] = {
    "laplace kron": _laplace(),
    "laplace ekfac": _laplace(structure="ekfac"),
    "laplace diag": _laplace(structure="diag"),
    "laplace full": _laplace(structure="full", prior_precision=2.0),
    "laplace lowrank": _laplace(structure="lowrank", rank=8),
    "laplace refined": lambda: whence.laplace(network(), (X, Y), **COMMON, progress=False).refined(
        (X, Y), progress=False
    ),
    "variational": lambda: whence.variational(network(), (X, Y), **COMMON, epochs=2, seed=0, progress=False),
    "swag": lambda: whence.swag(network(), (X, Y), **COMMON, epochs=3, rank=2, progress=False),
    "dropout": lambda: whence.dropout(network(), **COMMON),
    "ensemble": lambda: whence.ensemble([network(0), network(1), network(2)], **COMMON),
    "laplace ensemble": lambda: whence.laplace_ensemble(
        [network(0), network(1)], (X, Y), **COMMON, prior_precision=1.0, progress=False
    ),
    "hmc": lambda: whence.hmc(
        network(), (X, Y), **COMMON, num_samples=4, warmup=20, chains=2, max_depth=3, progress=False,
        generator=torch.Generator().manual_seed(0),
    ),
    "unstructured": _drawn_whole,
    "function space": lambda: whence.laplace(network(), (X, Y), **COMMON, progress=False).function_space(
        (X, Y), examples=20, generator=torch.Generator().manual_seed(0), progress=False
    ),
}  # fmt: skip


@functools.cache
def made(name: str) -> whence.Posterior:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MAKE[name]()


def models(name: str) -> Any:
    """What ``whence.load`` wants beside a file."""
    if name == "ensemble":
        return [network(0), network(1), network(2)]
    return [network(0), network(1)] if name == "laplace ensemble" else network()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def quiet() -> Any:
    caught = warnings.catch_warnings()
    caught.__enter__()
    warnings.simplefilter("ignore", Notice)
    return caught
