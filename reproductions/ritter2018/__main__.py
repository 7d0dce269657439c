"""``python -m reproductions.ritter2018 NAME``: one experiment of the paper, or ``all``."""

from __future__ import annotations

import sys

from reproductions.command import run
from reproductions.ritter2018 import COLLECTION


def main(arguments: list[str] | None = None) -> int:
    return run(COLLECTION, arguments)


if __name__ == "__main__":
    sys.exit(main())
