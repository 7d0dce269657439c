"""``python -m reproductions.bayesian_cnn NAME``: one experiment, or ``all``."""

from __future__ import annotations

import sys

from reproductions.bayesian_cnn import COLLECTION
from reproductions.command import run


def main(arguments: list[str] | None = None) -> int:
    return run(COLLECTION, arguments)


if __name__ == "__main__":
    sys.exit(main())
