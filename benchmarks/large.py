"""Large networks on one device: a sampled Kronecker fit beside a plain training epoch over the same batches.

python -m benchmarks.large [--device cuda] [--network resnet50|gpt2] [--budget 80] [--tiny] [--out FILE]

A training epoch is forward and backward passes without an optimiser's step. Each is measured in float32 and under
bfloat16 autocast; the decompositions are shown apart from the curvature. Weights and data are random. ``--budget`` is
the memory in GiB that a fit may take, counted from what the network and one batch hold at rest; on CUDA it is enforced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import whence
from benchmarks import machine
from benchmarks.large_networks import gpt2, resnet50

Batches = list[tuple[Tensor, Tensor]]


class Work:
    """A network, its batches and its likelihood."""

    def __init__(self, name: str, device: torch.device, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.name, tiny = name, args.tiny
        if name == "resnet50":
            side, classes, size = (32, 12, 4) if tiny else (224, 1000, args.batch or 64)
            self.model = resnet50(tiny)
            self.batches: Batches = [
                (torch.randn(size, 3, side, side), torch.randint(classes, (size,))) for _ in range(args.batches)
            ]
            self.likelihood: whence.Likelihood = whence.Categorical()
        else:
            context, words, size = (16, 211, 3) if tiny else (args.context, 50_257, args.batch or 8)
            self.model = gpt2(tiny, context)
            text = torch.randint(words, (args.batches, size, context + 1))
            self.batches = [(t[:, :-1].contiguous(), t[:, 1:].contiguous()) for t in text]
            self.likelihood = whence.Categorical(class_dim=-1)
        self.model.eval().to(device)
        self.batches = [(x.to(device), y.to(device)) for x, y in self.batches]
        self.device = device

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        outputs = self.model(x)
        return F.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="sum")

    def epoch(self, dtype: torch.dtype | None) -> None:
        for x, y in self.batches:
            with autocast(self.device, dtype):
                loss = self.loss(x, y)
            loss.backward()
            self.model.zero_grad(set_to_none=True)

    def fit(self, dtype: torch.dtype | None, offload: bool, max_factor: int) -> Any:
        with warnings.catch_warnings(record=True) as said, autocast(self.device, dtype):
            warnings.simplefilter("always")
            posterior = whence.laplace(
                self.model,
                self.batches,
                likelihood=self.likelihood,
                curvature="mc",
                generator=torch.Generator().manual_seed(0),
                execution=whence.Execution(offload=offload),
                max_factor=max_factor,
                progress=False,
            )
        return posterior, [str(w.message) for w in said if issubclass(w.category, whence.errors.Notice)]


def autocast(device: torch.device, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak(device: torch.device, work: Callable[[], Any]) -> tuple[float, float | None, Any]:
    """Seconds, peak memory in GiB above the start (None where it is not known), and the result."""
    at_rest = 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        at_rest = torch.cuda.memory_allocated(device)
    start = clock(device)
    found = work()
    seconds = clock(device) - start
    if device.type != "cuda":
        return seconds, None, found
    return seconds, (torch.cuda.max_memory_allocated(device) - at_rest) / 2**30, found


def measured(work: Work, dtype: torch.dtype | None, args: argparse.Namespace) -> dict[str, Any]:
    """One network in one precision."""
    row: dict[str, Any] = {"network": work.name, "precision": "float32" if dtype is None else "bfloat16 autocast"}
    row |= {
        "weights": sum(p.numel() for p in work.model.parameters()),
        "examples": sum(len(y) for _, y in work.batches),
    }
    work.epoch(dtype)  # warm
    epochs = [peak(work.device, lambda: work.epoch(dtype))[:2] for _ in range(args.repeats)]
    row["epoch_s"], row["epoch_gib"] = min(epochs, key=lambda e: e[0])
    fits = []
    for _ in range(args.repeats + (not args.cold)):
        seconds, memory, (posterior, said) = peak(work.device, lambda: work.fit(dtype, args.offload, args.max_factor))
        fits.append({"fit_s": seconds, "fit_gib": memory, **posterior.curvature.seconds})
        row["notices"] = said
        row["structures"] = counted(posterior)
        row["kept_gib"] = sum(s.memory for s in posterior.structures.values()) / 2**30
        del posterior
    row |= min(fits, key=lambda f: f["curvature"])
    row["ratio"] = row["curvature"] / row["epoch_s"]
    row["ratio_with_start"] = (row["fit_s"] - row["decomposition"]) / row["epoch_s"]  # copying, hashing, inspecting
    return row


def counted(posterior: Any) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for block in posterior.blocks:
        thin = ", one side diagonal" if block.thin_outputs or block.thin_inputs else ""
        kind = f"{block.structure}{thin}{', by call' if block.by_call else ''}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def limit(device: torch.device, budget: float | None) -> None:
    """Hold the process to a memory budget."""
    if budget is not None and device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory / 2**30
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / whole), device)


def table(rows: list[dict[str, Any]]) -> str:
    head = f"{'network':10} {'precision':18} {'epoch s':>8} {'curvature s':>12} {'ratio':>6} {'with start':>11}"
    lines = [f"{head} {'decompose s':>12} {'fit GiB':>8} {'kept GiB':>9}"]
    for r in rows:
        memory = "–" if r["fit_gib"] is None else f"{r['fit_gib']:.1f}"
        lines.append(
            f"{r['network']:10} {r['precision']:18} {r['epoch_s']:8.3f} {r['curvature']:12.3f} {r['ratio']:6.2f} "
            f"{r['ratio_with_start']:11.2f} {r['decomposition']:12.3f} {memory:>8} {r['kept_gib']:9.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", choices=("resnet50", "gpt2"), action="append")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), action="append")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--batch", type=int, help="examples in a batch: 64 images or 8 texts")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--budget", type=float, help="GiB that the process may take on a GPU")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="do not warm the fit up")
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--max-factor", type=int, default=16_384)
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device(args.device)
    limit(device, args.budget)
    rows = []
    for name in args.network or ["resnet50", "gpt2"]:
        for precision in args.precision or ["float32", "bfloat16"]:
            work = Work(name, device, args)
            rows.append(measured(work, None if precision == "float32" else torch.bfloat16, args))
            print(table(rows[-1:]), *rows[-1]["notices"], sep="\n", flush=True)
            del work
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine.describe(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "whence": whence.__version__,
        "budget_gib": args.budget,
        "tiny": args.tiny,
        "rows": rows,
    }
    print(table(rows))
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
