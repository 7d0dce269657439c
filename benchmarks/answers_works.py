"""What is asked of a network at its real size, and how it is measured beside the plain network in the same process."""

from __future__ import annotations

import gc
import operator
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

import whence
from benchmarks.answers_networks import Subject
from benchmarks.contenders import Stopwatch
from benchmarks.machine import CudaPeak, Others, Peak
from benchmarks.worker import BASE_ENOUGH, BASE_REPEATS, LONG, error_line, timed

Row = dict[str, Any]
COMPILED_LONG = 10.0  # seconds of a first run, from which on there is no other, where kernels are compiled in it


class Seconds(NamedTuple):
    """``processor`` is of this process alone: on a machine that others use, its ratios are the steadier ones."""

    wall: float
    processor: float


def clocked(work: Callable[[], Any]) -> tuple[Seconds, Any]:
    processor = time.process_time()
    wall, value = timed(work)
    return Seconds(wall, time.process_time() - processor), value


@dataclass(frozen=True)
class Repeats:
    """After a first one, as many as fit into ``enough`` seconds and at most ``most``; none after one that took long."""

    most: int
    enough: float
    long: float = LONG

    def after(self, first: Seconds, work: Callable[[], Any]) -> list[Seconds]:
        if first.wall > self.long or not self.most:
            return [first]
        runs = [clocked(work)[0]]
        while len(runs) < self.most and sum(run.wall for run in runs) < self.enough:
            runs.append(clocked(work)[0])
        return runs

    def median(self, work: Callable[[], Any]) -> Seconds:
        return middle(self.after(clocked(work)[0], work))


def middle(runs: list[Seconds]) -> Seconds:
    return Seconds(*(statistics.median(column) for column in zip(*runs, strict=True)))


@dataclass
class Job:
    """``prepare`` is not timed and gives the work; ``inputs`` and ``batch`` are what it is given."""

    prepare: Callable[[], Callable[[], Any]]
    inputs: int
    batch: int
    note: Callable[[Any], Row] | None = None  # numbers read from the result


class Asked:
    """A network, its posterior (fitted when first needed) and the times of the plain network."""

    def __init__(self, subject: Subject, limits: Row | None = None) -> None:
        limits = limits or {}
        self.subject, sizes = subject, subject.sizes
        compiles = subject.device.startswith("cuda")  # kernels, the first time
        self.repeats = Repeats(0 if subject.tiny else 3, 3.0, COMPILED_LONG if compiles else LONG)
        self.plain_repeats = Repeats(0 if subject.tiny else BASE_REPEATS, BASE_ENOUGH)
        self.inputs = limits.get("inputs") or sizes.inputs
        self.held_out = limits.get("held_out") or sizes.held_out
        self.examples = limits.get("examples") or sizes.fit
        self.batch = min(sizes.batch, self.examples)
        self.predictions: dict[int, float] = {}  # seconds by number of inputs

    @cached_property
    def posterior(self) -> Any:
        return self.fitted()

    @cached_property
    def last_layer(self) -> Any:
        return self.fitted(layers="last")

    @cached_property
    def x(self) -> Tensor:
        return self.subject.data(self.inputs, 2)[0]

    @cached_property
    def validation(self) -> tuple[Tensor, Tensor]:
        return self.subject.data(self.held_out, 3)

    @cached_property
    def data(self) -> Any:
        return self.subject.batches(self.examples)

    def fitted(self, **options: Any) -> Any:
        return whence.laplace(
            self.subject.model,
            self.data,
            likelihood=self.subject.likelihood,
            curvature="mc",
            generator=torch.Generator().manual_seed(0),
            progress=False,
            **options,
        )

    # The plain network, and a prediction, of as many inputs

    def plain(self, work: str, count: int) -> Seconds:
        """A training epoch or a forward pass, as the work is measured in."""
        if work in EPOCHS:
            batches = self.subject.batches(count)
            return self.plain_repeats.median(lambda: self.subject.epoch(batches))
        x = self.subject.data(count, 2)[0]
        return self.plain_repeats.median(lambda: self.subject.forward(x))

    def prediction(self, count: int) -> float:
        """Of the first inputs; measured once, by the work ``predict`` if it has the same number."""
        if count not in self.predictions:
            x = self.subject.data(count, 2)[0]
            self.predictions[count] = self.repeats.median(lambda: answer(self.posterior.predict(x))).wall
        return self.predictions[count]

    # The works

    def fit(self) -> Job:
        return Job(lambda: self.fitted, self.examples, self.batch, fit_note)

    def tune(self) -> Job:
        def prepare() -> Callable[[], Any]:
            posterior, held = self.posterior, self.validation
            return lambda: posterior.tune(held, progress=False)

        return Job(prepare, self.held_out, self.held_out)

    def predict(self) -> Job:
        return self._of_posterior(lambda posterior, x: answer(posterior.predict(x)))

    def fit_last(self) -> Job:
        return Job(lambda: lambda: self.fitted(layers="last"), self.examples, self.batch)

    def predict_last(self) -> Job:
        def prepare() -> Callable[[], Any]:
            posterior, x = self.last_layer, self.x
            return lambda: answer(posterior.predict(x))

        return Job(prepare, self.inputs, self.inputs)

    def where(self) -> Job:
        return self._of_posterior(lambda posterior, x: posterior.where(x), shares_note)

    def novelty(self) -> Job:
        """Of the inputs alone; the reference is made before."""

        def prepare() -> Callable[[], Any]:
            reference = whence.reference_of(self.posterior, self.validation[0])
            return lambda: whence.novelty(self.posterior, self.x, reference=reference).score

        return Job(prepare, self.inputs, self.inputs)

    def audit(self, **options: Any) -> Job:
        train, *counts = self.subject.sizes.audit

        def prepare() -> Callable[[], Any]:
            data = self.subject.batches(train)
            validation, test = (self.subject.data(n, seed) for n, seed in zip(counts[:2], (3, 4), strict=True))
            novel = self.subject.data(counts[2], 5, novel=True)[0]
            return lambda: whence.audit(
                self.subject.model,
                data,
                likelihood=self.subject.likelihood,
                validation=validation,
                test=test,
                ood=novel,
                progress=False,
                **options,
            )

        return Job(prepare, train, self.subject.sizes.batch, audit_note)

    def audit_quick(self) -> Job:
        return self.audit(quick=True)

    def _of_posterior(self, work: Callable[[Any, Tensor], Any], note: Any = None) -> Job:
        def prepare() -> Callable[[], Any]:
            posterior, x = self.posterior, self.x
            return lambda: work(posterior, x)

        return Job(prepare, self.inputs, self.inputs, note)


