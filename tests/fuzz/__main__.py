"""``python -m tests.fuzz --seconds 3600``: all random tests again and again, with new cases, until the time is over.

A failing case is printed with the line that repeats it, kept in ``.hypothesis/``, and tried first the next time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import pytest

from tests.fuzz.budget import CASES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--cases", type=int, default=50, help="of each test in one round")
    chosen, rest = parser.parse_known_args()
    os.environ[CASES] = str(chosen.cases)
    end, rounds = time.monotonic() + chosen.seconds, 0
    while time.monotonic() < end:
        code = pytest.main(["tests/fuzz", "-q", "-x", "-m", "", "-p", "no:cacheprovider", *rest])
        if code:
            return int(code)
        rounds += 1
        print(f"round {rounds}: nothing found; {max(0, end - time.monotonic()):.0f} s left", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
