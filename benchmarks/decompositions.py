"""How long an eigendecomposition takes, by size, device, type and batch: what the thresholds of whence rest on.

python -m benchmarks.decompositions [--device cuda] [--sizes 16,64,256] [--out FILE]

The constants are at the top of ``whence/linalg/dense.py``: up to which size a GPU's matrices are decomposed on the CPU,
in float64, and in one call with others of their shape.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import machine
from whence.linalg import dense

SIZES = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4609)
LONGEST = 20.0  # seconds that one way of doing it may take


def factor(batch: int, size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Like a layer's: a fast decay of eigenvalues, and fewer examples than rows."""
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(batch, max(size // 2, 4), size, generator=generator, dtype=torch.float64)
    rows = rows * torch.logspace(0, -3, size, dtype=torch.float64)
    return (rows.mT @ rows).to(device, dtype)


def seconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """The quickest of some runs, the first one apart."""
    found = []
    for i in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
        if i and sum(found) > LONGEST:
            break
    return min(found[1:] or found)


def ways(device: torch.device) -> dict[str, tuple[torch.device, torch.dtype, bool]]:
    """Where, in what type, and whether all in one call."""
    cpu = torch.device("cpu")
    found = {"cpu float64": (cpu, torch.float64, False), "cpu float32": (cpu, torch.float32, False)}
    if device.type == "cuda":
        for name, dtype in (("float64", torch.float64), ("float32", torch.float32)):
            found[f"cuda {name}"] = (device, dtype, False)
            found[f"cuda {name}, one call"] = (device, dtype, True)
    return found


def measured(size: int, batch: int, device: torch.device, repeats: int) -> dict[str, Any]:
    given = factor(batch, size, device, torch.float32)
    row: dict[str, Any] = {"size": size, "batch": batch}
    for name, (place, dtype, together) in ways(device).items():

        def work(place: torch.device = place, dtype: torch.dtype = dtype, together: bool = together) -> None:
            moved = given.to(place, dtype)  # the way there and back counts
            parts = [moved] if together else list(moved)
            for part in parts:
                _, vectors = torch.linalg.eigh(part)
                vectors.to(device, torch.float32)

        try:
            row[name] = seconds(work, device, repeats)
        except RuntimeError as error:
            row[name] = str(error).split("\n")[0][:120]
    row["whence"] = seconds(lambda: dense.eigh_many(list(given), [str(size)] * batch), device, repeats)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--batch", type=int, default=8, help="matrices of one shape (one from 1,024 rows)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = torch.device(args.device)
    rows = []
    for size in map(int, args.sizes.split(",")):
        rows.append(measured(size, args.batch if size < 1024 else 1, device, args.repeats))
        cells = [f"{k} {v * 1e3:.2f} ms" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()]
        print(" | ".join(cells), flush=True)
    constants = ("CPU_DOUBLE", "CUDA_DOUBLE", "CUDA_BATCHED", "ON_CPU")
    found = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine.describe(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "constants": {name: getattr(dense, name) for name in constants},
        "rows": rows,
    }
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
