"""How much memory something took at its peak."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

import torch

EVERY = 0.005  # seconds between looks
STATUS = Path("/proc/self/statm")
PAGE = 4096  # bytes


class Peak:
    """Bytes beyond what was in use before: of the GPU, or of the process; None where neither can be seen.

    The process is looked at from a thread every few milliseconds, so that short peaks may be missed.
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
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(EVERY):
            self._top = max(self._top, resident())

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.cuda is not None:
            torch.cuda.synchronize(self.cuda)
            self.bytes = torch.cuda.max_memory_allocated(self.cuda) - self._before
        elif self._thread is not None:
            self._stop.set()
            self._thread.join()
            self.bytes = max(self._top, resident()) - self._before


def resident() -> int:
    """Bytes of the process that are in memory."""
    return int(STATUS.read_text().split()[1]) * PAGE
