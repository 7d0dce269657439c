"""Where results go: checked before the work, written aside, moved when complete."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from whence.engine.files import replacing
from whence.errors import BadFile


@contextlib.contextmanager
def folder(path: Path, stem: str = "audit") -> Iterator[Path]:
    """A folder that can be written; where the work fails, the folders made for it go again."""
    made = _make(path)
    try:
        _writable(path)
        for name in (f"{stem}.html", f"{stem}.json"):
            if (path / name).is_dir():
                raise BadFile(f"--out: cannot write {path / name}: there is a folder of that name.")
        yield path
    except BaseException:
        for new in reversed(made):
            with contextlib.suppress(OSError):
                new.rmdir()  # only if nothing was written
        raise


def file(path: Path, option: str) -> Path:
    """A file that can be written, in a folder that is there."""
    parent = path.absolute().parent
    if path.is_dir():
        raise BadFile(f"{option}: expected a file, but {path} is a folder.")
    if not parent.is_dir():
        raise BadFile(f"{option}: cannot write {path}: there is no folder {path.parent}.")
    _writable(parent, option)
    return path


def aside(path: Path, write: Callable[[Path], object]) -> Path:
    """Write beside the file, then move; a break leaves the old one."""
    try:
        with replacing(path) as temporary:
            write(temporary)
    except OSError as error:
        raise BadFile(f"cannot write {path}: {error.strerror or error}.") from error
    return path


def _make(path: Path) -> list[Path]:
    """Make a folder and those above it; returns the new ones, the outermost first."""
    missing = []
    for part in (path.absolute(), *path.absolute().parents):
        if os.path.lexists(part):
            break
        missing.append(part)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "it is not a folder" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
        raise BadFile(f"--out: expected a folder that can be written, but got {path}: {what}.") from error
    return missing[::-1]


def _writable(path: Path, option: str = "--out") -> None:
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise BadFile(f"{option}: cannot write into {path}: {error.strerror or error}.") from error
