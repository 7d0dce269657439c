"""How long the units of a collection take, and how to share them out among processes.

``python -m COLLECTION.plan NAME 6 --cells 'cifar-*'`` prints one command for each of six processes, about equally long;
with ``--go FOLDER`` it runs them at the same time and merges what they made. Several processes on one GPU slow each
other down.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from reproductions.experiment import Collection
from reproductions.store import read

OUT_OF_TIME = 3  # exit status
Row = tuple[str, float, float, tuple[str, ...]]  # pattern of units, seconds on an H200 and on a CPU core, sets needed


@dataclass(frozen=True)
class Plan:
    """What each unit of each experiment takes; the first row that matches counts."""

    collection: Collection
    rows: Mapping[str, Sequence[Row]]

    def seconds(self, experiment: str, unit: str, device: str) -> float:
        """Of one unit alone on the device; those of the small version take about one."""
        none: Row = ("", 1.0, 1.0, ())
        _, gpu, cpu, _ = next((row for row in self.rows[experiment] if fnmatchcase(unit, row[0])), none)
        return gpu if device.startswith("cuda") else cpu

    def files(self, experiment: str, unit: str) -> tuple[str, ...]:
        """The sets that it reads."""
        return next(row for row in self.rows[experiment] if fnmatchcase(unit, row[0]))[3]

    def shared_out(
        self, experiment: str, units: list[str], processes: int, device: str
    ) -> list[tuple[float, list[str]]]:
        """The units of each process: always the longest one left to the process that has least."""
        parts: list[tuple[float, list[str]]] = [(0.0, []) for _ in range(processes)]
        for unit in sorted(units, key=lambda name: -self.seconds(experiment, name, device)):
            place = min(range(processes), key=lambda i: parts[i][0])
            total, own = parts[place]
            parts[place] = (total + self.seconds(experiment, unit, device), [*own, unit])
        return [part for part in parts if part[1]]

    def main(self, arguments: list[str] | None = None) -> None:
        """The command."""
        chosen = self._options(arguments)
        found = self.collection.experiment(chosen.name)
        names = found.units(found.config(chosen.quick))
        done = [*chosen.done, *(unit for folder in chosen.done_in for unit in read(folder / "results.json")["units"])]
        wanted = [n for n in names if n not in done and any(fnmatchcase(n, p) for p in chosen.cells)]
        parts = self.shared_out(chosen.name, wanted, chosen.processes, chosen.device)
        common = [chosen.name, "--device", chosen.device, "--no-progress", *(["--quick"] if chosen.quick else [])]
        if chosen.go is None:
            for i, (total, units) in enumerate(parts):
                more = ["--out", f"build/{chosen.name}-{i}", "--units", *units]
                print(f"{shlex.join(['python3', '-m', self.collection.package, *common, *more])}  # {total:.0f} s")
            return
        ordered = [[unit for unit in wanted if unit in units] for _, units in parts]
        go(self.collection.package, chosen.name, common, ordered, chosen.go, chosen.limit_seconds)

    def _options(self, arguments: list[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m {self.collection.package}.plan", description=__doc__)
        parser.add_argument("name", choices=self.collection.names)
        parser.add_argument("processes", type=int)
        parser.add_argument("--device", default="cuda")
        parser.add_argument("--cells", nargs="+", default=["*"], help="patterns of units")
        parser.add_argument("--done", nargs="*", default=[], help="units to leave out")
        parser.add_argument("--done-in", nargs="*", default=[], type=Path, metavar="FOLDER", help="leave out its units")
        parser.add_argument("--go", type=Path, metavar="FOLDER", help="run them at once, and merge them in FOLDER/NAME")
        parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="start nothing after this time")
        parser.add_argument("--quick", action="store_true", help="of the small version")
        return parser.parse_args(arguments)


def go(package: str, name: str, common: list[str], parts: list[list[str]], folder: Path, limit: float) -> None:
    """Run all processes at the same time, and put together what they made; each starts nothing after the limit."""
    end = time.monotonic() + limit
    folders = [folder / f"{name}-{i}" for i in range(len(parts))]
    command = [sys.executable, "-m", package, *common]
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(lambda own, units: followed(command, own, units, end), folders, parts))
    made = [str(own) for own in folders if (own / "results.json").exists()]
    if made:
        # where all units are there, figures are drawn too, which fails without matplotlib after everything is written
        subprocess.run([*command, "--out", str(folder / name), "--merge", *made], check=False)


def followed(command: list[str], own: Path, units: list[str], end: float) -> None:
    """One process after another, until all units are done or failed or the time is over."""
    while units and time.monotonic() < end:
        limit = min(end - time.monotonic(), 1e9)
        more = ["--limit-seconds", f"{limit:.0f}", "--out", str(own), "--units", *units]
        ended = subprocess.run([*command, *more], check=False)
        done = read(own / "results.json")["units"] if (own / "results.json").exists() else {}
        left = [unit for unit in units if unit not in done]
        if ended.returncode in (0, OUT_OF_TIME):
            return
        print(f"{left[0] if left else own} failed", file=sys.stderr)
        units = left[1:]
