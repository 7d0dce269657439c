"""``python -m benchmarks.priors [--device cuda]``: what the relative prior costs beside an isotropic one.

Fits, linearised predictions, tuning and ``where`` of the same network and data under ``whence.Relative(1.0)`` and under
``prior_precision=1.0``, in turns; the ratio is that of the medians. ``--tiny`` is a quick look, ``--out FILE`` writes
JSON.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import whence
from benchmarks.machine import Others, describe
from benchmarks.networks import NETWORKS, inputs, loader, network

PRIORS: dict[str, Any] = {"relative": whence.Relative(1.0), "isotropic": 1.0}
STRUCTURES = ("kron", "diag")


def seconds(work: Callable[[], object], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start


def works(name: str, structure: str, prior: Any, chosen: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """One fit, and what is asked of it; the posterior of the works after ``fit`` is made here."""
    device = chosen.device
    model = network(name, device=device)
    data = loader(name, chosen.examples, chosen.batch, device)
    x = inputs(name, chosen.inputs, device=device)
    y = torch.randint(0, NETWORKS[name].classes, (chosen.inputs,), generator=torch.Generator().manual_seed(3))

    def fit() -> whence.Laplace:
        return whence.laplace(
            model,
            data,
            likelihood="classification",
            structure=structure,
            curvature="mc",
            prior_precision=prior,
            progress=False,
        )

    posterior = fit()
    pair: tuple[Tensor, Tensor] = (x, y.to(device))
    return {
        "fit": fit,
        "predict": lambda: posterior.predict(x),
        "tune": lambda: posterior.tune(pair, progress=False),
        "where": lambda: posterior.where(x).layers,
    }


def compared(name: str, structure: str, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each work: medians of both priors and their ratio."""
    both = {label: works(name, structure, prior, chosen) for label, prior in PRIORS.items()}
    rows = []
    for work in next(iter(both.values())):
        for label in PRIORS:
            both[label][work]()  # kernels, allocator
        times: dict[str, list[float]] = {label: [] for label in PRIORS}
        for _ in range(chosen.repeats):
            for label in PRIORS:
                times[label].append(seconds(both[label][work], chosen.device))
        found = {label: median(each) for label, each in times.items()}
        ratio = found["relative"] / found["isotropic"]
        row = {"network": name, "structure": structure, "work": work, **found, "ratio": ratio}
        rows.append(row)
        print(
            f"{name:12} {structure:5} {work:8} {found['isotropic']:8.4f} s, ratio {rows[-1]['ratio']:.2f}", flush=True
        )
    return rows


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.priors", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["mlp", "lenet", "transformer"])
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--inputs", type=int, default=500)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.tiny:
        chosen.networks, chosen.examples, chosen.inputs, chosen.repeats = ["lenet"], 64, 8, 1
    return chosen


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    chosen = options(arguments)
    others = Others()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.errors.Notice)
        rows = [row for name in chosen.networks for kind in STRUCTURES for row in compared(name, kind, chosen)]
    if chosen.out is not None:
        machine = describe()
        if chosen.device.startswith("cuda"):
            machine["gpu"] = torch.cuda.get_device_name(chosen.device)
        result = {
            "machine": machine,
            "torch": torch.__version__,
            "work": {k: v for k, v in vars(chosen).items() if k != "out"},
            "share of the machine that others took": round(others.share(), 2),
            "rows": rows,
        }
        chosen.out.write_text(json.dumps(result, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
