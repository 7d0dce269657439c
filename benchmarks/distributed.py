"""Efficiency of a fit on several processes against one, on the same total work, one thread each.

``python -m benchmarks.distributed [--processes 2]`` prints a table and writes ``benchmarks/results/distributed.json``.
Efficiency is the time of one process over P times that of P processes: 1 if they share the work without loss.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, multiprocessing, nn
from torch import distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from benchmarks import machine

RESULTS = Path(__file__).parent / "results" / "distributed.json"
BATCH = 128


def mlp() -> nn.Module:
    """784-1024-1024-10."""
    layers = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def lenet() -> nn.Module:
    """LeNet-5 with ReLU and max pooling."""
    convolutions = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()]
    dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), *dense)


NETWORKS = {"MLP 784-1024-1024-10": mlp, "LeNet-5": lenet}


def data_of(examples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(examples, 1, 28, 28, generator=generator), torch.randint(10, (examples,), generator=generator)


def measure(rank: int, processes: int, folder: str, examples: int, repeats: int) -> None:
    """The work of one rank; rank 0 writes the best of some times."""
    import whence

    torch.set_num_threads(1)
    group = None
    if processes > 1:
        store = f"file://{folder}/store-{processes}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=processes)
        group = True
    found: dict[str, Any] = {}
    for name, make in NETWORKS.items():
        torch.manual_seed(0)
        model, data = make(), TensorDataset(*data_of(examples))
        sampler = DistributedSampler(data, processes, rank, shuffle=False) if group else None
        loader = DataLoader(data, BATCH, sampler=sampler)
        rows = []
        for _ in range(repeats + 1):  # the first one warms up
            if group:
                dist.barrier()
            start = time.perf_counter()
            posterior = whence.laplace(
                model, loader, likelihood="classification", curvature="ggn", process_group=group, progress=False
            )
            rows.append({"total": time.perf_counter() - start, **posterior.curvature.seconds})
        found[name] = min(rows[1:], key=lambda row: row["total"])
    if rank == 0:
        Path(folder, f"{processes}.json").write_text(json.dumps(found))
    if group:
        dist.destroy_process_group()


def run(processes: int, folder: str, examples: int, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds by network, of ``processes`` processes that start together."""
    arguments = (processes, folder, examples, repeats)
    multiprocessing.spawn(measure, args=arguments, nprocs=processes)
    found: dict[str, dict[str, float]] = json.loads(Path(folder, f"{processes}.json").read_text())
    return found


def table(one: dict[str, Any], several: dict[str, Any], processes: int) -> list[dict[str, Any]]:
    """Seconds and efficiency, of the whole fit and of its parts."""
    rows = []
    for name, alone in one.items():
        row: dict[str, Any] = {"network": name}
        for part in ("total", *(p for p in alone if p != "total")):
            together = several[name][part]
            row[part] = {
                "one": round(alone[part], 4),
                "several": round(together, 4),
                "efficiency": round(alone[part] / (processes * together), 3) if together else None,
            }
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]], processes: int) -> None:
    print(f"{'network':24}{'part':16}{'1 process':>12}{f'{processes} processes':>14}{'efficiency':>12}")
    for row in rows:
        for part, values in row.items():
            if part != "network":
                numbers = f"{values['one']:>10.3f} s{values['several']:>12.3f} s{values['efficiency'] or 0:>12.2f}"
                print(f"{row['network']:24}{part:16}{numbers}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--examples", type=int, default=6000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    others = machine.Others()
    with tempfile.TemporaryDirectory() as folder:
        one = run(1, folder, chosen.examples, chosen.repeats)
        several = run(chosen.processes, folder, chosen.examples, chosen.repeats)
    rows = table(one, several, chosen.processes)
    show(rows, chosen.processes)
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine.describe(),
        "torch": torch.__version__,
        "processes": chosen.processes,
        "threads_each": 1,
        "examples": chosen.examples,
        "batch_size": BATCH,
        "work": "Kronecker fit, exact Gauss–Newton; best of the repeats",
        "share_of_other_programs": round(others.share(), 2),
        "rows": rows,
    }
    chosen.results.parent.mkdir(exist_ok=True)
    chosen.results.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
