"""Small networks that were trained, with data to draw more of."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

import whence
from whence import zoo

Draw = Callable[[int, int], tuple[Tensor, Tensor]]


def points(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three clouds on a plane in six dimensions."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(size) % 3
    centres = torch.tensor([[2.0, 0, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0], [-2, -2, 0, 0, 0, 0]])
    spread = torch.tensor([1.0, 1, 0.5, 0.5, 0.1, 0.1])
    return centres[y] + spread * torch.randn(size, 6, generator=g), y


def images(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Bars that lie, stand or cross, of any brightness, with noise: (N, 1, 8, 8)."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(size) % 3
    x = 0.2 * torch.randn(size, 1, 8, 8, generator=g)
    at = torch.randint(1, 7, (size, 2), generator=g)
    bright = 1 + 0.2 * torch.randn(size, generator=g)
    for i in range(size):
        if y[i] != 1:
            x[i, 0, at[i, 0]] += bright[i]
        if y[i] != 0:
            x[i, 0, :, at[i, 1]] += bright[i]
    return x, y


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


def attention() -> nn.Module:
    return zoo.transformer((1, 8, 8), 3, patch=4, units=8, heads=2, depth=1)


CASES: dict[str, tuple[Callable[[], nn.Module], Draw]] = {
    "mlp": (mlp, points), "conv": (conv, images), "attention": (attention, images),
}  # fmt: skip


@functools.cache
def trained(name: str, structure: str = "kron") -> tuple[whence.Laplace, Draw]:
    """A posterior, fitted on 300 examples of seed 0, and where more come from."""
    make, draw = CASES[name]
    torch.manual_seed(0)
    model = make()
    x, y = draw(300, 0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    posterior = whence.laplace(
        model.eval(), (x, y), likelihood="classification", structure=structure, progress=False
    )  # fmt: skip
    return posterior, draw
