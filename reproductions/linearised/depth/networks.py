"""Networks of every depth that train: residual hidden layers, each scaled by 1/√(depth − 1).

The first hidden layer maps inputs to the width, and every further one adds its activation to what came before, so that
20 layers train as well as one, and the output layer follows.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from reproductions.linearised.depth.config import Config
from reproductions.linearised.depth.subjects import Subject


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


class Residual(nn.Module):
    """x + scale · activation(W x + b)."""

    def __init__(self, width: int, activation: nn.Module, scale: float) -> None:
        super().__init__()
        self.linear, self.activation, self.scale = nn.Linear(width, width), activation, scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.activation(self.linear(x))


CLASSES = 10
IMAGE_NETWORKS = (
    "fully connected", "fully connected, batch norm", "convolutions", "convolutions, batch norm",
)  # fmt: skip
ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "sine": Sine}


def mlp(inputs: int, outputs: int, depth: int, width: int, activation: str = "tanh") -> nn.Sequential:
    act = ACTIVATIONS[activation]
    scale = 1 / math.sqrt(max(depth - 1, 1))
    hidden = [Residual(width, act(), scale) for _ in range(depth - 1)]
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), act(), *hidden, nn.Linear(width, outputs)).double()


def image_network(kind: str, shape: tuple[int, ...], width: int) -> nn.Sequential:
    """Two hidden layers, or two convolutions and a linear layer; with or without batch normalisation before ReLU."""
    norm = kind.endswith("batch norm")
    if kind.startswith("fully connected"):
        sizes = [math.prod(shape), width, width]
        hidden: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(sizes):
            hidden += [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if norm else []), nn.ReLU()]
        return nn.Sequential(*hidden, nn.Linear(width, CLASSES)).double()
    inside = 16 * (shape[1] // 4) * (shape[2] // 4)
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 3, padding=1), *([nn.BatchNorm2d(8)] if norm else []), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), *([nn.BatchNorm2d(16)] if norm else []), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(inside, CLASSES),
    ).double()  # fmt: skip


def loss(subject: Subject, outputs: Tensor) -> Tensor:
    """Mean of ½ (y − f)², or of −log p(y)."""
    if subject.classes == 0:
        return 0.5 * (outputs - subject.y).square().mean()
    if subject.classes == 2:
        return nn.functional.binary_cross_entropy_with_logits(outputs, subject.y)
    return nn.functional.cross_entropy(outputs, subject.y)


def trained(config: Config, network: nn.Module, subject: Subject, decay: float | None = None) -> nn.Module:
    """By Adam on all examples at once; the rate falls as a cosine."""
    optimiser = torch.optim.Adam(network.parameters(), lr=config.rate)
    network.train()
    precision = config.decay if decay is None else decay
    for step in range(config.steps):
        optimiser.param_groups[0]["lr"] = config.rate * 0.5 * (1 + math.cos(math.pi * step / config.steps))
        optimiser.zero_grad()
        squares = sum(p.square().sum() for p in network.parameters())
        (loss(subject, network(subject.x)) + 0.5 * precision / len(subject.y) * squares).backward()
        optimiser.step()
    return network.eval()
