"""``python -m benchmarks.unstructured [--device cuda]``: draws without structure from a network of 1.9 million weights.

An MLP (784-1024-1024-10) is trained for a moment on random images with labels that can be learned, fitted with
Kronecker factors, and 16 draws without structure are found at several tolerances: products with the curvature,
seconds, and seconds of one product beside a training epoch. Then the distance of the Kronecker answer from them. What
tolerance is needed is seen from how far the draws are from those of the smallest one. ``--tiny`` is a quick look;
``--out FILE`` writes the results as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import whence
from benchmarks.machine import Others, describe

T = TypeVar("T")


def network(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )  # 1,863,690 weights at a width of 1024


def data(size: int, device: str, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs with a decaying spectrum, as images have, and labels that can be learned."""
    fixed = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(784, 784, generator=fixed))[0] * 8 * torch.arange(1, 785) ** -0.75
    teacher = torch.randn(784, 10, generator=fixed)
    own = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 784, generator=own) @ basis.mT
    y = (x @ teacher + 0.5 * torch.randn(size, 10, generator=own)).argmax(1)
    return x.to(device), y.to(device)


def timed(work: Callable[[], T], device: str) -> tuple[float, T]:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def epoch(model: nn.Module, pair: tuple[Tensor, Tensor], optimiser: Any = None) -> None:
    """Forward and backward passes over the data; steps where there is an optimiser."""
    for x, y in zip(pair[0].split(512), pair[1].split(512), strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if optimiser is not None:
            optimiser.step()


def main() -> None:
    chosen = options()
    torch.manual_seed(0)
    device, others = chosen.device, Others()
    train, test = data(chosen.examples, device, 1), data(chosen.inputs, device, 2)
    model = network(chosen.width).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(chosen.epochs):
        epoch(model, train, optimiser)
    epoch_seconds = timed(lambda: epoch(model, train), device)[0]
    fit_seconds, kron = timed(
        lambda: whence.laplace(model, train, likelihood="classification", prior_precision=chosen.prior, progress=False),
        device,
    )
    print(kron, flush=True)
    rows, finest = [], None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.errors.Notice)
        draws(kron, (train[0][:64], train[1][:64]), chosen, 0.9)  # kernels, allocator
    for tolerance in sorted(chosen.tolerances):
        seconds, found = timed(lambda t=tolerance: draws(kron, train, chosen, t), device)
        finest = finest or found
        rows.append(row(tolerance, seconds, epoch_seconds, found, finest, test[0]))
        print(json.dumps(rows[-1]), flush=True)
    assert finest is not None
    gap_seconds, gap = timed(lambda: finest.distance(test[0]), device)
    print(gap.summary())
    results = {
        "machine": describe() | ({"gpu": torch.cuda.get_device_name(device)} if device.startswith("cuda") else {}),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "work": {k: v for k, v in vars(chosen).items() if k != "out"} | {"weights": kron.parameters},
        "training accuracy": kron.record.accuracy,
        "seconds": {"training epoch": epoch_seconds, "kron fit": fit_seconds, "distance": gap_seconds},
        "rows": rows,
        "distance of kron": in_numbers(gap),
        "share of the machine that others took": round(others.share(), 2),
    }
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")
    else:
        print(json.dumps(results, indent=1))


def draws(kron: whence.Laplace, train: Any, chosen: argparse.Namespace, tolerance: float) -> whence.Unstructured:
    return kron.unstructured(
        train,
        num_samples=chosen.samples,
        tolerance=tolerance,
        generator=torch.Generator().manual_seed(0),
        preconditioner=chosen.preconditioner,
        progress=False,
    )


def row(
    tolerance: float, seconds: float, epoch_seconds: float, found: whence.Unstructured, finest: Any, x: Tensor
) -> dict[str, Any]:
    """One tolerance: its cost, and how far its outputs are from those of the smallest one."""
    one, best = (p._derivatives(x, p.deviations)[1] for p in (found, finest))
    products = found.solved.iterations + 2  # the right-hand side and the residual at the end
    return {
        "tolerance": tolerance,
        "iterations": found.solved.iterations,
        "residual": max(found.solved.residuals),
        "seconds": seconds,
        "epochs for one product of one draw": seconds / products / len(found) / epoch_seconds,
        "relative difference of outputs from the smallest": float((one - best).norm() / best.norm()),
        "effective parameters": found.effective_parameters[0],
    }


def in_numbers(gap: Any) -> dict[str, Any]:
    return {
        "variance ratio": [gap.variance_ratio.value, gap.variance_ratio.error],
        "quantiles": gap.quantiles,
        "squared distance": [gap.squared_distance.value, gap.squared_distance.error],
        "covariance distance": gap.covariance_distance,
        "total variation": [gap.total_variation.value, gap.total_variation.noise],
        "cross share": [gap.cross_share.value, gap.cross_share.error],
        "layers": [vars(r) for r in gap.layers],
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--inputs", type=int, default=200, help="inputs that the distance is taken on")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--prior", type=float, default=10.0)
    parser.add_argument("--preconditioner", default="prior", choices=["prior", "structure"])
    parser.add_argument("--tolerances", type=float, nargs="+", default=[1e-3, 1e-2, 1e-1])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.tiny:
        chosen.width, chosen.examples, chosen.inputs, chosen.epochs = 64, 200, 50, 5
    return chosen


if __name__ == "__main__":
    main()
