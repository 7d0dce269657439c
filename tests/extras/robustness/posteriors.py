"""One small classification problem, and a posterior of every kind for it, in float64."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import whence
from whence.errors import Notice

CLASSES, DIMS = 3, 4


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(size: int = 90) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, DIMS, generator=seeded(1), dtype=torch.float64)
    return x, (x[:, 0] > 0).long() + (x[:, 1] + 0.3 * x[:, 2] > 0.2).long()


def network(seed: int = 0, drop: float = 0.0) -> nn.Sequential:
    """Trained a little."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        layers = [nn.Linear(DIMS, 10), nn.Tanh(), nn.Dropout(drop), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, CLASSES)]
        net = nn.Sequential(*layers).double()
        optimiser = torch.optim.Adam(net.parameters(), lr=0.05)
        for _ in range(40):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(data()[0]), data()[1]).backward()
            optimiser.step()
    for p in net.parameters():
        p.grad = None
    return net.eval()


def fitted(structure: str = "kron", **options: Any) -> whence.Laplace:
    options = {"likelihood": "classification", "progress": False, "prior_precision": 2.0, **options}
    return whence.laplace(network(), data(), structure=structure, **options)


def _hmc() -> whence.Posterior:
    return whence.hmc(
        network(), data(), likelihood="classification", chains=2, num_samples=8, warmup=8, progress=False,
        generator=seeded(),
    )  # fmt: skip


def _variational() -> whence.Posterior:
    return whence.variational(network(), data(), likelihood="classification", epochs=2, lr=0.01, seed=0, progress=False)


def _swag() -> whence.Posterior:
    return whence.swag(network(), data(), likelihood="classification", epochs=3, lr=0.01, seed=0, progress=False)


def _mixture() -> whence.Posterior:
    found = whence.laplace_ensemble(
        [network(0), network(1)], data(), likelihood="classification", weights="equal", progress=False
    )
    return found.with_weights([0.3, 0.7])


KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "linearised": (fitted, {}),
    "linearised, diagonal": (lambda: fitted("diag"), {}),
    "linearised, full": (lambda: fitted("full"), {}),
    "linearised, last layer": (lambda: fitted(layers="last"), {}),
    "linearised, random points": (fitted, {"num_samples": 32, "generator": 5}),
    "sampled": (fitted, {"method": "sampled", "num_samples": 7, "generator": 0}),
    "mixture, linearised": (_mixture, {}),
    "mixture, sampled": (_mixture, {"method": "sampled", "num_samples": 4, "generator": 0}),
    "unstructured, linearised": (
        lambda: fitted().unstructured(data(), num_samples=5, generator=seeded(), progress=False), {"num_samples": 4},
    ),
    "unstructured, sampled": (
        lambda: fitted().unstructured(data(), num_samples=5, generator=seeded(), progress=False),
        {"method": "sampled", "num_samples": 4, "generator": 3},
    ),
    "dropout": (
        lambda: whence.dropout(network(drop=0.3), likelihood="classification"), {"num_samples": 6, "generator": 0},
    ),
    "ensemble": (lambda: whence.ensemble([network(s) for s in range(3)], likelihood="classification"), {}),
    "weighted ensemble": (
        lambda: whence.ensemble([network(s) for s in range(3)], likelihood="classification", weights=[0.5, 0.0, 0.2]),
        {},
    ),
    "two of an ensemble": (
        lambda: whence.ensemble([network(s) for s in range(4)], likelihood="classification"),
        {"num_samples": 2, "generator": 1},
    ),
    "swag": (_swag, {"num_samples": 5, "generator": 0}),
    "variational": (_variational, {"num_samples": 5, "generator": 0}),
    "hmc": (_hmc, {"num_samples": 6}),
}  # fmt: skip


@functools.cache
def posterior(kind: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return KINDS[kind][0]()


def options(kind: str) -> dict[str, Any]:
    """With a fresh generator."""
    given = dict(KINDS[kind][1])
    if "generator" in given:
        given["generator"] = seeded(given["generator"])
    return given
