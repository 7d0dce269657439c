"""Runs contenders one after the other, each in its own process, and puts rows together."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import time
from array import array
from pathlib import Path
from typing import Any

from benchmarks.environment import BENCH, ROOT
from benchmarks.machine import wait_until_quiet
from benchmarks.works import Contender, Work

TIMEOUT = 300  # seconds for one contender, with its fit where it predicts
DISTURBED = 0.2  # share of the machine that others may take before a measurement is repeated
ATTEMPTS, AGAIN = 3, 150.0  # how often at most, and up to how many seconds of it
PATIENCE = 480.0  # seconds of the whole run after which nothing is repeated
QUIET = 20.0  # seconds that a measurement waits for other programs at most
IMPORTS = 5


def run(work: Work, python: Path, start: float) -> dict[str, Any]:
    """All contenders of a work as rows."""
    print(f"\n{work.title}", flush=True)
    if any(c.job == "import" for c in work.contenders):
        answers = run_imports(work, python)
    else:
        answers = [run_contender(work, c, python, start) for c in work.contenders]
    rows = [row(c, a, answers[0], work.contenders[0]) for c, a in zip(work.contenders, answers, strict=True)]
    for contender, entry, answer in zip(work.contenders, rows, answers, strict=True):
        if contender.compare and contender is not work.contenders[work.ours] and "error" not in answer:
            entry["difference"] = difference(output(work, contender), output(work, work.contenders[work.ours]))
    return {"title": work.title, "difference": work.difference, "rows": rows}


def run_contender(work: Work, contender: Contender, python: Path, start: float) -> dict[str, Any]:
    """The least disturbed of a few attempts; ``start`` is that of the whole run."""
    best: dict[str, Any] = {}
    for _ in range(ATTEMPTS):
        wait_until_quiet(QUIET)
        began = time.perf_counter()
        answer = ask(contender, python, output(work, contender))
        if not best or answer.get("others", math.inf) < best.get("others", math.inf):
            best = answer
        calm = "error" in answer or answer["others"] < DISTURBED
        now = time.perf_counter()
        if calm or now - began > AGAIN or now - start > PATIENCE:
            break
    said = best.get("error") or f"{best['seconds']:.3f} s, others {best['others']:.0%}"
    print(f"  {contender.name}: {said}", flush=True)
    return best


def output(work: Work, contender: Contender) -> Path:
    """Where a contender leaves what is compared."""
    return BENCH / "out" / f"{work.name}-{work.contenders.index(contender)}.bin"


def ask(contender: Contender, python: Path, path: Path) -> dict[str, Any]:
    """One process, one answer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    request = {"job": contender.job, "options": contender.options, "output": str(path) if contender.compare else None}
    command = [str(python), "-m", "benchmarks.worker", json.dumps(request)]
    try:
        env = environment(contender)
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT, env=env)
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {TIMEOUT} s"}
    if done.returncode:
        return {"error": f"the process ended with {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def environment(contender: Contender) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "2", "PYTHONWARNINGS": "ignore"} | contender.variables


def run_imports(work: Work, python: Path) -> list[dict[str, Any]]:
    """Fresh interpreters in turn, after one each that fills the caches."""
    seconds: dict[str, list[float]] = {c.name: [] for c in work.contenders}
    wait_until_quiet(QUIET)
    for turn in range(IMPORTS + 1):
        for c in work.contenders:
            start = time.perf_counter()
            subprocess.run([str(python), "-c", f"import {c.options['module']}"], cwd=BENCH, check=True)
            if turn:
                seconds[c.name].append(time.perf_counter() - start)
    return [{"seconds": statistics.median(runs), "runs": runs} for runs in seconds.values()]


def row(contender: Contender, answer: dict[str, Any], first: dict[str, Any], reference: Contender) -> dict[str, Any]:
    """A row of the table: numbers, ratios to the reference, and bars with what became of them."""
    entry: dict[str, Any] = {"contender": contender.name, "note": contender.note}
    if "error" in answer:
        return entry | {"error": answer["error"], "bars": [{"bar": b.text(), "met": None} for b in contender.bars]}
    entry |= {k: answer[k] for k in ("runs", "first", "peak_mb", "others", "torch") if k in answer}
    entry["seconds"] = counted(contender, answer)
    if contender.part is not None:
        rest = answer["seconds"] - answer["details"][contender.part]
        entry["note"] = "; ".join(filter(None, [f"decompositions and the rest: {rest:.2f} s more", contender.note]))
    elif "curvature" in answer.get("details", {}):
        entry["note"] = f"of which curvature {answer['details']['curvature']:.3g} s"
    base = {} if "error" in first else {"seconds": counted(reference, first), "peak_mb": first.get("peak_mb")}
    ratios = {k: entry[k] / base[k] for k in ("seconds", "peak_mb") if base.get(k) and entry.get(k) is not None}
    bars = []
    for bar in contender.bars:
        ratio = ratios.get(bar.quantity)
        bars.append({"bar": bar.text(), "ratio": ratio, "met": None if ratio is None else bar.met(ratio)})
    return entry | {"ratio": ratios.get("seconds"), "memory_ratio": ratios.get("peak_mb"), "bars": bars}


def counted(contender: Contender, answer: dict[str, Any]) -> float:
    """The seconds that enter the table."""
    seconds = answer["seconds"] if contender.part is None else answer["details"][contender.part]
    return seconds * contender.scale


def difference(theirs: Path, ours: Path) -> float | None:
    """‖theirs − ours‖ / ‖ours‖, or None where one of them left nothing."""
    if not (theirs.exists() and ours.exists()):
        return None
    a, b = read(theirs), read(ours)
    if len(a) != len(b):
        return None
    off = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
    return off / max(math.sqrt(sum(y * y for y in b)), 1e-300)


def read(path: Path) -> array[float]:
    values: array[float] = array("d")
    with path.open("rb") as file:
        values.fromfile(file, path.stat().st_size // values.itemsize)
    return values
