"""How long every unit takes, and how to share the work out among processes.

``python -m reproductions.kniebel2020.plan grid 6 --cells 'cifar-*' 'svhn-*'`` prints one command for each of six
processes, about equally long; run them at the same time, each with its own ``--out``, then ``--merge``. Seconds on a
CPU core are measured with one thread where they are below 300, else estimated; those on an H200 are estimated from
runs of similar networks. Several processes on one GPU slow each other down.
"""

from __future__ import annotations

import argparse
from fnmatch import fnmatchcase

from reproductions.kniebel2020 import COLLECTION

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
    """Of one unit alone on the device."""
    _, gpu, cpu, _ = next(row for row in SECONDS[experiment] if fnmatchcase(unit, row[0]))
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
    chosen = parser.parse_args(arguments)
    found = COLLECTION.experiment(chosen.name)
    names = found.units(found.config(False))
    wanted = [n for n in names if n not in chosen.done and any(fnmatchcase(n, p) for p in chosen.cells)]
    for i, (total, units) in enumerate(shared_out(chosen.name, wanted, chosen.processes, chosen.device)):
        quoted = " ".join(f"'{unit}'" for unit in units)
        print(
            f"python3 -m reproductions.kniebel2020 {chosen.name} --device {chosen.device} --no-progress "
            f"--out build/{chosen.name}-{i} --units {quoted}  # {total:.0f} s"
        )


if __name__ == "__main__":
    main()
