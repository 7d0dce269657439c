"""``python -m benchmarks``: whence beside its peers, in one run.

On a machine without pip: ``python -m benchmarks --make-peers DIR`` elsewhere, then, again until all is done,
``python -m benchmarks --device cuda --python CURRENT --peers DIR --resume --limit-seconds 540``.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import report, sizes
from benchmarks.bars import DECIDING
from benchmarks.environment import BENCH, ROOT, interpreter, make_peers, versions
from benchmarks.machine import describe
from benchmarks.runner import Run, Workers
from benchmarks.works import KINDS, Work, works

SKIPPED = "not all was run: the time is over. Run it again with --resume."


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    kinds = sorted({work.kind for work in works(sizes.CPU, "cpu")})
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=report.DEVICES, default="cpu")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--networks", nargs="+", choices=list(KINDS), metavar="NAME", help=f"only {', '.join(KINDS)}")
    parser.add_argument("--only", nargs="+", choices=kinds, metavar="KIND", help=f"only {', '.join(kinds)}")
    parser.add_argument("--bars", action="store_true", help="only what decides the bars")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the results file has already")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="start nothing after this time")
    parser.add_argument("--results", type=Path, help="folder of the results files (benchmarks/results)")
    parser.add_argument("--python", help="an interpreter that has the peers, instead of .bench/venv; CURRENT: this one")
    parser.add_argument("--peers", type=Path, help="a folder made by --make-peers, for that interpreter")
    parser.add_argument("--fresh", action="store_true", help="an interpreter for each contender instead of a fork")
    parser.add_argument("--threads", type=int, default=2, help="of each contender on the CPU")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for a quiet machine, nor repeat")
    parser.add_argument("--list", action="store_true", help="list what would be run")
    parser.add_argument("--page", action="store_true", help="only fill docs/benchmarks.md from the results files")
    parser.add_argument("--make-peers", type=Path, metavar="DIR", help="make that folder, and end")
    parser.add_argument("--peers-python", default="3.12", metavar="VERSION", help="the Python that DIR is for")
    return parser.parse_args(arguments)


def main() -> None:
    chosen = options()
    if chosen.make_peers is not None:
        make_peers(chosen.make_peers, chosen.peers_python)
        return
    if chosen.page:
        report.fill_page()
        return
    selected = selection(chosen)
    if chosen.list:
        print("\n".join(f"{work.name}  {work.title}  ({len(work.contenders)} contenders)" for work in selected))
        return
    python = Path(sys.executable) if chosen.python == "CURRENT" else Path(chosen.python or interpreter())
    folder = chosen.results or (BENCH / "quick" if chosen.quick else report.RESULTS)
    start = time.perf_counter()
    results = begun(chosen, folder)
    workers = Workers(python.absolute(), chosen.peers, chosen.threads, chosen.fresh)
    quiet = chosen.device == "cpu" and not (chosen.no_wait or chosen.quick)
    run = Run(workers, results, lambda: saved(results, folder), quiet=quiet)
    complete = [run.work(work, chosen.resume, start + chosen.limit_seconds) for work in selected]
    workers.close()
    done = [work.name for work in selected if work.name in results["works"]]
    print(f"\n{report.text(results, done)}")
    print(f"\n{time.perf_counter() - start:.0f} s; {folder}/{chosen.device}.json")
    if not all(complete):
        print(SKIPPED)
    if chosen.quick:
        print("Small sizes: the bars are for the full ones.")
    elif folder == report.RESULTS:
        report.fill_page()


def selection(chosen: argparse.Namespace) -> list[Work]:
    """What was asked for, the works that decide bars first."""
    scale = sizes.CUDA if chosen.device == "cuda" else sizes.CPU
    found = works(sizes.quick(scale) if chosen.quick else scale, chosen.device)
    found = [work for work in found if chosen.networks is None or work.network in chosen.networks]
    found = [work for work in found if chosen.only is None or work.kind in chosen.only]
    found = [work for work in found if not chosen.bars or work.name in DECIDING]
    return sorted(found, key=lambda work: work.name not in DECIDING)


def begun(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The results so far: those of an earlier run where only some are run anew, or none."""
    keep = chosen.resume or chosen.only or chosen.networks or chosen.bars
    earlier = report.saved(folder, chosen.device) if keep else {}
    return {
        "device": chosen.device,
        "date": datetime.date.today().isoformat(),
        "machine": describe(),
        "threads": chosen.threads,
        "gpu": earlier.get("gpu"),
        "torch": earlier.get("torch", "?"),
        "whence": (ROOT / "src" / "whence" / "_version.py").read_text().partition('"')[2].partition('"')[0],
        "versions": versions(),
        "works": earlier.get("works", {}),
    }


def saved(results: dict[str, Any], folder: Path) -> None:
    """Write what there is, in the order of the works."""
    order = {work.name: i for i, work in enumerate(works(sizes.CPU, "cpu"))}
    found = results["works"]
    results["works"] = {name: found[name] for name in sorted(found, key=lambda n: order.get(n, len(order)))}
    rows = [row for work in results["works"].values() for row in work["rows"] if "torch" in row]
    if rows:
        results["torch"] = rows[-1]["torch"]
        results["gpu"] = rows[-1].get("gpu")
    report.save(results, folder)


if __name__ == "__main__":
    main()
