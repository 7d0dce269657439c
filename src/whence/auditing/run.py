"""Steps of a long computation: progress, time, memory, notices, and their place in the record."""

from __future__ import annotations

import platform
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from whence._version import __version__
from whence.auditing.estimate import Pace
from whence.engine.progress import bars, progress_bar
from whence.errors import Notice
from whence.report.formatting import rough_duration
from whence.report.record.common import LeftOut, Run, Versions

OnLeft = Callable[[float], None]  # seconds
OnStep = Callable[[str, int, int], None]  # name, steps done, steps in all
BAR = "{desc} |{bar}| {n_fmt}/{total_fmt} [{elapsed}]"  # the description has the time left
EVERY = 0.005  # seconds between samples of the memory
STATUS = Path("/proc/self/statm")
PAGE = 4096  # bytes


def now() -> str:
    """Date and time in ISO format."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Progress:
    """The steps of a computation, with times, notices and omissions."""

    steps: list[str]
    bar: Any
    on_step: OnStep | None
    done: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    interrupted: str | None = None
    on_left: OnLeft | None = None
    pace: Pace | None = None

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        if name not in self.steps:
            self.steps.insert(self.done, name)
        if self.on_step is not None:
            self.on_step(name, self.done, len(self.steps))
        self.bar.set_description(f"audit: {name}{self._left()}")
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start
        if self.pace is not None:
            self.pace.finished(name, self.seconds[name])
        self.done += 1
        self.bar.update()

    def expect(self, seconds: dict[str, float]) -> None:
        """Set the expected seconds of steps that take long."""
        self.pace = Pace({name: value for name, value in seconds.items() if name in self.steps[self.done :]})

    def _left(self) -> str:
        """Report the time left; return it as text for the bar."""
        if self.pace is None:
            return ""
        left = self.pace.left(self.steps[self.done :])
        if self.on_left is not None:
            self.on_left(left)
        return f", about {rough_duration(left)} left"

    def leave_out(self, what: str, why: str) -> None:
        self.left_out.append(LeftOut(what, why))

    def run(self, device: torch.device, seed: int) -> Run:
        """Versions, machine, seed and times, and what was omitted."""
        return Run(
            Versions(__version__, torch.__version__, np.__version__, platform.python_version()),
            f"{platform.system()} {platform.machine()}",
            torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            seed,
            {name: round(value, 3) for name, value in self.seconds.items()},
            tuple(self.left_out),
            tuple(dict.fromkeys(self.notices)),
        )


@contextmanager
def progress_over(
    steps: list[str], shown: bool, on_step: OnStep | None, on_left: OnLeft | None = None
) -> Iterator[Progress]:
    """Report steps to ``on_step`` or as a progress bar. Notices are collected, and issued once at the end."""
    shown = shown and on_step is None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Notice)
        bar = progress_bar(total=len(steps), label="audit", unit="step", shown=shown, delay=0, bar_format=BAR)
        with bar, bars(shown):
            found = Progress(steps, bar, on_step, on_left=on_left)
            yield found
    first: dict[Any, warnings.WarningMessage] = {}
    for item in caught:
        first.setdefault((item.category, str(item.message)), item)
    for item in first.values():
        warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)
    found.notices += [str(item.message) for item in caught if issubclass(item.category, Notice)]


class Peak:
    """Peak memory in bytes beyond what was in use before: of the GPU, or of the process; None if unknown.

    A thread samples the process every few milliseconds, so short peaks may be missed.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.cuda = device if device is not None and device.type == "cuda" else None
        self.bytes: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._top = self._before = 0

    def __enter__(self) -> Peak:
        if self.cuda is not None:
            torch.cuda.synchronize(self.cuda)
            torch.cuda.reset_peak_memory_stats(self.cuda)
            self._before = torch.cuda.memory_allocated(self.cuda)
        elif STATUS.exists():
            self._before = self._top = resident()
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(EVERY):
            self._top = max(self._top, resident())

    def __exit__(self, *_: object) -> None:
        if self.cuda is not None:
            torch.cuda.synchronize(self.cuda)
            self.bytes = torch.cuda.max_memory_allocated(self.cuda) - self._before
        elif self._thread is not None:
            self._stop.set()
            self._thread.join()
            self.bytes = max(self._top, resident()) - self._before


def resident() -> int:
    """Resident memory of the process in bytes."""
    return int(STATUS.read_text().split()[1]) * PAGE
