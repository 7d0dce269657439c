"""``python -m benchmarks [--quick] [--only NAME …]``: whence beside laplace-torch, in one run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.environment import PEERS, interpreter
from benchmarks.machine import describe
from benchmarks.runner import run
from benchmarks.works import QUICK, Sizes, works


def options() -> argparse.Namespace:
    names = [work.name for work in works(Sizes())]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs; nothing is saved")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"only these: {', '.join(names)}")
    parser.add_argument("--python", type=Path, help="an interpreter that has all contenders, instead of .bench/venv")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    python = (chosen.python or interpreter()).absolute()
    start = time.perf_counter()
    found: dict[str, Any] = {}
    for work in works(QUICK if chosen.quick else Sizes()):
        if chosen.only is None or work.name in chosen.only:
            found[work.name] = run(work, python, start)
    earlier = report.saved() if chosen.only and not chosen.quick else {}
    results = {
        "machine": describe(),
        "torch": torch_version(found) or earlier.get("torch", "?"),
        "laplace_torch": PEERS[0].partition("==")[2],
        "works": earlier.get("works", {}) | found,
    }
    print(f"\n{report.text(results | {'works': found})}")
    print(f"\n{time.perf_counter() - start:.0f} s")
    if chosen.quick:
        print("Small sizes: the bars are for the full ones.")
    else:
        report.save(results)


def torch_version(found: dict[str, Any]) -> str | None:
    return next((row["torch"] for work in found.values() for row in work["rows"] if "torch" in row), None)


if __name__ == "__main__":
    main()
