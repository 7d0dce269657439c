"""Audit a network of your own: five lines after the training.

Run with ``python examples/audit.py`` where ``whence[all]`` is installed; it writes ``audit.html`` and ``audit.json``.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_wine
from torch import nn

import whence
from whence import zoo


def main() -> None:
    torch.manual_seed(0)
    wine = load_wine()
    x, y = torch.tensor(wine.data, dtype=torch.float32), torch.tensor(wine.target)
    x = ((x - x.mean(0)) / x.std(0))[order := torch.randperm(len(x))]
    y = y[order]
    train, validation, test = ((x[a:b], y[a:b]) for a, b in ((0, 90), (90, 134), (134, 178)))
    model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
    zoo.train(model, train, epochs=30, batch_size=16, optimiser="adam", lr=1e-2, progress=False)

    audit = whence.audit(
        model,
        train,
        likelihood="classification",
        validation=validation,
        test=test,
        ood=4 * torch.randn(60, 13),
        classes=wine.target_names,
        features=wine.feature_names,
        title="Three kinds of wine",
    )
    audit.html("audit.html")
    audit.json("audit.json")
    audit.show()


if __name__ == "__main__":
    main()
