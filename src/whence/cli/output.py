"""What the command prints and writes.

Progress and notes go to stderr, results to stdout; an error is one line. Files are replaced atomically.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import tempfile
import time
import traceback
import warnings
import webbrowser
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from whence.engine.files import replacing
from whence.errors import BadFile, MissingExtra, Notice, WhenceError
from whence.report import terminal
from whence.report.formatting import rough_duration

T = TypeVar("T")
WORTH_TELLING = 10.0  # seconds
BAD_INPUT, UNEXPECTED, INTERRUPTED = 2, 1, 130
STEPS = {
    "data": "reading the data",
    "fit": "fitting the posterior",
    "tune": "tuning it",
    "examine": "predicting, and locating the uncertainty",
    "quality": "measuring its quality",
    "conformal": "choosing prediction sets or intervals",
    "deferral": "choosing deferral thresholds",
    "groups": "comparing groups",
    "layers": "computing the layer table",
    "profile": "computing the profile",
    "sensitivity": "varying the prior",
    "maps": "computing weight maps",
    "inputs": "finding the most uncertain inputs",
    "attribution": "attributing uncertainty to parts of inputs",
    "novelty": "measuring novelty",
    "pruning": "pruning",
    "answers": "writing the answers",
    "scores": "scoring the methods",
}


_line: ContextVar[str | None] = ContextVar("_line", default=None)


@contextlib.contextmanager
def running(args: list[str]) -> Iterator[None]:
    """While the command runs with these arguments."""
    token = _line.set(shlex.join(["whence", *args]))
    try:
        yield
    finally:
        _line.reset(token)


def command_line() -> str | None:
    """The command line that is being run."""
    return _line.get()


@dataclass
class Output:
    """What one run of a command prints."""

    quiet: bool = False
    json: bool = False
    debug: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    noted: set[str] = field(default_factory=set)

    def line(self, word: str, message: str, style: str) -> None:
        """Print one line on stderr, without wrapping."""
        self.err.print(Text.assemble((f"{word}: ", style), " ".join(message.split())), soft_wrap=True)

    def note(self, message: str) -> None:
        """Print a note, once."""
        if not self.quiet and message not in self.noted:
            self.noted.add(message)
            self.line("note", message, "yellow")

    def result(self, view: Callable[[T, int], RenderableType], about: T, plain: dict[str, Any]) -> None:
        """Print the result: a view, or one object with ``--json``."""
        if self.json:
            print(json.dumps(plain, allow_nan=False), file=self.out, flush=True)
        elif not self.quiet:
            terminal.place(Console(file=self.out, highlight=False), view, about)

    def paths(self, paths: dict[str, str | None], open_page: bool) -> None:
        """Print the paths of the written files; optionally open the page in the browser."""
        page, record = paths["html"], paths["json"]
        rows = {"page": page, "record": f"{record}   (whence show {record})"}
        rows |= {"posterior": paths["posterior"]} if "posterior" in paths else {}
        if not self.json and not self.quiet:
            lines = [f"{name:{max(map(len, rows)) + 2}}{path}" for name, path in rows.items() if path]
            console = Console(file=self.out, highlight=False)
            console.print("\n" * bool(page) + "\n".join(lines), soft_wrap=True, markup=False)
        if open_page and page is not None:
            webbrowser.open(Path(page).absolute().as_uri())

    def written(self, paths: dict[str, str]) -> None:
        """Print where files were written."""
        if self.json:
            print(json.dumps(paths), file=self.out, flush=True)
        elif not self.quiet:
            for name, path in paths.items():
                Console(file=self.out, highlight=False).print(f"{name:<9}{path}", soft_wrap=True, markup=False)

    def write_page(self, found: Any, record: Path) -> str | None:
        """Write the page next to the record, or print a note if packages for it are missing."""
        try:
            return str(found.html(record.with_suffix(".html")))
        except MissingExtra as error:
            self.note(f"the page was not written: {error}")
            return None
        except Exception:
            self.note(f"the page could not be drawn, but the record is complete: {record}")
            raise

    @contextlib.contextmanager
    def guarded(self) -> Iterator[Output]:
        """Turn errors into one line and an exit code, and warnings into notes; keep stdout for the result."""
        try:
            with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
                warnings.simplefilter("always", Notice)
                warnings.showwarning = self._warned
                yield self
        except WhenceError as error:
            raise self._ended("error", str(error), BAD_INPUT) from error
        except KeyboardInterrupt as error:
            raise self._ended("interrupted", str(error) or "nothing was written.", INTERRUPTED) from error
        except BrokenPipeError:
            raise
        except Exception as error:
            if isinstance(error, (typer.Exit, typer.Abort)) or hasattr(error, "format_message"):
                raise
            more = "" if self.debug else " Run again with --debug to see the traceback."
            message = f"{type(error).__name__}: {error}".rstrip(". ") + f".{more}"
            raise self._ended("unexpected error", message, UNEXPECTED) from error

    def _ended(self, word: str, message: str, code: int) -> typer.Exit:
        if self.debug:
            traceback.print_exc()
        self.line(word, message, "bold red")
        return typer.Exit(code)

    def _warned(self, message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        self.note(str(message) if issubclass(category, Notice) else f"{category.__name__}: {message}")

    @contextlib.contextmanager
    def progress(self) -> Iterator[Steps]:
        """Show each step: a bar with the time left on a terminal, plain lines elsewhere."""
        if self.quiet:
            yield Steps()
        elif not self.err.is_terminal:
            yield PlainSteps(self.err)
        else:
            columns = (
                SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeLeft()
            )  # fmt: skip
            with Progress(*columns, console=self.err, transient=True) as bar:
                yield BarSteps(bar)


class Steps:
    """Listens to the steps of a computation, and to estimates of the time left."""

    def __call__(self, name: str, done: int, total: int) -> None: ...

    def left(self, seconds: float) -> None: ...


class PlainSteps(Steps):
    """Steps as lines, and the whole time once."""

    def __init__(self, console: Console) -> None:
        self.console, self.told = console, False

    def __call__(self, name: str, done: int, total: int) -> None:
        counted = f"[{done + 1}/{total}] " if total else ""
        self.console.print(f"{counted}{STEPS.get(name, name)}", soft_wrap=True, markup=False)

    def left(self, seconds: float) -> None:
        if not self.told and seconds >= WORTH_TELLING:
            self.console.print(f"about {rough_duration(seconds)} in all", soft_wrap=True, markup=False)
        self.told = True


class BarSteps(Steps):
    """Steps as a bar."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.task = bar.add_task("starting", total=None)
        self.since = time.monotonic()
        self.estimated = False

    def __call__(self, name: str, done: int, total: int) -> None:
        now = time.monotonic()
        self.since = self.since if done else now
        words = STEPS.get(name, name)
        self.bar.update(self.task, description=words, completed=done, total=total or None)
        if done and not self.estimated:
            self.bar.update(self.task, ends=now + (now - self.since) / done * (total - done))

    def left(self, seconds: float) -> None:
        self.estimated = True
        self.bar.update(self.task, ends=time.monotonic() + seconds)


