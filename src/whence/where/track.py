"""Uncertainty by layer while a network is trained: a cheap posterior now and then, kept as a table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.batches import Inputs
from whence.curvature.selection import Layers
from whence.errors import BadOption, NotDefined, WhenceError, notice
from whence.functional import Network
from whence.likelihoods import Likelihood, resolve
from whence.metrics.tables import text
from whence.priors import RELATIVE, Prior, Relative
from whence.randomness import resolve_seed
from whence.where.tabular import Table, number
from whence.where.track_log import Log, TrackedLayer, TrackRecord, merged, opened, read
from whence.where.track_recorder import DRAWS, Recorder
from whence.where.track_subset import gather, probe_inputs

PROBE = 64  # inputs that are looked at if no probe is given


def track(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | Literal["classification", "binary", "regression"],
    probe: Any = None,
    every: int = 1,
    structure: Literal["full", "block", "kron", "ekfac", "diag", "lowrank"] = "kron",
    curvature: Literal["auto", "ggn", "mc", "empirical", "kfra", "hessian"] = "auto",
    draws: int = DRAWS,
    subset: int = 256,
    prior_precision: float | Relative | Tensor | Prior | Mapping[str, Any] = RELATIVE,
    path: str | Path | None = None,
    resume: bool = False,
    layers: Layers = None,
    data_size: int | None = None,
    seed: int | None = None,
    generator: torch.Generator | None = None,
) -> Track:
    """Watch what the layers of a network know while it is trained, in any loop: call ``step()`` in it.

    A record is a Laplace posterior of the network as it is, in evaluation mode, on a copy: parameters, buffers,
    gradients, mode, hooks and random state of yours stay as they are.

    Args:
        model: the network in training.
        data: its training data: a ``DataLoader``, a re-iterable of batches, or a pair of tensors; read once, now.
        likelihood: as for :func:`whence.laplace`.
        probe: inputs, or a pair (inputs, targets), on which shares and uncertainties are measured; 64 examples of
            the subset by default. Its time grows with the number of inputs.
        every: how many steps from one record to the next.
        structure: how the curvature is kept, as for :func:`whence.laplace`.
        curvature: as for :func:`whence.laplace`, but ``"auto"`` is exact up to 20 outputs only, and sampled beyond.
        draws: label draws for each example of a sampled curvature, the same at every record.
        subset: how many random examples, always the same, the curvature is computed on.
        prior_precision: as for :func:`whence.laplace`; a relative one follows the weights from record to record.
        path: file for the records, one line of JSON each, written at once.
        resume: whether to go on with the file at ``path`` if there is one.
        layers: which weights are Bayesian, as for :func:`whence.laplace`.
        data_size: examples that the curvature stands for; those in ``data`` by default.
        seed: decides the subset and the draws (0); or a ``generator`` that one is drawn from.
    """
    seed = resolve_seed(seed, generator)
    for name, value in (("every", every), ("subset", subset)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadOption(f"{name}={value!r} must be a whole number, at least 1.")
    resolve(likelihood)
    network = Network.snapshot(model)
    sample = gather(data, subset, seed, network.device, network.dtype)
    looked: tuple[Inputs, Tensor | None] = sample.first(PROBE)
    if probe is not None:
        looked = probe_inputs(probe, sample.inputs, seed, network.device, network.dtype)
    settings = {
        "likelihood": likelihood,
        "structure": structure,
        "curvature": curvature,
        "draws": draws,
        "layers": layers,
        "prior_precision": prior_precision,
        "data_size": sample.size if data_size is None else data_size,
    }
    recorder = Recorder(model, sample, looked, settings, seed)
    recorder.try_out(probe is not None)
    header = recorder.header()
    records, log = opened(path, header, resume)
    return Track(header, records, every, recorder, log)


class Track:
    """What was recorded while a network was trained. Made by :func:`whence.track`, or read by :meth:`load`."""

    def __init__(
        self,
        header: dict[str, Any],
        records: list[TrackRecord],
        every: int = 1,
        recorder: Recorder | None = None,
        log: Log | None = None,
    ) -> None:
        self.header, self.every = header, every
        self.steps = records[-1].step if records else 0  # counted so far
        self._records, self._recorder, self._log = merged(records), recorder, log
        self._fresh = True  # no record was made by this object yet
        self._since = time.perf_counter()

    @classmethod
    def load(cls, path: str | Path) -> Track:
        """The records of a file, to look at."""
        header, records, _ = read(path)
        return cls(header, records)

    # Recording

    def step(self, number: int | None = None) -> TrackRecord | None:
        """Count a step, or say its number, and record if it is a multiple of ``every``."""
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise BadOption(f"number={number!r} must be a whole number, at least 0.")
        self.steps = self.steps + 1 if number is None else number
        return self.record() if self.steps % self.every == 0 else None

    def record(self, label: str = "") -> TrackRecord:
        """Record now, whatever the step.

        What goes wrong at the first record is raised. Later it is the training's doing (weights that are no longer
        finite), which a record must not end: it is noted in ``error``, and said.
        """
        recorder = self._live()
        if recorder.device.type == "cuda":
            torch.cuda.synchronize(recorder.device)  # what the loop has queued is the loop's time
        start = time.perf_counter()
        found: dict[str, Any]
        try:
            found = recorder.measure()
        except WhenceError as error:
            if self._fresh:
                raise
            found = {"error": str(error)}
            notice(f"step {self.steps} could not be recorded: {error}")
        now = time.perf_counter()
        made = TrackRecord(self.steps, label, seconds=now - start, loop_seconds=start - self._since, **found)
        self._records = merged([*self._records, made])
        if self._log is not None:
            self._log.append(made)
        self._fresh, self._since = False, time.perf_counter()
        return made

    def _live(self) -> Recorder:
        if self._recorder is None:
            raise NotDefined(
                "a track that was read from a file has no network; whence.track(..., resume=True) goes on."
            )
        return self._recorder

    @property
    def subset(self) -> tuple[Inputs, Tensor]:
        """The examples that every record is fitted to."""
        sample = self._live().sample
        return sample.inputs, sample.targets

    # Reading

    @property
    def records(self) -> tuple[TrackRecord, ...]:
        """All records, by step."""
        return tuple(self._records)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def seconds(self) -> float:
        """That all records took together."""
        return sum(r.seconds for r in self._records)

    @property
    def overhead(self) -> float | None:
        """Seconds of recording for each second of the loop; None before the first record."""
        loop = sum(r.loop_seconds for r in self._records)
        return self.seconds / loop if loop > 0 else None

    @property
    def layers(self) -> Table:
        """One row for each record and layer."""
        rows = [{"step": r.step, "label": r.label, **asdict(layer)} for r in self._records for layer in r.layers]
        return _table(rows, ["step", "label", *[f.name for f in fields(TrackedLayer)]])

    @property
    def probe(self) -> Table:
        """One row for each record: losses, uncertainties on the probe, and what recording took."""
        rows = [{**vars(r), "overhead": r.overhead} for r in self._records]
        hidden = ("layers", "loop_seconds")
        return _table(rows, [f.name for f in fields(TrackRecord) if f.name not in hidden] + ["overhead"])

    def to_pandas(self) -> Any:
        """The table of layers as a ``pandas.DataFrame``, one row for each record and layer."""
        return self.layers.to_pandas()

    def settled(self, tolerance: float = 0.05) -> dict[str, int | None]:
        """The first step from which on ``identified`` of a layer stays within ``tolerance`` of its last value.

        None where the last two records already differ by more, or there are not two.
        """
        if not tolerance >= 0:
            raise BadOption(f"tolerance={tolerance} must be at least 0.")
        found: dict[str, int | None] = {}
        for name, series in self._series().items():
            last = series[-1][1].identified
            start = len(series)
            while start and abs(series[start - 1][1].identified - last) <= tolerance:
                start -= 1
            found[name] = series[start][0] if start < len(series) - 1 else None
        return found

    def _series(self) -> dict[str, list[tuple[int, TrackedLayer]]]:
        """Layer → (step, row), by step."""
        found: dict[str, list[tuple[int, TrackedLayer]]] = {}
        for r in self._records:
            for layer in r.layers:
                found.setdefault(layer.name, []).append((r.step, layer))
        return found

    def __repr__(self) -> str:
        options = self.header["options"]
        of = f"{options['subset']:,} of {options['data_size']:,} examples"
        head = f"Track of {self.header['network']}: {len(self)} records"
        if not self._records:
            return f"{head} yet; {of}"
        cost = f"{self.seconds / len(self):.3g} s each"
        cost += f", {self.overhead:.1%} of the loop's time" if self.overhead is not None else ""
        failed = sum(bool(r.error) for r in self._records)
        failed_text = f"; {failed} could not be made (see .records)" if failed else ""
        return f"{head}, steps {self._records[0].step} to {self._records[-1].step}; {of}; {cost}{failed_text}"

    def __str__(self) -> str:
        head = ("layer", "kind", "weights", "identified", "→ last", "settled", "std", "snr", "share", "explained")
        settled, rows = self.settled(), []
        for name, series in self._series().items():
            (_, first), (_, last) = series[0], series[-1]
            known = "not yet" if settled[name] is None else f"step {settled[name]}"
            values = (last.kind, last.parameters, first.identified, last.identified, known, last.std)
            more = (last.signal_to_noise, last.variance_share, last.explained)
            rows.append([name, *(number(v) for v in values + more)])
        return f"{self!r}\n{text(head, rows, left=2)}" if rows else repr(self)


def _table(rows: list[dict[str, Any]], columns: list[str]) -> Table:
    """Without columns that hold nothing."""
    found = {name: [row[name] for row in rows] for name in columns}
    return Table(
        {name: values for name, values in found.items() if not rows or any(v not in (None, "") for v in values)}
    )
