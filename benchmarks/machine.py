"""What the machine is, and how much of it other programs take. Linux; elsewhere the numbers are left out."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import re
import resource
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
MB = 2**20


def describe() -> dict[str, str | int]:
    """Processor, cores and memory of the machine; no names of hosts."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", info.read_text()) if info.exists() else None
    return {
        "cpu": found[1].strip() if found else platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()}, Python {platform.python_version()}",
    }


def busy_seconds() -> float:
    """Processor seconds that the machine has spent on anything, all cores together."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    times = [int(t) for t in stat.read_text().split("\n")[0].split()[1:9]]
    return (sum(times) - sum(times[3:5])) / TICKS  # all but idle and waiting


class Others:
    """The share of the machine that programs other than this process and its children took, from now on."""

    def __init__(self) -> None:
        self.start = time.perf_counter(), busy_seconds(), _own()

    def share(self) -> float:
        wall, busy, own = (now - then for now, then in zip(_now(), self.start, strict=True))
        return max(0.0, busy - own) / max(wall * (os.cpu_count() or 1), 1e-9)


def _now() -> tuple[float, float, float]:
    return time.perf_counter(), busy_seconds(), _own()


def _own() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def wait_until_quiet(limit: float, share: float = 0.15) -> None:
    """Wait, at most ``limit`` seconds, for a second in which other programs take less than ``share``."""
    deadline = time.perf_counter() + limit
    while time.perf_counter() < deadline:
        others = Others()
        time.sleep(1.0)
        if others.share() < share:
            return


class CudaPeak:
    """Peak memory that torch allocated on the device above its level at the start, in MB."""

    def __init__(self) -> None:
        import torch

        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.base = torch.cuda.memory_allocated()

    def megabytes(self) -> float:
        import torch

        return (torch.cuda.max_memory_allocated() - self.base) / MB


class Peak:
    """Peak memory of this process above its level at the start, in MB."""

    def __init__(self) -> None:
        gc.collect()
        _release()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
        self.base = _status("VmRSS")

    def megabytes(self) -> float | None:
        if self.base is None:
            return None
        high = _status("VmHWM")
        return None if high is None else high - self.base


def _release() -> None:
    """Give freed memory back to the system, so that it does not count into the level at the start."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def hand_back_at_once() -> None:
    """Have the C library give large freed pieces back at once, so that tensors alone count. Slower."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").mallopt(-3, 65536)  # M_MMAP_THRESHOLD


def _status(key: str) -> float | None:
    status = Path("/proc/self/status")
    found = re.search(rf"{key}:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) * 1024 / MB if found else None


def memory_limit() -> int:
    """Bytes that a contender may take: two thirds of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 2 // 3


def limit_memory() -> None:
    """Make more than that an error in this process, before it is a dead machine."""
    limit = int((_status("VmSize") or 0) * MB) + memory_limit()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
