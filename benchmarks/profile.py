"""Where the time of a fit goes, beside the arithmetic limit: ``python -m benchmarks.profile [--device cuda]``.

Parts are timed around the steps of a fit, with the device waited for at both ends of each and without CUDA graphs, so
that their sum is more than an undisturbed fit, which is timed beside it. The arithmetic limit is what the products that
a fit cannot do without would take at the rate of a large float32 matrix product on this machine: one forward pass, one
backward pass to the layers' outputs for each root column, and the upper triangles of all Σ a aᵀ and Σ g gᵀ.
Decompositions are no part of it, nor of the undisturbed fit. ``--predictions`` takes linearised predictions apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import whence
from benchmarks import profile_predictions, report, sizes
from benchmarks.contenders import Clock, Stopwatch, Task, run_epoch, synchronise
from benchmarks.contenders_whence import fitted
from benchmarks.machine import describe
from whence.curvature.diagonals import DiagonalSums
from whence.curvature.kfac import KroneckerSums
from whence.recording.calls import Recording
from whence.recording.plan import Plan

STEPS: dict[str, tuple[type, str]] = {
    "forward": (Plan, "record"),
    "backward": (Recording, "differentiate"),
    "A factors": (KroneckerSums, "add_inputs"),
    "G factors": (KroneckerSums, "add_gradients"),
    "diagonal": (DiagonalSums, "add_gradients"),
}
PARTS = [*STEPS, "decomposition", "rest"]
FITS = [("kron", "ggn"), ("kron", "mc"), ("kron", "empirical"), ("diag", "ggn")]
CPU_SIDE, CUDA_SIDE = 2048, 8192  # of the product that measures the machine's rate
NETWORKS = ("mlp", "lenet", "vgg", "wrn", "transformer")


def profile(task: Task, structure: str, curvature: str, decompose: bool) -> tuple[dict[str, float], Any]:
    """Seconds of each part of one fit after a first, and the posterior."""
    model, data = task.network(), task.loader()
    stopwatch = Stopwatch(placeholder=not decompose)
    with stopwatch.running():
        fitted(model, data, structure, curvature)
        stopwatch.seconds = 0.0
        usual = seconds_of(lambda: fitted(model, data, structure, curvature)) - stopwatch.seconds
        whole = {"undisturbed": usual}
        if task.device.startswith("cuda"):
            stopwatch.seconds = 0.0
            plain = seconds_of(
                lambda: fitted(model, data, structure, curvature, execution=whence.Execution(cuda_graphs=False))
            )
            whole["without graphs"] = plain - stopwatch.seconds
        clock, stopwatch.seconds = Clock(PARTS), 0.0
        with ExitStack() as stack:
            for part, (owner, method) in STEPS.items():
                stack.enter_context(clock.around(part, owner, method))
            synchronise()
            start = time.perf_counter()
            posterior = fitted(model, data, structure, curvature, execution=whence.Execution(cuda_graphs=False))
            synchronise()
            total = time.perf_counter() - start
    seconds = clock.seconds | {"decomposition": stopwatch.seconds}
    seconds["rest"] = max(0.0, total - sum(seconds.values()))
    return seconds | {"total": total} | whole, posterior


def needed_flops(task: Task, posterior: Any, curvature: str) -> float:
    """Floating-point operations that a Kronecker or diagonal fit cannot do without."""
    outputs = posterior.record.output_shape[-1]
    columns = outputs if curvature == "ggn" else 1
    total = forward_flops(task) * (1 + columns)
    for block, structure in zip(posterior.blocks, posterior.curvature.structures, strict=True):
        tensors = structure.tensors()
        if "inputs" in tensors and "grads" in tensors:
            rows = float(tensors["count"].sum())
            total += rows * outer(tensors["inputs"]) + columns * rows * outer(tensors["grads"])
        elif block.form is not None:  # a diagonal: one product of squares for each example, if positions are one
            total += 2.0 * task.size * block.size
    return total


def outer(factor: Tensor) -> int:
    """Operations of one outer product: the upper triangle of [E, D, D], or the squares of [E, D]."""
    side = factor.shape[-1]
    return side * (side + 1) if factor.dim() == 3 else 2 * side


def forward_flops(task: Task) -> float:
    model, few = task.network(), task.inputs(4)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(few)
    return counter.get_total_flops() / 4 * task.size


def rate(device: str) -> float:
    """Floating-point operations each second of a large float32 product, the best of ten."""
    side = CUDA_SIDE if device == "cuda" else CPU_SIDE
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    return 2.0 * side**3 / min(seconds_of(lambda: a @ b) for _ in range(10))


def seconds_of(work: Callable[[], Any]) -> float:
    synchronise()
    start = time.perf_counter()
    work()
    synchronise()
    return time.perf_counter() - start


def rows(device: str, quick: bool, networks: list[str], flops: float) -> Iterator[dict[str, Any]]:
    """One row for each network and kind of fit."""
    scale = sizes.CUDA if device == "cuda" else sizes.CPU
    scale = sizes.quick(scale) if quick else scale
    for net in networks:
        size = scale.networks[net]
        for structure, curvature in FITS:
            count = size.exact if size.exact and curvature == "ggn" else size.fit
            if structure == "diag" and net in ("wrn", "transformer"):
                continue
            task = Task(net, device, count, min(size.batch, count), width=size.width)
            model, data = task.network(), task.loader()
            run_epoch(model, data)
            epoch = min(seconds_of(lambda m=model, d=data: run_epoch(m, d)) for _ in range(3))  # type: ignore[misc]
            seconds, posterior = profile(task, structure, curvature, not size.placeholder)
            needed = needed_flops(task, posterior, curvature)
            yield {
                "network": net, "fit": f"{structure}, {curvature}", "examples": count, "seconds": seconds,
                "epoch": epoch, "gflop": needed / 1e9, "limit": needed / flops,
            }  # fmt: skip


HEAD = ["network", "fit", "examples", *PARTS, "total", "without graphs", "undisturbed", "epochs", "limit", "× limit"]


def cells(row: dict[str, Any]) -> list[str]:
    seconds = row["seconds"]
    known = "undisturbed" in seconds
    spent = seconds["undisturbed"] if known else seconds["total"] - seconds["decomposition"]
    parts = [report.number(seconds[part]) if seconds[part] > 1e-5 else "–" for part in PARTS]
    return [
        row["network"], row["fit"], f"{row['examples']:,}", *parts, report.number(seconds["total"]),
        report.number(seconds["without graphs"]) if "without graphs" in seconds else "–",
        report.number(spent) if known else "–", report.number(spent / row["epoch"]), report.number(row["limit"]),
        report.number(spent / row["limit"]),
    ]  # fmt: skip


def markdown(results: dict[str, Any]) -> str:
    return report.profile_table(results, "decompositions of VGG-11 and WRN-16-4 are left out", HEAD, cells)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--device", choices=report.DEVICES, default="cpu")
    parser.add_argument("--predictions", action="store_true", help="predictions instead of fits")
    known = f"of fits: {', '.join(NETWORKS)}; of predictions: {', '.join(profile_predictions.NETWORKS)}"
    parser.add_argument("--networks", nargs="+", metavar="NAME", help=known)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs; nothing is saved")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=report.RESULTS)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    kind: Any = profile_predictions if chosen.predictions else sys.modules[__name__]
    networks = chosen.networks or list(kind.NETWORKS)
    if unknown := set(networks) - set(kind.NETWORKS):
        parser.error(f"no profile of {', '.join(sorted(unknown))}; there are {known}.")
    flops = rate(chosen.device)
    results: dict[str, Any] = {
        "machine": describe(),
        "gpu": torch.cuda.get_device_name() if chosen.device == "cuda" else None,
        "torch": torch.__version__,
        "whence": whence.__version__,
        "gflops": flops / 1e9,
        "rows": [],
    }
    print("  ".join(kind.HEAD))
    name = f"{'predictions' if chosen.predictions else 'profile'}_{chosen.device}.json"
    for row in kind.rows(chosen.device, chosen.quick, networks, flops):
        results["rows"].append(row)
        print("  ".join(kind.cells(row)), flush=True)
        if not chosen.quick:
            chosen.results.mkdir(parents=True, exist_ok=True)
            report.write(chosen.results / name, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
