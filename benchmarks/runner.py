"""Runs contenders one after the other, each in its own process, and puts rows together."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.compared import difference
from benchmarks.environment import ROOT
from benchmarks.machine import wait_until_quiet
from benchmarks.works import Contender, Work

DISTURBED = 0.2  # share of the machine that others may take before a measurement is repeated
ATTEMPTS, AGAIN = 3, 20.0  # how often at most, and up to how many seconds of it
QUIET = 15.0  # seconds that a measurement waits for other programs at most
PATIENCE = 300.0  # seconds of a run that may go into waiting and repeating


class Workers:
    """A process that forks contenders, started again should it die; or ``fresh`` interpreters."""

    def __init__(self, python: Path, peers: Path | None, threads: int = 2, fresh: bool = False) -> None:
        self.command, self.fresh = [str(python), "-m", "benchmarks.worker"], fresh
        paths = [str(ROOT), str(ROOT / "src"), *([str(peers.absolute())] if peers else [])]
        old = os.environ.get("PYTHONPATH")
        self.environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "PYTHONWARNINGS": "ignore",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking for a device does not start it before a fork
            "PYTHONPATH": os.pathsep.join(paths + ([old] if old else [])),
        }
        self.process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request, one answer."""
        errors = None if os.environ.get("BENCH_TRACE") else subprocess.DEVNULL
        if self.fresh:
            return self._one(request, errors)
        if self.process is None or self.process.poll() is not None:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=self.environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "the process that starts contenders ended"}

    def _one(self, request: dict[str, Any], errors: int | None) -> dict[str, Any]:
        command, limit = [*self.command, json.dumps(request)], request["limit"]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=errors, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no result within {limit:g} s"}
        if done.returncode:
            return {"error": f"the process ended with status {done.returncode}"}
        return json.loads(done.stdout.strip().splitlines()[-1])

    def close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()


class Run:
    """A run over works; rows are saved as they come, and those that are there already can be kept."""

    def __init__(self, workers: Workers, results: dict[str, Any], save: Callable[[], None], quiet: bool) -> None:
        self.workers, self.results, self.save, self.quiet = workers, results, save, quiet
        self.start, self.waited = time.perf_counter(), 0.0

    def work(self, work: Work, resume: bool, deadline: float) -> bool:
        """All contenders of a work; False if the time ran out before the last one."""
        print(f"\n{work.title}", flush=True)
        found = self.results["works"].get(work.name, {})
        kept = {row["contender"]: row for row in found.get("rows", [])} if resume else {}
        rows: list[dict[str, Any]] = []
        complete = True
        for contender in work.contenders:
            if contender.name in kept:
                rows.append(kept[contender.name])
                continue
            if time.perf_counter() > deadline:
                complete = False
                continue
            rows.append(row(contender, self.contender(work, contender)) | {"batch": work.batch(contender)})
            self._keep(work, rows)
        self._keep(work, rows)
        return complete

    def _keep(self, work: Work, rows: list[dict[str, Any]]) -> None:
        if rows:
            entry = {"title": work.title, "base": work.base, "rows": finished(rows)}
            self.results["works"][work.name] = entry
            self.save()

    def contender(self, work: Work, contender: Contender) -> dict[str, Any]:
        """The least disturbed of a few attempts."""
        best: dict[str, Any] = {}
        for attempt in range(ATTEMPTS):
            began = time.perf_counter()
            patient = self.quiet and self.waited < PATIENCE
            if patient:
                wait_until_quiet(QUIET)
            waited = time.perf_counter() - began
            answer = self.workers.ask(request(work, contender))
            took = time.perf_counter() - began
            self.waited += took if attempt else waited
            if not best or answer.get("others", math.inf) < best.get("others", math.inf):
                best = answer
            if not patient or took > AGAIN or "error" in answer or answer["others"] < DISTURBED:
                break
        said = best.get("error") or f"{best['seconds']:.3g} s (others {best['others']:.0%})"
        print(f"  {contender.name}: {said}", flush=True)
        return best


def request(work: Work, contender: Contender) -> dict[str, Any]:
    return {
        "job": contender.job,
        "options": contender.options,
        "task": work.task | contender.task,
        "base": work.base,
        "limit": work.limit,
        "compare": contender.compare,
        "hand_back": contender.hand_back,
    }


KEPT = ("base", "runs", "first", "peak_mb", "others", "beside", "summary", "torch", "gpu")


def row(contender: Contender, answer: dict[str, Any]) -> dict[str, Any]:
    """What is kept of an answer."""
    entry: dict[str, Any] = {"contender": contender.name, "note": contender.note}
    if "error" in answer:
        return entry | {"error": answer["error"]}
    entry |= {key: answer[key] for key in KEPT if answer.get(key) is not None}
    entry |= {"seconds": answer["seconds"] * contender.scale, "decomposition": answer["decomposition"]}
    return entry | {"scale": contender.scale}


def finished(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their ratios to the plain network, and their differences from the first one.

    What was measured on a part of the work is held against the plain network of the first row.
    """
    first = rows[0]
    done = []
    for entry in rows:
        if "error" in entry:
            done.append(entry)
            continue
        base = entry["base"] if entry["scale"] == 1 else first.get("base")
        off = None if entry is first else difference(entry.get("summary"), first.get("summary"))
        done.append(entry | {"ratio": entry["seconds"] / base if base else None, "difference": off})
    return done
