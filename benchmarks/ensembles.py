"""``python -m benchmarks.ensembles [--device cuda]``: members trained side by side against one after the other.

Ten MLPs (784-200-200-10) on random images, ``whence.fit_ensemble`` with the same seeds, the two ways in turn. What is
timed is the whole call. That both ways give the same members is seen on a smaller data set in float64: in float32 a
unit whose input lies within rounding of ReLU's kink sends a member another way now and then. ``--out FILE`` writes the
results as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import Others, describe
from whence.posteriors.ensembles.fit import fit_ensemble
from whence.posteriors.ensembles.posterior import Ensemble

BAR = 2.0  # times faster, on a GPU


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )  # 199,210 weights


def data(size: int, device: str) -> tuple[Tensor, Tensor]:
    """Labels that can be learned, so that the losses fall."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(size, 784, generator=g)
    y = (x @ torch.randn(784, 10, generator=g)).argmax(1)
    return x.to(device), y.to(device)


def timed(fit: Callable[[], Ensemble], device: str) -> tuple[float, Ensemble]:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    posterior = fit()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start, posterior


def ways(device: str) -> dict[str, dict[str, Any]]:
    """How members can be trained."""
    found: dict[str, dict[str, Any]] = {
        "one after the other": {"vectorised": False},
        "side by side": {"vectorised": True},
    }
    if device.startswith("cuda"):
        found["one after the other, steps captured as a graph"] = {"vectorised": False, "capture": True}
    return found


def main() -> None:
    chosen = options()
    pair = data(chosen.examples, chosen.device)
    common: dict[str, Any] = {
        "likelihood": "classification",
        "members": chosen.members,
        "epochs": chosen.epochs,
        "batch_size": chosen.batch_size,
        "lr": 0.05,
        "device": chosen.device,
        "progress": False,
    }
    small = {**common, "members": 2, "epochs": 1}
    few = (pair[0][:2048], pair[1][:2048])
    times: dict[str, list[float]] = {}
    others = Others()
    for way in ways(chosen.device).values():
        fit_ensemble(network, few, **small, **way)  # handles, kernels, allocator
    for _ in range(chosen.repeats):
        for name, way in ways(chosen.device).items():
            seconds, posterior = timed(lambda way=way: fit_ensemble(network, pair, **common, **way), chosen.device)
            times.setdefault(name, []).append(seconds)
            print(f"{name}: {seconds:.2f} s, last loss {posterior.history[0][-1]['loss']:.4f}", flush=True)
    results = summary(times, agreement(few, common), chosen, others.share())
    print(json.dumps(results, indent=1))
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")


def agreement(pair: tuple[Tensor, Tensor], common: dict[str, Any]) -> float:
    """The largest difference between the members' probabilities, the one way and the other."""
    x, y = pair[0].double(), pair[1]
    found = [fit_ensemble(lambda: network().double(), (x, y), vectorised=v, **common) for v in (False, True)]
    apart, together = (posterior.predict(x).samples for posterior in found)
    return float((apart - together).abs().max())


def summary(
    times: dict[str, list[float]], difference: float, chosen: argparse.Namespace, others: float
) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in times.items()}
    cuda = chosen.device.startswith("cuda")
    return {
        "machine": describe() | ({"gpu": torch.cuda.get_device_name(chosen.device)} if cuda else {}),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "work": {k: getattr(chosen, k) for k in ("device", "members", "examples", "epochs", "batch_size", "repeats")},
        "seconds": {name: [round(v, 3) for v in values] for name, values in times.items()},
        "side by side is faster": {
            f"than {name}": round(value / medians["side by side"], 2)
            for name, value in medians.items()
            if name != "side by side"
        },
        "bar": BAR if cuda else None,
        "largest difference of probabilities in float64": difference,
        "share of the machine that others took": round(others, 2),
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ensembles", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
