"""Contenders, each in a process of its own: ``python -m benchmarks.worker`` reads requests, one in a line of JSON.

Libraries are imported once; every request is answered by a fork, which ends with it. The parent never computes, so
that a fork starts with no threads and no device. With a request as argument, this process answers it itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import select
import signal
import statistics
import sys
import time
import traceback
import warnings
from typing import Any

from benchmarks.machine import CudaPeak, Others, Peak, hand_back_at_once, limit_memory, memory_limit

LONG = 3.0  # seconds; what takes longer is measured once
REPEATS, ENOUGH = 5, 3.0  # as many repeats as fit into this many seconds
BASE_REPEATS, BASE_ENOUGH = 7, 0.8


LIBRARIES = (
    "torch", "torch.func", "whence", "laplace", "laplace.curvature.asdl", "laplace.curvature.backpack", "curvlinops",
    "posteriors", "bayesian_torch.models.dnn_to_bnn", "blitz.modules",
)  # fmt: skip


def serve() -> None:
    """Answer requests until the input ends."""
    warnings.simplefilter("ignore")
    for name in LIBRARIES:
        with contextlib.suppress(Exception):  # who needs it will say what is wrong
            importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not mix with the answers
    for line in sys.stdin:
        answers.write(json.dumps(forked(json.loads(line))) + "\n")
        answers.flush()


def forked(request: dict[str, Any]) -> dict[str, Any]:
    """One request in a fork of this process, ended after its time."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        with os.fdopen(write, "w") as file:
            file.write(json.dumps(answered(request)))
            file.flush()
            os._exit(0)
    os.close(write)
    text = _read(read, time.perf_counter() + request["limit"])
    os.close(read)
    if text is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if text is None:
        return {"error": f"no result within {request['limit']:g} s"}
    if not text:
        return {"error": f"the process ended with status {os.waitstatus_to_exitcode(status)}"}
    return json.loads(text)


def _read(fd: int, deadline: float) -> str | None:
    """All that a child writes, or None when time is up."""
    pieces = []
    while True:
        left = deadline - time.perf_counter()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            return None
        piece = os.read(fd, 1 << 16)
        if not piece:
            return b"".join(pieces).decode()
        pieces.append(piece)


def answered(request: dict[str, Any]) -> dict[str, Any]:
    """The answer, or the error in a line."""
    try:
        return answer(request)
    except Exception as error:
        if os.environ.get("BENCH_TRACE"):
            traceback.print_exc()
        return {"error": error_line(error)}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Measure the plain network first, which also warms the device up, then the work."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    warnings.simplefilter("ignore")
    from benchmarks.contenders import Stopwatch, Task, make

    task = Task(**request["task"])
    cuda = task.device.startswith("cuda")
    if not cuda:
        limit_memory()
    if request.get("hand_back"):
        hand_back_at_once()
    base = plain_seconds(request["base"], task)
    torch.manual_seed(5)
    watch = Stopwatch(task.placeholder)
    with watch.running():
        job = make(request["job"], task, request["options"])
        peak = CudaPeak() if cuda else Peak()
        measured = measure(job, watch)
    measured |= {"peak_mb": peak.megabytes(), "base": base, "torch": torch.__version__}
    if cuda:
        measured["gpu"] = torch.cuda.get_device_name()
    value = measured.pop("value")
    if job.beside is not None:
        measured["beside"] = repeated(job.beside, BASE_REPEATS, BASE_ENOUGH)
    if job.result is not None and request.get("compare", True):
        measured["summary"] = job.result(value)
    return measured


def plain_seconds(kind: str, task: Any) -> float:
    """Seconds of the plain network: ``epoch`` or ``forward``."""
    from benchmarks.contenders import make

    job = make(f"plain:{kind}", task, {})
    seconds = repeated(job.work, BASE_REPEATS, BASE_ENOUGH)
    del job
    gc.collect()
    return seconds


def repeated(work: Any, repeats: int, enough: float) -> float:
    """The median after a first one; of the only one if it was long."""
    first, _ = timed(work)
    runs = [first] if first > LONG else []
    while not runs or (first <= LONG and len(runs) < repeats and sum(runs) < enough):
        runs.append(timed(work)[0])
    return statistics.median(runs)


def measure(job: Any, watch: Any) -> dict[str, Any]:
    """Seconds of the job, with those of its eigendecompositions apart."""
    others = Others()
    watch.seconds = 0.0
    first, value = timed(job.work)
    runs, parts = [first], [watch.seconds]
    if first < LONG:
        runs, parts = [], []
        while len(runs) < REPEATS and sum(runs) < ENOUGH:
            value, watch.seconds = None, 0.0  # the last one is not held beside the next
            seconds, value = timed(job.work)
            runs.append(seconds)
            parts.append(watch.seconds)
    rest = [run - part for run, part in zip(runs, parts, strict=True)]
    return {
        "seconds": statistics.median(rest),
        "decomposition": statistics.median(parts),
        "runs": [round(run, 5) for run in runs],
        "first": first,
        "others": others.share(),
        "value": value,
    }


def timed(work: Any) -> tuple[float, Any]:
    from benchmarks.contenders import synchronise

    synchronise()
    start = time.perf_counter()
    value = work()
    synchronise()
    return time.perf_counter() - start, value


def error_line(error: BaseException) -> str:
    """One line; what an allocator says when the memory limit is hit is called by its name."""
    text = " ".join(str(error).split())
    if "CUDA out of memory" in text:
        asked = text.partition("Tried to allocate ")[2].partition(". ")[0]
        return f"out of memory: {asked} more"
    if isinstance(error, MemoryError) or "allocate memory" in text or "bad_alloc" in text:
        asked = text.partition("you tried to allocate ")[2].partition(" bytes")[0]
        more = f": {int(asked) / 2**30:.0f} GiB more" if asked.isdigit() else ""
        return f"out of memory{more}, {memory_limit() / 2**30:.0f} GiB allowed"
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    return f"{type(error).__name__}: {text}"[:120]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print("\n" + json.dumps(answered(json.loads(sys.argv[1]))))
    else:
        serve()
