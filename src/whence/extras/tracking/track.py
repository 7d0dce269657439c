"""Uncertainty by layer during training: a cheap posterior at some steps, as a table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from whence.engine.batches import Inputs
from whence.engine.randomness import resolve_seed
from whence.errors import BadOption, NotDefined, WhenceError, explains_keywords, notice, whole_number
from whence.extras.tracking.measure import DRAWS, Tracker
from whence.extras.tracking.records import TrackedLayer, TrackFile, TrackRecord, merged, opened, read
from whence.extras.tracking.subset import gather, probe_inputs
from whence.extras.tracking.variational import VariationalTracker, refuse_unused
from whence.functional import Network, source_for
from whence.likelihoods import Likelihood, LikelihoodName, resolve
from whence.posteriors.variational import VariationalModule
from whence.priors import RELATIVE, Prior, Relative
from whence.recording.selection import Layers
from whence.tables import SHORT, Table, html, number, text

PROBE = 64  # default number of probe inputs
AUTO: Literal["auto"] = "auto"
SHARE = 0.2  # of the time of a training that records take with every="auto"


@explains_keywords
def track(
    model: nn.Module,
    data: Any,
    *,
    likelihood: Likelihood | LikelihoodName,
    probe: Any = None,
    every: int | Literal["auto"] = "auto",
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
    """Track the uncertainty of each layer during training, in any loop: call ``step()`` in it.

    A record is a Laplace posterior of the current network, in evaluation mode, on a copy: parameters, buffers,
    gradients, mode, hooks and random state of your model do not change. Of a :class:`whence.VariationalModule` it is
    the variational posterior itself, and options that concern the Laplace posterior are refused.

    Args:
        model: the network in training.
        data: its training data: a ``DataLoader``, a re-iterable of batches, or a pair of tensors; read once, here.
        likelihood: as for :func:`whence.laplace`.
        probe: inputs, or a pair (inputs, targets), on which shares and uncertainties are measured; 64 examples of
            the subset by default. Its time grows with the number of inputs.
        every: number of steps between records. ``"auto"`` records at the first step, and later at those at which all
            records together take at most a fifth of the time of the training; 1 records every step.
        structure: structure of the curvature, as for :func:`whence.laplace`.
        curvature: as for :func:`whence.laplace`, but ``"auto"`` is exact only up to 20 outputs, and sampled above.
        draws: label draws for each example of a sampled curvature, the same at every record.
        subset: number of random examples, always the same, for the curvature.
        prior_precision: as for :func:`whence.laplace`; a relative prior is computed again for each record.
        path: file for the records, one line of JSON each.
        resume: whether to continue the file at ``path`` if there is one.
        layers: which weights are Bayesian, as for :func:`whence.laplace`.
        data_size: examples that the curvature stands for; those in ``data`` by default.
        seed: seed of the subset and the draws (0); or a ``generator`` to draw it from.
    """
    seed = resolve_seed(seed, generator)
    if every != AUTO:
        whole_number(every, "every", remedy="or pass 'auto'")
    whole_number(subset, "subset")
    resolved, estimated = resolve(likelihood)
    if estimated and isinstance(model, VariationalModule):
        raise BadOption(
            "a VariationalModule is tracked with a noise that is given: likelihood=whence.Gaussian(noise=σ)."
        )
    own = model if isinstance(model, VariationalModule) else None
    if own is not None:
        given = {
            "structure": structure,
            "curvature": curvature,
            "draws": draws,
            "layers": layers,
            "data_size": data_size,
        }
        plain = {"structure": "kron", "curvature": "auto", "draws": DRAWS, "layers": None, "data_size": None}
        refuse_unused(given | {"prior_precision": prior_precision}, plain | {"prior_precision": RELATIVE})
    network = Network.snapshot(model if own is None else own.model)
    examples = gather(source_for(network.module, data), subset, seed, network.device, network.dtype)
    measured: tuple[Inputs, Tensor | None] = examples.first(PROBE)
    if probe is not None:
        measured = probe_inputs(probe, examples.inputs, seed, network.device, network.dtype)
    tracker: Tracker | VariationalTracker
    settings = {
        "likelihood": likelihood,
        "structure": structure,
        "curvature": curvature,
        "draws": draws,
        "layers": layers,
        "prior_precision": prior_precision,
        "data_size": examples.size if data_size is None else data_size,
    }
    if own is not None:
        tracker = VariationalTracker(own, examples, measured, resolved, seed)
    else:
        tracker = Tracker(model, examples, measured, settings, seed)
    tracker.try_out(probe is not None)
    header = tracker.header()
    records, file = opened(path, header, resume)
    return Track(header, records, every, tracker, file)


class Track:
    """The records of a tracked training. Made by :func:`whence.track`, or read by :meth:`load`."""

    def __init__(
        self,
        header: dict[str, Any],
        records: list[TrackRecord],
        every: int | Literal["auto"] = 1,
        tracker: Tracker | VariationalTracker | None = None,
        file: TrackFile | None = None,
    ) -> None:
        self.header, self.every = header, every
        self.steps = records[-1].step if records else 0  # steps so far
        self._records, self._tracker, self._file = merged(records), tracker, file
        self._first = True  # no record by this object yet
        self._since = time.perf_counter()
        self._spent, self._trained = 0.0, 0.0  # seconds of records, and of the loop between them

    @classmethod
    def load(cls, path: str | Path) -> Track:
        """Read the records of a file."""
        header, records, _ = read(path)
        return cls(header, records)

    # Recording

    def step(self, number: int | None = None) -> TrackRecord | None:
        """Count a step (or set its number), and record if it is a multiple of ``every``, or cheap enough."""
        self.steps = self.steps + 1 if number is None else whole_number(number, "number", 0)
        return self.record() if self._due() else None

    def _due(self) -> bool:
        if isinstance(self.every, int):
            return self.steps % self.every == 0
        if self._first:
            return True
        trained = self._trained + time.perf_counter() - self._since
        return self._spent + self._records[-1].seconds <= SHARE * trained

    def record(self, label: str = "") -> TrackRecord:
        """Record now, at any step.

        An error at the first record is raised. Later errors come from the training (weights that are no longer finite),
        which must continue: they are stored in ``error`` and reported as a notice.
        """
        tracker = self._live()
        if tracker.device.type == "cuda":
            torch.cuda.synchronize(tracker.device)  # queued work counts as the loop's time
        start = time.perf_counter()
        found: dict[str, Any]
        try:
            found = tracker.measure()
        except WhenceError as error:
            if self._first:
                raise
            found = {"error": str(error)}
            notice(f"step {self.steps} could not be recorded: {error}")
        now = time.perf_counter()
        self._spent, self._trained = self._spent + now - start, self._trained + start - self._since
        made = TrackRecord(self.steps, label, seconds=now - start, loop_seconds=start - self._since, **found)
        self._records = merged([*self._records, made])
        if self._file is not None:
            self._file.append(made)
        self._first, self._since = False, time.perf_counter()
        return made

    def _live(self) -> Tracker | VariationalTracker:
        if self._tracker is None:
            raise NotDefined("a track loaded from a file has no network; whence.track(..., resume=True) continues it.")
        return self._tracker

    @property
    def subset(self) -> tuple[Inputs, Tensor]:
        """The examples of every record."""
        subset = self._live().subset
        return subset.inputs, subset.targets

    # Reading

    @property
    def records(self) -> tuple[TrackRecord, ...]:
        """All records, by step."""
        return tuple(self._records)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def seconds(self) -> float:
        """Total time of all records."""
        return sum(r.seconds for r in self._records)

    @property
    def overhead(self) -> float | None:
        """Seconds of recording per second of the loop; None before the first record."""
        loop = sum(r.loop_seconds for r in self._records)
        return self.seconds / loop if loop > 0 else None

    @property
    def layers(self) -> Table:
        """One row for each record and layer."""
        rows = [(r.step, r.label, layer) for r in self._records for layer in r.layers]
        columns = {"step": [step for step, _, _ in rows], "label": [label for _, label, _ in rows]}
        return Table({**columns, **Table.of_rows(TrackedLayer, [layer for *_, layer in rows])}).filled()

    @property
    def probe(self) -> Table:
        """One row for each record: losses, uncertainties on the probe, and the time of recording."""
        columns = dict(Table.of_rows(TrackRecord, self._records))
        del columns["layers"], columns["loop_seconds"]
        return Table({**columns, "overhead": [r.overhead for r in self._records]}).filled()

    def to_pandas(self) -> Any:
        """The table of layers as a ``pandas.DataFrame``, one row for each record and layer."""
        return self.layers.to_pandas()

    def settled(self, tolerance: float = 0.05) -> dict[str, int | None]:
        """The first step after which ``identified`` of a layer stays within ``tolerance`` of its last value.

        None if the last two records differ by more, or if there are fewer than two.
        """
        if not tolerance >= 0:
            raise BadOption(f"tolerance={tolerance} must be at least 0.")
        found: dict[str, int | None] = {}
        for name, series in self._series().items():
            values = [row.identified for _, row in series if row.identified is not None]
            start = len(series)
            while start and len(values) == len(series) and abs(values[start - 1] - values[-1]) <= tolerance:
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
        if self.overhead is not None:
            times = f"{self.overhead:,.0f} times" if self.overhead >= 10 else f"{self.overhead:.1%} of"
            cost += f", {times} the loop's time"
        failed = sum(bool(r.error) for r in self._records)
        failed_text = f"; {failed} failed (see .records)" if failed else ""
        return f"{head}, steps {self._records[0].step} to {self._records[-1].step}; {of}; {cost}{failed_text}"

    def __str__(self) -> str:
        head, rows = self._last()
        return f"{self!r}\n{text(head, rows, left=2)}" if rows else repr(self)

    def _repr_html_(self) -> str:
        head, rows = self._last()
        return html(head, rows[:SHORT], repr(self), left=2, more=len(rows) - SHORT)

    def _last(self) -> tuple[tuple[str, ...], list[list[str]]]:
        """The layers at the last record: names of the columns, and rows."""
        head = ("layer", "kind", "weights", "identified", "→ last", "settled", "std", "snr", "share", "explained")
        settled, rows = self.settled(), []
        for name, series in self._series().items():
            (_, first), (_, last) = series[0], series[-1]
            known = "not yet" if settled[name] is None else f"step {settled[name]}"
            values = (last.kind, last.parameters, first.identified, last.identified, known, last.std)
            more = (last.signal_to_noise, last.variance_share, last.explained)
            rows.append([name, *(number(v) for v in values + more)])
        return head, rows
