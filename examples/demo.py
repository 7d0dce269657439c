"""The main job on an embedded data set: train a small network, fit, tune, predict, ask where.

Run with ``make demo``, or ``python examples/demo.py`` where whence and scikit-learn are installed.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from sklearn.datasets import load_digits
from torch import nn

import whence


def digits(seed: int = 0) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """The 8 × 8 digits of scikit-learn under noise, so that a network overfits: training, validation, test data."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    x = x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    y = torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, validation, test = order[:800], order[800:1200], order[1200:]
    return (x[train], y[train]), (x[validation], y[validation]), (x[test], y[test])


def network() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 12, 3, padding=1),
            norm=nn.BatchNorm2d(12),
            act1=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            conv2=nn.Conv2d(12, 24, 3, padding=1),
            act2=nn.ReLU(),
            flat=nn.Flatten(),
            hidden=nn.Linear(24 * 16, 64),
            act3=nn.ReLU(),
            head=nn.Linear(64, 10),
        )
    )


def train(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], epochs: int) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = data
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    model.eval()


def report(name: str, probs: torch.Tensor, y: torch.Tensor) -> None:
    nll = -probs[torch.arange(len(y)), y].log().mean()
    accuracy = (probs.argmax(1) == y).float().mean()
    print(f"  {name:<24} accuracy {accuracy:.1%}   NLL {nll:.4f}   mean confidence {probs.amax(1).mean():.1%}")


def main(epochs: int = 20) -> None:
    torch.manual_seed(0)
    training, validation, test = digits()
    model = network()
    train(model, training, epochs)

    posterior = whence.laplace(model, training, likelihood="classification")  # no retraining
    posterior = posterior.tune(validation)
    print(posterior, "\n")

    x, y = test
    prediction = posterior.predict(x)
    print(f"{len(y)} test digits")
    report("plain network", model(x).softmax(1).detach(), y)
    report("linearised Laplace", prediction.probs, y)

    noise = 2 * torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(2)) - 0.5
    strange = posterior.predict(noise)
    print("\nmean uncertainty (nats)     total   of it epistemic")
    print(f"  test digits               {prediction.entropy.mean():.3f}   {prediction.epistemic.mean():.3f}")
    print(f"  random pixels             {strange.entropy.mean():.3f}   {strange.epistemic.mean():.3f}")
    print("\nwhere it sits, for the test digits:")
    print(posterior.where(x))
    print("\nand for random pixels:")
    print(posterior.where(noise))


if __name__ == "__main__":
    main()
