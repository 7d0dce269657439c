"""What ``whence.track`` costs with its defaults, as a share of the training that it watches.

``python -m benchmarks.tracking``: processor time of epochs with and without a record at the end of each, for an MLP and
a small convolution network on two threads, several repeats.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import whence

EXAMPLES, BATCH, EPOCHS, REPEATS = 10_000, 128, 3, 5


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1568, 10),
    )  # fmt: skip


def measured(factory: Callable[[], nn.Module], x: Tensor, y: Tensor) -> tuple[float, float]:
    """Processor seconds of an epoch of training, and of a record."""
    torch.manual_seed(0)
    net = factory()
    track = whence.track(net, (x, y), likelihood="classification", every=1)
    optimiser = torch.optim.Adam(net.parameters())
    training = recording = 0.0
    for epoch in range(EPOCHS + 1):
        start = time.process_time()
        for rows in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
        middle = time.process_time()
        track.step()
        if epoch:  # the first is for warming up
            training += (middle - start) / EPOCHS
            recording += (time.process_time() - middle) / EPOCHS
    return training, recording


def main() -> None:
    """Print the share for each network."""
    torch.set_num_threads(2)
    x = torch.randn(EXAMPLES, 1, 28, 28)
    y = torch.randint(0, 10, (EXAMPLES,))
    for name, factory in (("MLP 784-256-256-10", mlp), ("two convolutions", cnn)):
        found = [measured(factory, x, y) for _ in range(REPEATS)]
        shares = sorted(recording / training for training, recording in found)
        epoch, record = (statistics.median(values) for values in zip(*found, strict=True))
        print(
            f"{name}: epoch of {EXAMPLES:,} examples {epoch:.2f} s, record {record:.2f} s; share "
            f"{statistics.median(shares):.1%} ({shares[0]:.1%} to {shares[-1]:.1%}, {REPEATS} repeats)"
        )


if __name__ == "__main__":
    main()
