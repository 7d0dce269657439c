"""How the command speaks: progress and notes on stderr, results on stdout, errors in one line."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from whence.errors import Notice, WhenceError
from whence.report import terminal

BAD_INPUT, UNEXPECTED, INTERRUPTED = 2, 1, 130


@dataclass
class Voice:
    """What one run of a command says, and where."""

    quiet: bool = False
    json: bool = False
    debug: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: Console = field(default_factory=lambda: Console(stderr=True, highlight=False))
    heard: set[str] = field(default_factory=set)  # notes that were shown

    def line(self, word: str, message: str, style: str) -> None:
        """One line on stderr, however long."""
        text = Text.assemble((f"{word}: ", style), " ".join(message.split()))
        self.err.print(text, soft_wrap=True)

    def note(self, message: str) -> None:
        """Something the user should know; said once."""
        if not self.quiet and message not in self.heard:
            self.heard.add(message)
            self.line("note", message, "yellow")

    def result(self, view: Callable[[Any, int], RenderableType], about: Any, plain: dict[str, Any]) -> None:
        """The result: a view of it for people, or with ``--json`` one object."""
        if self.json:
            print(json.dumps(plain, allow_nan=False), file=self.out, flush=True)
        elif not self.quiet:
            terminal.place(Console(file=self.out, highlight=False), view, about)

    def say(self, message: str | Text) -> None:
        """A line of the result, for people."""
        if not self.json and not self.quiet:
            Console(file=self.out, highlight=False).print(message, soft_wrap=True)

    @contextlib.contextmanager
    def speaking(self) -> Iterator[Voice]:
        """Turn errors into one line and an exit code, and warnings into notes; keep stdout for the result."""
        try:
            with contextlib.redirect_stdout(sys.stderr), self._warnings():
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
            more = "" if self.debug else " Run again with --debug to see where."
            message = f"{type(error).__name__}: {error}".rstrip(". ") + f".{more}"
            raise self._ended("unexpected error", message, UNEXPECTED) from error

    def _ended(self, word: str, message: str, code: int) -> typer.Exit:
        if self.debug:
            traceback.print_exc()
        self.line(word, message, "bold red")
        return typer.Exit(code)

    @contextlib.contextmanager
    def _warnings(self) -> Iterator[None]:
        def shown(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
            own = issubclass(category, Notice)
            self.note(str(message) if own else f"{category.__name__}: {message}")

        with warnings.catch_warnings():
            warnings.simplefilter("always", Notice)
            warnings.showwarning = shown
            yield

    @contextlib.contextmanager
    def progress(self) -> Iterator[Steps]:
        """A bar with the time left on a terminal, plain lines elsewhere, nothing when quiet."""
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


STEPS = {
    "data": "reading the data",
    "fit": "fitting the posterior",
    "tune": "tuning it",
    "quality": "measuring its quality",
    "deferral": "when to hand over",
    "layers": "the layers",
    "profile": "where it sits",
    "sensitivity": "how the prior matters",
    "maps": "maps of the weights",
    "inputs": "the most uncertain inputs",
    "novelty": "what is like the training data",
    "pruning": "what can be pruned",
    "answers": "answers in words",
    "scores": "scoring them all",
}


class Steps:
    """Hears which step begins; says nothing."""

    def __call__(self, name: str, done: int, total: int) -> None:
        """A step begins, ``done`` of ``total`` lie behind it."""


class PlainSteps(Steps):
    """One line for each step."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def __call__(self, name: str, done: int, total: int) -> None:
        counted = f"[{done + 1}/{total}] " if total else ""
        self.console.print(f"{counted}{STEPS.get(name, name)}", soft_wrap=True, markup=False)


class BarSteps(Steps):
    """A bar."""

    def __init__(self, bar: Progress) -> None:
        self.bar = bar
        self.task = bar.add_task("starting", total=None)
        self.since = time.monotonic()

    def __call__(self, name: str, done: int, total: int) -> None:
        if not done:
            self.since = time.monotonic()
        now = time.monotonic()
        left = (now - self.since) / done * (total - done) if done else None
        self.bar.update(
            self.task, description=STEPS.get(name, name), completed=done, total=total or None, ends=left and now + left
        )


class TimeLeft(ProgressColumn):
    """Time left at the pace so far; it counts down while a step runs."""

    def render(self, task: Task) -> Text:
        ends = task.fields.get("ends")
        elapsed = int(task.elapsed or 0)
        words = f"{elapsed // 60}:{elapsed % 60:02d}"
        if ends is not None:
            left = max(0, round(ends - time.monotonic()))
            words += f", about {left // 60}:{left % 60:02d} left"
        return Text(words, style="cyan")
