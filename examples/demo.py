"""The main job on an embedded data set: train a small network, fit, tune, predict, score, ask where.

Run with ``make demo``, or ``python examples/demo.py`` where whence and scikit-learn are installed.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

import whence
from whence import metrics, zoo


def noisy(part: zoo.Examples, seed: int) -> tuple[Tensor, Tensor]:
    """Digits under noise, so that a network overfits."""
    x, y = part.tensors()
    return x + 0.8 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)), y


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


def main(epochs: int = 20) -> None:
    torch.manual_seed(0)
    data = zoo.load("digits", seed=0, validation=0.3)
    training, validation, test = noisy(data.train, 1), noisy(data.validation, 2), noisy(data.test, 3)
    model = network()
    zoo.train(model, training, epochs=epochs, batch_size=64, optimiser="adam", lr=3e-3, progress=False)

    posterior = whence.laplace(model, training, likelihood="classification")  # no retraining
    posterior = posterior.tune(validation)
    print(posterior, "\n")

    x, y = test
    plain, prediction = model(x).softmax(1).detach(), posterior.predict(x)
    strange = 4 * torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(4)) - 2
    novel = posterior.predict(strange)
    print(f"{len(y)} test digits, and 200 pictures of random pixels\n\nplain network")
    print(metrics.evaluate(plain, y, ood=model(strange).softmax(1).detach()))
    print("\nlinearised Laplace")
    print(metrics.evaluate(prediction, y, ood=novel))

    wrong = (prediction.labels != y).double()
    print("\nif one answer in twenty may be wrong (the rule is chosen on validation data, measured on test data):")
    held = posterior.predict(validation[0])
    rule = metrics.defer(held.entropy, (held.labels != validation[1]).double(), max_error=0.05, confidence=0.95)
    print(rule.check(prediction.entropy, wrong))

    print("\nwhere it sits, for the test digits:")
    print(posterior.where(x))
    print("\nand for random pixels:")
    print(posterior.where(strange))
    print("\nin words:\n")
    print(posterior.where().answers(test, ood=strange))


if __name__ == "__main__":
    main()
