"""One contender in a fresh interpreter: ``python -m benchmarks.worker '{"job": …, "options": {…}, …}'``."""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from array import array
from pathlib import Path
from typing import Any

from benchmarks.machine import Others, Peak, limit_memory, memory_limit

THREADS = 2
LONG = 5.0  # seconds; what takes longer is measured once
REPEATS, ENOUGH = 5, 15.0  # as many repeats as fit into this many seconds


def main(request: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(THREADS)
    warnings.simplefilter("ignore")
    from benchmarks.contenders import JOBS

    limit_memory()
    job = JOBS[request["job"]](**request["options"])
    peak = Peak()
    measured = measure(job)
    measured["peak_mb"] = peak.megabytes()
    value = measured.pop("value")
    if job.result is not None and request.get("output"):
        with Path(request["output"]).open("wb") as file:
            array("d", job.result(value).double().tolist()).tofile(file)
    return measured | {"torch": torch.__version__}


def measure(job: Any) -> dict[str, Any]:
    """Seconds of the job: the median of its repeats after a first one, or the only one if it is long."""
    others = Others()
    first, value = timed(job.work)
    runs, details = [first], [job.details(value)]
    if first < LONG:
        runs, details = [], []
        while len(runs) < REPEATS and sum(runs) < ENOUGH:
            value = None  # not held beside the next one
            seconds, value = timed(job.work)
            runs.append(seconds)
            details.append(job.details(value))
    medians = {key: statistics.median(d[key] for d in details) for key in details[0]}
    return {
        "seconds": statistics.median(runs),
        "runs": runs,
        "first": first,
        "details": medians,
        "others": others.share(),
        "value": value,
    }


def timed(work: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    value = work()
    return time.perf_counter() - start, value


def error_line(error: BaseException) -> str:
    """One line; what an allocator says when the memory limit is hit is called by its name."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or "allocate memory" in text or "bad_alloc" in text:
        asked = text.partition("you tried to allocate ")[2].partition(" bytes")[0]
        more = f": {int(asked) / 2**30:.0f} GiB more" if asked.isdigit() else ""
        return f"out of memory{more}, {memory_limit() / 2**30:.0f} GiB allowed"
    return f"{type(error).__name__}: {text}"[:160]


if __name__ == "__main__":
    try:
        answer = main(json.loads(sys.argv[1]))
    except Exception as error:
        answer = {"error": error_line(error)}
    print("\n" + json.dumps(answer))
