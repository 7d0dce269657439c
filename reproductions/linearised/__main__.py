"""``python -m reproductions.linearised NAME``: one experiment, or ``all``."""

from __future__ import annotations

import sys

from reproductions.command import run
from reproductions.linearised import COLLECTION


def main(arguments: list[str] | None = None) -> int:
    return run(COLLECTION, arguments)


if __name__ == "__main__":
    sys.exit(main())
