"""Memory that runs out at some call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import whence
from whence.errors import Notice

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def dense_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def small_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()


def shared_network() -> nn.Module:
    """Positions, a layer that is called twice, and normalisation, which has rows of its own."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 3, 3, padding=1)
            self.norm = nn.GroupNorm(1, 3)
            self.twice = nn.Linear(4, 4)
            self.head = nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.tanh(self.norm(self.conv(x.reshape(-1, 1, 2, 2)))).flatten(2)
            return self.head(torch.tanh(self.twice(torch.tanh(self.twice(x)))).flatten(1))

    return Net().double()


def data(batches: int = 3, size: int = 6) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 4, generator=generator, dtype=torch.float64), torch.randint(3, (size,), generator=generator))
        for _ in range(batches)
    ]


def fitted(network: nn.Module, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        options.setdefault("prior_precision", 1.0)
        return whence.laplace(network, data(), likelihood="classification", progress=False, **options)


def assert_same(one: Any, other: Any) -> None:
    for a, b in zip(one.curvature.structures, other.curvature.structures, strict=True):
        for key, value in a.tensors().items():
            if a.kind == "ekfac" and key != "values":
                continue  # eigenvectors are known up to their signs
            torch.testing.assert_close(value, b.tensors()[key], rtol=1e-12, atol=1e-12)
    a, b = one.record, other.record
    assert (a.data_size, a.seen, a.correct) == (b.data_size, b.seen, b.correct)
    assert abs(a.loss - b.loss) < 1e-9 and abs(a.confidence - b.confidence) < 1e-9


class Failing:
    """Lets a function fail for want of memory at one of its calls."""

    def __init__(self, at: int) -> None:
        self.at, self.calls, self.failed = at, 0, False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                self.failed = True
                raise torch.OutOfMemoryError(str(FULL))
            return function(*args, **kwargs)

        return called
