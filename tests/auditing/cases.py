"""Small networks of every kind of task, trained a little, with all the data an audit takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import whence


@dataclass(frozen=True)
class Given:
    model: nn.Module
    train: Any
    validation: Any
    test: Any
    ood: Any
    likelihood: Any

    def data(self) -> dict[str, Any]:
        return {"validation": self.validation, "test": self.test, "ood": self.ood, "likelihood": self.likelihood}


def trained(
    model: nn.Module, x: Any, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], steps: int = 60
) -> nn.Module:
    optimiser = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(steps):
        optimiser.zero_grad()
        out = model(**x) if isinstance(x, dict) else model(x)
        loss(out, y).backward()
        optimiser.step()
    return model.eval()


def blobs(count: int, seed: int, shape: tuple[int, ...] = (6,), classes: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, *shape, generator=torch.Generator().manual_seed(99))
    y = torch.randint(classes, (count,), generator=g)
    return centres[y] + 0.9 * torch.randn(count, *shape, generator=g), y


def parts(make: Callable[[int, int], tuple[Any, Tensor]], sizes: tuple[int, int, int] = (200, 130, 120)) -> list[Any]:
    return [make(n, seed) for seed, n in enumerate(sizes)]


def classification() -> Given:
    torch.manual_seed(0)
    train, validation, test = parts(blobs)
    model = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 8), nn.Tanh(), nn.Linear(8, 3))
    trained(model, *train, nn.functional.cross_entropy)
    return Given(model, train, validation, test, 4 * torch.randn(60, 6), "classification")


def images() -> Given:
    torch.manual_seed(0)
    train, validation, test = parts(lambda n, seed: blobs(n, seed, (1, 6, 6)))
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 30, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(270, 3),
    )
    trained(model, *train, nn.functional.cross_entropy, 20)
    return Given(model, train, validation, test, torch.rand(50, 1, 6, 6), "classification")


def binary() -> Given:
    torch.manual_seed(0)

    def make(n: int, seed: int) -> tuple[Tensor, Tensor]:
        x, y = blobs(n, seed, classes=2)
        return x, y.float().unsqueeze(1)

    train, validation, test = parts(make)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    trained(model, *train, nn.functional.binary_cross_entropy_with_logits)
    return Given(model, train, validation, test, 4 * torch.randn(60, 6), "binary")


def several() -> Given:
    """Four labels of each input."""
    torch.manual_seed(0)
    weights = torch.randn(6, 4, generator=torch.Generator().manual_seed(98))

    def make(n: int, seed: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 6, generator=g)
        return x, (torch.rand(n, 4, generator=g) < (1.5 * x @ weights - 1).sigmoid()).float()

    train, validation, test = parts(make)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    trained(model, *train, nn.functional.binary_cross_entropy_with_logits)
    return Given(model, train, validation, test, None, "binary")


def regression() -> Given:
    torch.manual_seed(0)

    def make(n: int, seed: int) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 3, generator=g)
        return x, (x[:, :1].sin() + 0.1 * torch.randn(n, 1, generator=g))

    train, validation, test = parts(make)
    model = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 1))
    trained(model, *train, nn.functional.mse_loss)
    return Given(model, train, validation, test, 4 + torch.randn(60, 3), "regression")


def counts() -> Given:
    torch.manual_seed(0)

    def make(n: int, seed: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))
        return x, torch.poisson(x[:, :1].exp(), generator=torch.Generator().manual_seed(seed))

    train, validation, test = parts(make)
    model = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 1))
    trained(model, *train, lambda out, y: nn.functional.poisson_nll_loss(out, y))
    return Given(model, train, validation, test, 2 + torch.randn(60, 3), whence.Poisson())


def heteroscedastic() -> Given:
    given = regression()
    model = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 2))
    x, y = given.train
    trained(model, x, y, lambda out, t: nn.functional.gaussian_nll_loss(out[:, :1], t, out[:, 1:].exp()))
    return Given(model, given.train, given.validation, given.test, given.ood, whence.HeteroscedasticGaussian())


def dense() -> Given:
    """Labels for every pixel: linearised quantities are not defined."""
    torch.manual_seed(0)

    def make(n: int, seed: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
        return x, (x[:, 0] > 0).long()

    train, validation, test = parts(make, (60, 40, 40))
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Tanh(), nn.Conv2d(4, 2, 1))
    trained(model, *train, nn.functional.cross_entropy)
    return Given(model, train, validation, test, None, "classification")


class Named(nn.Module):
    """Takes a mapping of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).mean(1))


def tokens() -> Given:
    """Batches that are mappings with labels, from a loader."""
    torch.manual_seed(0)

    def make(n: int, seed: int) -> list[dict[str, Tensor]]:
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(10, (n, 5), generator=g)
        return [{"ids": i, "labels": i[:, 0] % 3} for i in ids.split(40)]

    train, validation, test = (make(n, s) for s, n in enumerate((200, 120, 120)))
    model = trained(
        Named(),
        {"ids": torch.cat([b["ids"] for b in train])},
        torch.cat([b["labels"] for b in train]),
        nn.functional.cross_entropy,
    )
    return Given(model, train, validation, test, [{"ids": torch.full((30, 5), 9)}], "classification")


ALL = {
    "classification": classification,
    "images": images,
    "binary": binary,
    "several": several,
    "regression": regression,
    "counts": counts,
    "heteroscedastic": heteroscedastic,
    "dense": dense,
    "tokens": tokens,
}
