"""``python -m reproductions.ritter2018.wrn.prepare --seed S --dropout 0|1``: one network into the cache.

Several of these may run side by side on one GPU; the experiment then finds the weights. ``--fit`` adds the curvature.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from reproductions.experiment import Context
from reproductions.ritter2018.wrn.config import config
from reproductions.ritter2018.wrn.subject import Subject


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m reproductions.ritter2018.wrn.prepare", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dropout", type=int, choices=(0, 1), default=0)
    parser.add_argument("--fit", action="store_true", help="the curvature too")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--cache", type=Path, default=Path("build") / "reproductions" / "cache")
    chosen = parser.parse_args(arguments)
    setup = config(chosen.quick)
    dropout = max(setup.dropouts) if chosen.dropout else 0.0
    subject = Subject(setup, chosen.seed, dropout, Context(chosen.device, chosen.cache, progress=False))
    print(subject.training)
    if chosen.fit:
        print(subject.fitted("kron"), subject.fitted("diag"), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
