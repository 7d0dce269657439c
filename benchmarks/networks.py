"""The networks and their data: random, from fixed seeds, the same in every process."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 10
BATCH = 512


def lenet(bias: bool = True) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling, 61,706 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2, bias=bias),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, bias=bias),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120, bias=bias),
        nn.ReLU(),
        nn.Linear(120, 84, bias=bias),
        nn.ReLU(),
        nn.Linear(84, CLASSES, bias=bias),
    )


def mlp(bias: bool = True) -> nn.Sequential:
    """784-1024-1024-10, 1,863,690 weights."""
    return nn.Sequential(
        nn.Linear(784, 1024, bias=bias),
        nn.ReLU(),
        nn.Linear(1024, 1024, bias=bias),
        nn.ReLU(),
        nn.Linear(1024, CLASSES, bias=bias),
    )


NETWORKS = {"lenet": (lenet, (1, 28, 28)), "mlp": (mlp, (784,))}


def network(name: str, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return NETWORKS[name][0](bias).eval()


def inputs(name: str, size: int, seed: int = 2) -> Tensor:
    return torch.randn(size, *NETWORKS[name][1], generator=torch.Generator().manual_seed(seed))


def loader(name: str, size: int) -> DataLoader[tuple[Tensor, ...]]:
    labels = torch.randint(0, CLASSES, (size,), generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs(name, size, seed=0), labels), batch_size=BATCH)
