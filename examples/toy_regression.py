"""The toy regression of Ritter et al. 2018 (section 5.1): which Laplace structure comes closest to HMC?

Twenty points x ~ U(−4, 4), y ~ N(x³, 3²), a network with two hidden layers of seven units. Run it as it stands for
a quick look, and with ``--full`` for chains that have converged (R-hat of the predictions below 1.01).
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import whence
from whence.metrics.distance import total_variation, wasserstein

NOISE = 3.0
PRIOR = 1.0  # precision, in units in which inputs and targets are about 1
STRUCTURES = ("full", "kron", "diag")


def cubic(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 8 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 4
    return x, x**3 + NOISE * torch.randn(count, 1, generator=generator, dtype=torch.float64)


def most_probable(x: Tensor, y: Tensor, noise: float) -> nn.Module:
    """Trained to the mode of the posterior: Σ (y − f)² / 2σ² + δ/2 |θ|²."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(1, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    optimiser = torch.optim.LBFGS(net.parameters(), max_iter=2000, line_search_fn="strong_wolfe", tolerance_grad=1e-7)

    def loss() -> Tensor:
        optimiser.zero_grad()
        squares = (net(x) - y).square().sum() / (2 * noise**2)
        total = squares + PRIOR / 2 * sum(p.square().sum() for p in net.parameters())
        total.backward()
        return total

    for _ in range(3):
        optimiser.step(loss)
    return net


def truth_by_hmc(net: nn.Module, data: tuple[Tensor, Tensor], likelihood: whence.Likelihood, full: bool) -> whence.Hmc:
    """Plain HMC with many chains: for a network this small, a gradient for sixteen costs little more than for one."""
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always")
        posterior = whence.hmc(
            net,
            data,
            likelihood=likelihood,
            prior_precision=PRIOR,
            kernel="hmc",
            chains=16 if full else 8,
            steps=128 if full else 64,
            warmup=500 if full else 100,
            num_samples=2000 if full else 180,
            target_accept=0.9 if full else 0.8,
            generator=torch.Generator().manual_seed(0),
            progress=full,
        )
    for doubt in doubts:
        if issubclass(doubt.category, whence.errors.Notice):
            print(f"  ! {doubt.message}")
    return posterior


def approximations(
    net: nn.Module, data: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor], likelihood: whence.Likelihood
) -> dict[str, tuple[Any, str]]:
    """Every Laplace posterior with the way it predicts; tuned on validation points for just that way, or not at all."""
    found: dict[str, tuple[Any, str]] = {}
    for structure in STRUCTURES:
        plain = whence.laplace(
            net, data, likelihood=likelihood, structure=structure, prior_precision=PRIOR, progress=False
        )
        for method in ("linearised", "sampled"):
            found[f"{structure}, {method}"] = plain, method
            generator = torch.Generator().manual_seed(0)
            tuned = plain.tune(validation, method=method, generator=generator, progress=False)
            found[f"{structure}, {method}, tuned"] = tuned, method
    return found


def ranking(truth: whence.Hmc, others: dict[str, tuple[Any, str]], grid: Tensor, count: int) -> list[Any]:
    """Name, Wasserstein distance and total variation to HMC; the nearest first."""
    reference = truth.predict(grid, num_samples=count)
    rows = []
    for name, (posterior, method) in others.items():
        generator = torch.Generator().manual_seed(0)
        found = posterior.predict(grid, method=method, num_samples=count, generator=generator)
        rows.append((name, wasserstein(found, reference), total_variation(found, reference)))
    return sorted(rows, key=lambda row: row[1])


def main(full: bool) -> None:
    x, y = cubic(20, seed=0)
    validation_x, validation_y = cubic(20, seed=1)
    scale = float(y.std())
    data, validation = (x / 2.3, y / scale), (validation_x / 2.3, validation_y / scale)
    likelihood = whence.Gaussian(noise=NOISE / scale)
    net = most_probable(*data, NOISE / scale)
    print(f"{'full' if full else 'quick'} run: {sum(p.numel() for p in net.parameters())} weights, 20 points")

    truth = truth_by_hmc(net, data, likelihood, full)
    grid = torch.linspace(-6, 6, 61 if full else 17, dtype=torch.float64).unsqueeze(1) / 2.3
    print(f"{truth}\n{truth.seconds:.0f} s; its predictions for inputs from -6 to 6:")
    print(truth.diagnostics(grid))

    rows = ranking(truth, approximations(net, data, validation, likelihood), grid, 2000 if full else 150)
    print(f"\nDistance to HMC, mean over {len(grid)} inputs from -6 to 6 (Wasserstein in the unit of y, noise 3)")
    print(f"{'':26s} {'Wasserstein':>23s} {'total variation':>23s}")
    for name, moved, varied in rows:
        low, high = (scale * v for v in moved.interval)
        print(f"{name:26s} {scale * moved:8.2f} [{low:5.2f}, {high:5.2f}]", end=" ")
        print(f"{varied:8.3f} [{varied.low:.3f}, {varied.high:.3f}]")


if __name__ == "__main__":
    main(full="--full" in sys.argv)
