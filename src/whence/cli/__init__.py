"""The ``whence`` command. It needs ``whence[cli]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    try:
        import rich
        import typer

        _ = rich, typer
    except ImportError as error:
        print(f"whence: the command needs {error.name}: pip install 'whence[cli]'", file=sys.stderr)
        return 2
    from whence.cli.app import run

    return run(sys.argv[1:] if args is None else list(args))
