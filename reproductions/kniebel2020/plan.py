"""How long every unit takes, and how to share the work out among processes.

``python -m reproductions.kniebel2020.plan grid 6 --cells 'cifar-*' 'svhn-*'`` prints one command for each of six
processes, about equally long; with ``--go FOLDER`` it runs them at the same time and merges what they made. Seconds on
a CPU core are measured with one thread where they are below 300, else estimated; those on an H200 are estimated from
runs of similar networks. Several processes on one GPU slow each other down.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

from reproductions.kniebel2020 import COLLECTION
from reproductions.store import read

PACKAGE = "reproductions.kniebel2020"
OUT_OF_TIME = 3  # exit status
# Experiment: pattern of units → seconds on an H200, on one CPU core, and the sets whose files are needed.
GREY = ("mnist", "fashion-mnist", "kmnist-test", "notmnist")
COLOUR = ("cifar10-subset", "svhn-test")
SECONDS: dict[str, list[tuple[str, float, float, tuple[str, ...]]]] = {
    "grid": [
        ("iris-*", 3, 1, ()),
        ("mnist-perceptron/*", 10, 8, GREY),
        ("fashion-mlp-2, width 1024/*", 20, 60, GREY),
        ("fashion-mlp-2, data 30000/*", 20, 35, GREY),
        ("fashion-mlp-2, epochs 80/*", 15, 25, GREY),
        ("*-mlp-*", 12, 12, GREY),
        ("*-lenet5/*", 15, 63, GREY),
        ("fashion-cnn, width 4 times/*", 25, 500, GREY),
        ("fashion-cnn, data 1000/*", 12, 26, GREY),
        ("fashion-cnn, data 30000/*", 25, 250, GREY),
        ("fashion-cnn, epochs 80/*", 25, 220, GREY),
        ("fashion-cnn*", 16, 90, GREY),
        ("mnist-transformer/*", 30, 250, GREY),
        ("svhn-*", 20, 200, COLOUR),
        ("cifar-cnn*", 25, 470, COLOUR),
        ("cifar-transformer/*", 45, 900, COLOUR),
        ("cifar-vgg11/*", 90, 6000, COLOUR),
        ("cifar-wrn16-4/*", 110, 9000, COLOUR),
    ],
    "training": [
        ("iris-*", 60, 7, ()),
        ("*-mlp-2/*", 60, 28, ("mnist", "fashion-mnist")),
        ("*-lenet5/*", 70, 120, ("mnist", "kmnist-test")),
        ("fashion-cnn*", 70, 150, ("fashion-mnist",)),
        ("cifar-cnn-bn/*", 90, 900, ("cifar10-subset",)),
    ],
    "pruning": [
        ("iris-*", 10, 4, ()),
        ("*-mlp-2/*", 20, 35, ("mnist", "fashion-mnist")),
        ("*-lenet5/*", 35, 150, ("mnist", "kmnist-test")),
        ("fashion-cnn-bn/*", 40, 250, ("fashion-mnist",)),
        ("mnist-transformer/*", 60, 400, ("mnist",)),
        ("cifar-cnn-bn/*", 60, 900, ("cifar10-subset",)),
        ("cifar-wrn16-4/*", 230, 9000, ("cifar10-subset",)),
    ],
    "methods": [
        ("iris-mlp-2/*", 40, 8, ()),
        ("iris-*", 300, 45, ()),
        ("*-mlp-2/*", 45, 75, ("mnist", "kmnist-test")),
        ("*-lenet5/*", 60, 260, ("mnist", "fashion-mnist")),
    ],
    "separation": [("*", 5, 1, ())],
    "members": [("*/small", 30, 14, GREY), ("*", 60, 35, GREY)],
}


def seconds(experiment: str, unit: str, device: str) -> float:
    """Of one unit alone on the device; those of the small version take about one."""
    _, gpu, cpu, _ = next((row for row in SECONDS[experiment] if fnmatchcase(unit, row[0])), ("", 1.0, 1.0, ()))
    return gpu if device.startswith("cuda") else cpu


def files(experiment: str, unit: str) -> tuple[str, ...]:
    """The sets that it reads."""
    return next(row for row in SECONDS[experiment] if fnmatchcase(unit, row[0]))[3]


def shared_out(experiment: str, units: list[str], processes: int, device: str) -> list[tuple[float, list[str]]]:
    """The units of each process: always the longest one left to the process that has least."""
    parts: list[tuple[float, list[str]]] = [(0.0, []) for _ in range(processes)]
    for unit in sorted(units, key=lambda name: -seconds(experiment, name, device)):
        place = min(range(processes), key=lambda i: parts[i][0])
        total, own = parts[place]
        parts[place] = (total + seconds(experiment, unit, device), [*own, unit])
    return [part for part in parts if part[1]]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m reproductions.kniebel2020.plan", description=__doc__)
    parser.add_argument("name", choices=COLLECTION.names)
    parser.add_argument("processes", type=int)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cells", nargs="+", default=["*"], help="patterns of units")
    parser.add_argument("--done", nargs="*", default=[], help="units to leave out")
    parser.add_argument("--go", type=Path, metavar="FOLDER", help="run them at once, and merge them in FOLDER/NAME")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="start nothing after this time")
    parser.add_argument("--quick", action="store_true", help="of the small version")
    chosen = parser.parse_args(arguments)
    found = COLLECTION.experiment(chosen.name)
    names = found.units(found.config(chosen.quick))
    wanted = [n for n in names if n not in chosen.done and any(fnmatchcase(n, p) for p in chosen.cells)]
    parts = shared_out(chosen.name, wanted, chosen.processes, chosen.device)
    common = [chosen.name, "--device", chosen.device, "--no-progress", *(["--quick"] if chosen.quick else [])]
    if chosen.go is None:
        for i, (total, units) in enumerate(parts):
            more = ["--out", f"build/{chosen.name}-{i}", "--units", *units]
            print(f"{shlex.join(['python3', '-m', PACKAGE, *common, *more])}  # {total:.0f} s")
        return
    ordered = [[unit for unit in wanted if unit in units] for _, units in parts]
    go(chosen.name, common, ordered, chosen.go, chosen.limit_seconds)


def go(name: str, common: list[str], parts: list[list[str]], folder: Path, limit: float) -> None:
    """Run all processes at the same time, and put together what they made; each starts nothing after the limit."""
    end = time.monotonic() + limit
    folders = [folder / f"{name}-{i}" for i in range(len(parts))]
    command = [sys.executable, "-m", PACKAGE, *common]
    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(lambda own, units: _followed(command, own, units, end), folders, parts))
    made = [str(own) for own in folders if (own / "results.json").exists()]
    if made:
        # where all units are there, figures are drawn too, which fails without matplotlib after everything is written
        subprocess.run([*command, "--out", str(folder / name), "--merge", *made], check=False)


def _followed(command: list[str], own: Path, units: list[str], end: float) -> None:
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


if __name__ == "__main__":
    main()