class TimeLeft(ProgressColumn):
    """Time left: as the computation estimates it, otherwise from the pace so far."""

    def render(self, task: Task) -> Text:
        ends = task.fields.get("ends")
        elapsed = int(task.elapsed or 0)
        words = f"{elapsed // 60}:{elapsed % 60:02d}"
        if ends is not None:
            left = max(0, round(ends - time.monotonic()))
            words += f", about {left // 60}:{left % 60:02d} left"
        return Text(words, style="cyan")


# Files


@contextlib.contextmanager
def result_folder(path: Path, stem: str = "audit") -> Iterator[Path]:
    """A writable folder; new folders are removed again if the work fails."""
    made = _make(path)
    try:
        _check_writable(path)
        for name in (f"{stem}.html", f"{stem}.json"):
            if (path / name).is_dir():
                raise BadFile(f"--out: cannot write {path / name}: there is a folder of that name.")
        yield path
    except BaseException:
        for new in reversed(made):
            with contextlib.suppress(OSError):
                new.rmdir()  # only if nothing was written
        raise


def check_file(path: Path, option: str) -> None:
    """Refuse a file that cannot be written, or whose folder is missing."""
    parent = path.absolute().parent
    if path.is_dir():
        raise BadFile(f"{option}: expected a file, but {path} is a folder.")
    if not parent.is_dir():
        raise BadFile(f"{option}: cannot write {path}: there is no folder {path.parent}.")
    _check_writable(parent, option)


def replace_file(path: Path, write: Callable[[Path], object]) -> Path:
    """Write to a temporary file, then move it; an interruption leaves the old file."""
    try:
        with replacing(path) as temporary:
            write(temporary)
    except OSError as error:
        raise BadFile(f"cannot write {path}: {error.strerror or error}.") from error
    return path


def _make(path: Path) -> list[Path]:
    """Create a folder and its parents; return the new ones, the outermost first."""
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


def _check_writable(path: Path, option: str = "--out") -> None:
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise BadFile(f"{option}: cannot write into {path}: {error.strerror or error}.") from error
