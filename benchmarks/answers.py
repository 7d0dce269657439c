"""Answers at the size of the networks people have: ``python -m benchmarks.answers [--device cuda]``.

Every work (fit, tune, predict, where, novelty, audit) runs in a process of its network's own, under a time limit, and
its row is written as it comes. ``--limit-seconds 540`` ends the run after that time, in the middle of a work if need
be; ``--resume`` goes on with the works that have no row. Seconds stand beside those of the plain network on the same
inputs in the same process: T, a forward pass, or a training epoch (forward and backward passes of all batches, no
optimiser's step).
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import itertools
import json
import math
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import whence
from benchmarks import answers_peers, answers_report, answers_works, report
from benchmarks.answers_networks import NETWORKS, Subject
from benchmarks.answers_works import NEED_POSTERIOR, OURS, WORKS, Asked, Row, placeholder, rows
from benchmarks.environment import BENCH
from benchmarks.machine import describe

SKIPPED = "not all was run: the time is over. Run it again with --resume."


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.answers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names, works = ", ".join(NETWORKS), ", ".join(WORKS)
    parser.add_argument("--device", choices=report.DEVICES, default="cpu")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), metavar="NAME", help=f"only {names}")
    parser.add_argument("--works", nargs="+", choices=WORKS, metavar="WORK", help=f"only {works}")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to see that it runs")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the results file has already")
    parser.add_argument("--aims", action="store_true", help="only what decides the aims")
    parser.add_argument("--limit", type=float, help="seconds for one work, and for what it needs first (600; GPU: 60)")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="end the run after this time")
    parser.add_argument("--inputs", type=int, help="of predict, where and novelty, instead of the network's own")
    parser.add_argument("--held-out", type=int, help="of tune, and the reference of novelty")
    parser.add_argument("--examples", type=int, help="that the posterior is fitted to (not the audit's)")
    parser.add_argument("--placeholder", action="store_true", help="decompositions give the identity and cost nothing")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU (1 with --tiny)")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="a folder with laplace-torch, to run it too")
    parser.add_argument("--out", type=Path, help="results file (benchmarks/results/answers_DEVICE.json)")
    chosen = parser.parse_args(arguments)
    chosen.threads = 1 if chosen.tiny else chosen.threads
    chosen.limit = chosen.limit or (60.0 if chosen.device == "cuda" else 600.0)
    return chosen


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    chosen = options(arguments)
    folder = BENCH / "quick" if chosen.tiny else report.RESULTS
    path = chosen.out or folder / f"answers_{chosen.device}.json"
    results = begun(chosen, path)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for a device does not start it before a fork
    if chosen.peers is not None:
        sys.path.insert(0, str(chosen.peers.absolute()))
        importlib.import_module("laplace")  # once, before the forks
    start, complete = time.perf_counter(), True
    for network in chosen.networks or NETWORKS:
        for row in network_rows(network, chosen, results["rows"], start + chosen.limit_seconds):
            results["rows"] = merged(results["rows"], [row])
            results |= {key: row.pop(key) for key in ("torch", "gpu") if key in row}
            answers_report.save(results, path)
            print("  ".join(answers_report.cells(row)), flush=True)
        complete = complete and time.perf_counter() < start + chosen.limit_seconds
    print(f"\n{answers_report.bars_text(results)}\n{time.perf_counter() - start:.0f} s; {path}")
    if not complete:
        print(SKIPPED)
    return results


def begun(chosen: argparse.Namespace, path: Path) -> dict[str, Any]:
    """What an earlier run left, where only some is run anew, or nothing."""
    keep = chosen.resume or chosen.networks or chosen.works
    earlier = json.loads(path.read_text()) if keep and path.exists() else {}
    if earlier and earlier["tiny"] != chosen.tiny:
        raise SystemExit(f"{path} has {'toy' if earlier['tiny'] else 'real'} sizes; choose another --out.")
    return {
        "device": chosen.device,
        "date": datetime.date.today().isoformat(),
        "machine": describe(),
        "threads": chosen.threads,
        "tiny": chosen.tiny,
        "torch": torch.__version__,
        "gpu": earlier.get("gpu"),
        "whence": whence.__version__,
        "rows": earlier.get("rows", []),
    }


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """Rows in the order of networks and works; a new one replaces an old one."""
    found = {key(row): row for row in [*old, *new]}
    order = {name: i for i, name in enumerate(NETWORKS)}
    return sorted(found.values(), key=lambda row: (order[row["network"]], WORKS.index(row["work"])))


def key(row: Row) -> tuple[str, str, str]:
    return row["network"], row["work"], row["contender"]


def jobs_of(network: str, chosen: argparse.Namespace) -> dict[tuple[str, str], Any]:
    """What was asked for, by work and contender."""
    found = answers_works.JOBS | (answers_peers.JOBS if chosen.peers is not None else {})
    kept = {pair: job for pair, job in found.items() if chosen.works is None or pair[0] in chosen.works}
    if chosen.aims:
        kept = {pair: job for pair, job in kept.items() if answers_report.decides(chosen.device, network, *pair)}
    return kept


def network_rows(network: str, chosen: argparse.Namespace, old: list[Row], deadline: float) -> Iterator[Row]:
    """Rows of one network; after a work that had to be ended, another process goes on with the next."""
    done = {key(row): row for row in old} if chosen.resume else {}
    jobs = {pair: job for pair, job in jobs_of(network, chosen).items() if (network, *pair) not in done}
    failed = done.get((network, "fit", OURS), {}).get("error")
    while jobs and time.perf_counter() < deadline:
        for row in forked(lambda: asked_rows(network, chosen, dict(jobs)), chosen.limit, deadline):
            pair = (row["work"], row["contender"]) if "work" in row else next(iter(jobs))
            del jobs[pair]
            failed = row.get("error") if pair == ("fit", OURS) else failed
            yield {"network": network, "work": pair[0], "contender": pair[1]} | row
            if failed and pair == ("fit", OURS):
                break
        for pair in [pair for pair in jobs if failed and pair[1] == OURS and pair[0] in NEED_POSTERIOR]:
            del jobs[pair]
            yield {"network": network, "work": pair[0], "contender": OURS, "error": f"no posterior: {failed}"}


def asked_rows(network: str, chosen: argparse.Namespace, jobs: dict[tuple[str, str], Any]) -> Iterator[Row]:
    """In the process that measures."""
    torch.set_num_threads(chosen.threads)
    cuda = {"gpu": torch.cuda.get_device_name()} if chosen.device == "cuda" else {}
    with placeholder(chosen.placeholder).running():
        limits = {name: getattr(chosen, name) for name in ("inputs", "held_out", "examples")}
        for row in rows(Asked(Subject(network, chosen.device, chosen.tiny), limits), jobs):
            yield row if "began" in row else row | cuda | {"placeholder": chosen.placeholder}


def forked(make: Callable[[], Iterator[Row]], limit: float, until: float = math.inf) -> Iterator[Row]:
    """Rows of a fork of this process as they come. It is ended when one takes longer than ``limit``, and at ``until``.

    This process computes nothing itself, so that a fork starts with no threads and no device. ``{"began": …}`` starts
    the clock again.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(make, read, write)
    os.close(write)
    began, running = "start", True
    last: Row = {}
    try:
        for last in _lines(read, limit, until):
            if "work" in last:
                yield last
            began = last.get("began", began)
        running = "late" in last
    finally:
        os.close(read)
        if running:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if "late" in last and time.perf_counter() < until:
        yield {"error": f"no result within {limit:g} s ({began})"}
    elif "late" not in last and "ended" not in last:
        yield {"error": f"the process ended with status {os.waitstatus_to_exitcode(status)} ({began})"}


def _child(make: Callable[[], Iterator[Row]], read: int, write: int) -> None:
    os.close(read)
    with os.fdopen(write, "w") as file:
        try:
            for row in itertools.chain(make(), [{"ended": True}]):
                file.write(json.dumps(row) + "\n")
                file.flush()
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(0)


def _lines(read: int, limit: float, until: float) -> Iterator[Row]:
    """One row for each line; ``{"late": True}`` when the next takes too long."""
    rest, deadline = b"", time.perf_counter() + limit
    while True:
        left = min(deadline, until) - time.perf_counter()
        if left <= 0 or not select.select([read], [], [], left)[0]:
            yield {"late": True}
            return
        piece = os.read(read, 1 << 16)
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield json.loads(line)
            deadline = time.perf_counter() + limit


if __name__ == "__main__":
    main()
