"""``python -m reproductions.ritter2018.mnist_prepare --seed S --what members …``: fill the cache, and nothing else.

Pieces of one seed do not depend on each other (``laplace`` but for the network, which every piece trains if it is
missing), so that several processes can share a GPU; the experiments then find everything made.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from reproductions.experiment import Context
from reproductions.ritter2018.mnist import DIAGONAL, KRONECKER, LINEARISED, QUICK, Setup, Subject


def pieces(subject: Subject) -> dict[str, Callable[[], object]]:
    """What can be made, by name."""
    from reproductions.ritter2018.ood.config import config
    from reproductions.ritter2018.ood.run import reading

    chosen = config(quick=subject.setup == QUICK)
    return {
        "network": lambda: subject.network,
        "members": subject.ensemble,
        "variational": subject.factorised,
        "swag": subject.swag,
        "kron": lambda: (subject.method(KRONECKER), subject.method(LINEARISED)),
        "diag": lambda: subject.method(DIAGONAL),
        "readings": lambda: [reading(subject, name, chosen) for name in chosen.readings],
        "copies": lambda: [subject.laplace("kron", damping="factored", copies=count) for count in chosen.copies[:-1]],
        "most-copies": lambda: subject.laplace("kron", damping="factored", copies=chosen.copies[-1]),
    }


WHAT = ("network", "members", "variational", "swag", "kron", "diag", "readings", "copies", "most-copies")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m reproductions.ritter2018.mnist_prepare", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--what", nargs="+", choices=WHAT, required=True)
    parser.add_argument("--quick", action="store_true", help="of the small version")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cache", type=Path, default=Path("build") / "reproductions" / "cache")
    chosen = parser.parse_args(arguments)
    setup = QUICK if chosen.quick else Setup()
    subject = Subject(setup, chosen.seed, Context(chosen.device, chosen.cache, progress=False))
    for name in chosen.what:
        start = time.perf_counter()
        pieces(subject)[name]()
        print(f"seed {chosen.seed}, {name}: {time.perf_counter() - start:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
