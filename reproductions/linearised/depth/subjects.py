"""Small parts of data sets: inputs as rows, numbers or one label each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from reproductions.linearised.depth.config import Config
from whence import zoo
from whence.engine.randomness import derived_seed

NOISE = 0.1  # of the curve
CLUSTERS = ((-1.0, -0.25), (0.3, 1.0))  # where its inputs are


@dataclass(frozen=True)
class Subject:
    """``classes`` is 0 for numbers; two classes have one output."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int

    @property
    def outputs(self) -> int:
        return self.classes if self.classes > 2 else 1


def subject(config: Config, name: str, seed: int) -> Subject:
    """In double precision; the seed draws the training examples."""
    generator = torch.Generator().manual_seed(derived_seed(seed, "data", name))
    if name == "curve":
        return Subject(*_curve(min(config.size, 80), generator), *_curve(config.test, generator), 0)
    if name == "two-moons":
        x, y = _moons(config.size + config.test, generator)
        n = config.size
        return Subject(x[:n], y[:n], x[n:], y[n:], 2)
    if name in ("mnist", "fashion-mnist", "digits"):
        return _images(config, name, seed)
    data = zoo.load(f"uci/{name}", seed=seed, split=seed, validation=0.0, progress=False)
    assert data.train is not None and data.test is not None
    order = torch.randperm(data.train.size, generator=generator)[: config.size]
    train, test = data.train.take(order).tensors(), data.test.take(config.test).tensors()
    x, y, test_x, test_y = (t.double() for t in (*train, *test))
    return Subject(x, y, test_x, test_y, 0)


def _curve(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two clusters of inputs on a sine; between and beside them there are no data."""
    side = torch.rand(count, 1, generator=generator, dtype=torch.float64)
    left, right = (low + (high - low) * side for low, high in CLUSTERS)
    x = torch.where(torch.rand(count, 1, generator=generator) < 0.5, left, right)
    y = (4 * x).sin() + NOISE * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return x, y


def _moons(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two half circles with noise; targets 0 or 1."""
    angle = math.pi * torch.rand(count, generator=generator, dtype=torch.float64)
    label = (torch.rand(count, generator=generator) < 0.5).double()
    x = torch.stack([angle.cos() + label, (1 - 2 * label) * angle.sin() + 0.5 * label], 1)
    x = x + 0.2 * torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return x - torch.tensor([0.5, 0.25], dtype=torch.float64), label.unsqueeze(1)


def _images(config: Config, name: str, seed: int) -> Subject:
    """MNIST and Fashion-MNIST at 14 × 14 pixels; digits at 8 × 8."""
    data = zoo.load(name, seed=seed, validation=0, progress=False)
    assert data.train is not None and data.test is not None
    order = torch.randperm(data.train.size, generator=torch.Generator().manual_seed(seed))[: config.images]
    train, test = data.train.take(order).tensors(), data.test.take(config.image_test).tensors()

    def small(images: Tensor) -> Tensor:
        return (avg_pool2d(images, 2) if images.shape[-1] == 28 else images).double()

    return Subject(small(train[0]), train[1], small(test[0]), test[1], 10)
