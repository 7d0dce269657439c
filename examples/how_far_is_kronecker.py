"""How far is the Kronecker answer from the one without any structure?

Handwritten digits, a network with one hidden layer. For each prior precision: the Kronecker posterior, draws from the
posterior with the whole covariance (found by products with the curvature alone), and what lies between the two. Run
with ``python examples/how_far_is_kronecker.py`` where ``whence[all]`` is installed.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

import whence
from whence import zoo


def main() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 8 - 1, torch.tensor(digits.target)
    order = torch.randperm(len(x))
    train, test = ((x[rows], y[rows]) for rows in (order[:600], order[600:750]))
    model = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))
    zoo.train(model, train, epochs=30, batch_size=32, optimiser="adam", lr=1e-2, progress=False)

    print(f"{sum(p.numel() for p in model.parameters()):,} weights, {len(train[1])} digits")
    kron = whence.laplace(model, train, likelihood="classification", progress=False)
    for precision in (1.0, 10.0, 100.0):
        posterior = kron.with_prior(precision)
        draws = posterior.unstructured(
            train, num_samples=32, generator=torch.Generator().manual_seed(0), progress=False
        )
        effective = float(sum(gaussian.effective_parameters() for gaussian, _ in posterior.gaussians()))
        found, error = draws.effective_parameters
        print(f"\nPrior precision {precision:g}: {draws.solved.iterations} products with the curvature")
        print(
            f"Effective parameters: {found:.3g} ± {error:.1g} without structure, {effective:.3g} by Kronecker factors"
        )
        gap = draws.distance(test[0])
        print(gap)
        for row in gap.layers:
            print(f"  layer {row.name}: own variance {row.own:.2f}, with other layers {row.cross:+.2f} of the whole")


if __name__ == "__main__":
    main()