def answer(prediction: Any) -> Tensor:
    """What users read first; the rest of a prediction is computed when asked for."""
    return prediction.probs


# What is read from results


def fit_note(posterior: Any) -> Row:
    return {key: posterior.curvature.seconds[key] for key in ("curvature", "decomposition")}


def shares_note(where: Any) -> Row:
    """The largest standard error beside its share, of layers with at least a hundredth of the variance."""
    rows = [row for row in where.layers if (row.variance_share or 0.0) >= 0.01]
    errors = [row.variance_share_error / row.variance_share for row in rows if row.variance_share_error is not None]
    return {"standard_error": max(errors)} if errors else {}


def audit_note(audit: Any) -> Row:
    run = audit.results.run
    return {"steps": dict(run.seconds), "left_out": {one.what: one.why[:120] for one in run.left_out}}


WORKS = ("fit", "tune", "predict", "where", "novelty", "audit", "audit_quick")
NEED_POSTERIOR = ("tune", "predict", "where", "novelty")
EPOCHS = ("fit", "audit", "audit_quick")  # measured in training epochs, the others in forward passes
PREDICTIONS = ("tune", "where", "novelty")  # and in predictions of the same inputs

OURS, LAST = "whence", "whence, last layer"
JOBS: dict[tuple[str, str], Callable[[Asked], Job]] = {
    **{(work, OURS): operator.methodcaller(work) for work in WORKS},
    ("fit", LAST): Asked.fit_last,
    ("predict", LAST): Asked.predict_last,
}


def rows(asked: Asked, jobs: dict[tuple[str, str], Callable[[Asked], Job]]) -> Iterator[Row]:
    """One row for each (work, contender) as it comes; ``{"began": …}`` whenever the clock starts anew."""
    for (work, contender), make in jobs.items():
        yield {"began": "preparing"}
        try:
            job = make(asked)
            run = job.prepare()
            yield {"began": "running"}
            found = measured(asked, work, job, run, contender == OURS)
        except Exception as error:
            found = {"error": error_line(error)}
        yield {"work": work, "contender": contender} | found
        gc.collect()


def measured(asked: Asked, work: str, job: Job, run: Callable[[], Any], ours: bool = True) -> Row:
    """Seconds and memory of a work, and those of the plain network on the same inputs, before and after."""
    cuda, others = asked.subject.device.startswith("cuda"), Others()
    before = asked.plain(work, job.inputs)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        peak = CudaPeak() if cuda else Peak()
        first, value = clocked(run)
        memory = peak.megabytes()
    found = job.note(value) if job.note is not None else {}
    del value
    runs = asked.repeats.after(first, run)
    took, after = middle(runs), asked.plain(work, job.inputs)
    row: Row = {"seconds": took.wall, "first": first.wall, "runs": [r.wall for r in runs], "peak_mb": memory}
    row |= {"inputs": job.inputs, "batch": job.batch, "others": others.share(), **found}
    row["notices"] = sorted({str(w.message) for w in said if issubclass(w.category, whence.errors.Notice)})
    row["epoch" if work in EPOCHS else "forward"] = (before.wall + after.wall) / 2
    row["by_processor"] = 2 * took.processor / (before.processor + after.processor)
    if work == "predict" and ours:
        asked.predictions[job.inputs] = took.wall
    if work in PREDICTIONS:
        row["prediction"] = asked.prediction(job.inputs)
    return row


def placeholder(wanted: bool) -> Stopwatch:
    """Decompositions that give the identity, where they would take most of the time and change no other."""
    return Stopwatch(placeholder=wanted)
