"""A pass over the data that updates sums: forward once, backward in chunks of root columns.

If memory runs out, the chunk is halved and the pass continues where it stopped: finished columns are counted and
not added again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from whence.curvature import graphs
from whence.curvature.columns import Columns, columns_for
from whence.curvature.needs import largest, remedy
from whence.curvature.options import CurvatureKind, FitOptions
from whence.curvature.result import FitRecord, RecordSums
from whence.curvature.sums import CurvatureSums, InputSums
from whence.engine.batches import Batch, counted_examples, take
from whence.engine.checks import DeferredChecks
from whence.engine.memory import ChunkLimits, in_parts_that_fit, readable, sizes
from whence.engine.passes import Passes
from whence.engine.stages import RunningSums
from whence.functional import differentiable
from whence.likelihoods import Likelihood
from whence.linalg.dense import widened
from whence.recording.calls import Recording
from whence.recording.gradients import Gradients
from whence.recording.plan import Plan
from whence.recording.positions import find_live, has_sequences, probe, reaching

ALL = 2**62  # more root columns than there are


def sum_over_data(
    plan: Plan,
    batches: Passes,
    likelihood: Likelihood,
    options: FitOptions,
    sums: list[CurvatureSums],
    label: str,
    basis: str = "",
    signals: Sequence[InputSums] = (),
) -> FitRecord:
    """Update sums of curvature and signals in one or several passes over the data."""
    record, limits = RecordSums(likelihood), ChunkLimits()
    sweep = Sweep(plan, likelihood, options, sums, signals, record, limits)
    if graphs.wanted(sweep):
        length = batches.data.length()
        sweep.graphs = graphs.BatchGraphs(sweep, None if length is None else length * options.passes)
    try:
        with DeferredChecks():
            running: list[RunningSums] = [record, *sums, *signals]
            for batch in batches.passes(options.passes, options.progress, label, running, basis):
                batch, rows = counted_examples(batch, likelihood.counts)
                if len(rows):
                    if batch.index == 1:
                        plan.confirm(batch.inputs)
                    sweep.add(Examples(batch, rows + options.first, [0] * len(sums)))
    finally:
        sweep.graphs = None  # they refer back to the sweep, and hold much memory
    limits.notify("the fit")
    return record.record


@dataclass
class Examples:
    """Examples of a batch, and how much of them has been added."""

    batch: Batch
    rows: Tensor  # indices of the examples in the data
    columns: list[int]  # root columns that each sum has added
    inputs: int = 0  # number of sums that have added the inputs
    recorded: bool = False
    stage: str = "the forward pass"  # current step, for messages
    layers: dict[str, int] = field(default_factory=dict)  # bytes of inputs and gradients, for a single example

    def split(self, size: int) -> list[Examples]:
        """Parts of at most ``size`` examples, with the same progress."""
        parts = []
        for start in range(0, len(self.rows), size):
            which = slice(start, start + size)
            inputs, targets = take(self.batch.inputs, which), self.batch.targets[which]
            batch = replace(self.batch, inputs=inputs, targets=targets, counted=None)
            parts.append(Examples(batch, self.rows[which], list(self.columns), self.inputs, self.recorded))
        return parts


def add_in_parts(
    examples: Examples, add: Callable[[Examples], None], limits: ChunkLimits, too_large: Callable[[Examples], str]
) -> None:
    """Add examples; in parts if memory runs out. ``add`` must skip what ``examples`` marks as done."""
    for _ in in_parts_that_fit(
        examples,
        add,
        limits=limits,
        size=lambda e: len(e.rows),
        split=Examples.split,
        device=examples.rows.device,
        too_large=too_large,
    ):
        pass


@dataclass
class Sweep:
    """One pass: its sums, and its chunk sizes."""

    plan: Plan
    likelihood: Likelihood
    options: FitOptions
    sums: list[CurvatureSums]
    signals: Sequence[InputSums]
    record: RecordSums
    limits: ChunkLimits
    graphs: graphs.BatchGraphs | None = None

    @property
    def every_sum(self) -> list[InputSums]:
        return [*self.sums, *self.signals]

    def add(self, examples: Examples, eagerly: bool = False) -> None:
        """Add some examples, with a CUDA graph where that pays off."""
        if eagerly or self.graphs is None or not self.graphs.add(examples):
            add_in_parts(examples, self.add_once, self.limits, self._too_large)

    def add_once(self, examples: Examples) -> None:
        """Add some examples in one piece: one forward pass, then inputs and root columns to every sum."""
        with differentiable(self.plan.network, self.options.fused_attention):
            batch, examples.stage = examples.batch, "the forward pass"
            recording = self.plan.record(batch.inputs, len(examples.rows), fused=self.options.fused_attention)
            if len(examples.rows) == 1:
                examples.layers = _layer_bytes(recording)
            outputs = widened(recording.outputs.detach())
            targets = self.likelihood.check(outputs, batch.targets, batch.index)
            if not examples.recorded:
                self.record.add(outputs, targets, batch.index)
                examples.recorded = True
            if not recording.outputs.requires_grad:
                return
            last_layer = self._knows_last_layer() and recording.is_last_layer
            columns = None if last_layer or not self.sums else self._columns(examples, outputs, targets)
            found = None
            if examples.inputs < len(self.every_sum) and has_sequences(recording):
                found = self._find_live(examples, recording, columns, targets)
            for sums in self.every_sum[examples.inputs :]:
                examples.stage = f"the inputs of {sums.name}"
                sums.add_inputs(recording)
                examples.inputs += 1
            if columns is not None:
                self._add_columns(examples, recording, columns, found)
            elif last_layer:
                self._add_last_layer(examples, recording, targets)

    def _knows_last_layer(self) -> bool:
        exact = self.options.curvature is CurvatureKind.GGN and not self.likelihood.fisher_draws
        return exact and bool(self.sums) and all(s.has_last_layer for s in self.sums)

    def _columns(self, examples: Examples, outputs: Tensor, targets: Tensor) -> Columns:
        examples.stage, options = "the derivatives of the loss", self.options
        return columns_for(options.curvature, self.likelihood, outputs, targets, options.draws, examples.rows)

    def _find_live(
        self, examples: Examples, recording: Recording, columns: Columns | None, targets: Tensor
    ) -> Gradients | None:
        """Find the live positions of sequences; return the gradients of all columns if they were computed for it."""
        column, sent = probe(recording, self.likelihood, targets), None
        if columns is not None and not any(examples.columns) and columns.total <= column_step(recording, self.limits):
            self.limits.under_way = columns.total
            every = columns.chunk(0, columns.total).to(recording.outputs.dtype)
            sent = reaching(every, recording, self.likelihood, targets)
        examples.stage = "the backward pass"
        grads = recording.differentiate(column if sent is None else sent)
        find_live(recording, grads, column)
        return None if sent is None else grads

    def _add_last_layer(self, examples: Examples, recording: Recording, targets: Tensor) -> None:
        for i, sums in enumerate(self.sums):
            if examples.columns[i] < ALL:
                examples.stage = f"the gradients of {sums.name}"
                sums.add_last_layer(recording, self.likelihood, targets)
                examples.columns[i] = ALL

    def _add_columns(self, examples: Examples, recording: Recording, columns: Columns, found: Gradients | None) -> None:
        step = column_step(recording, self.limits)
        while (start := min(examples.columns, default=columns.total)) < columns.total:
            # Stop where another sum continues, so that all sums of a chunk need the same columns.
            stop = min([start + step, columns.total, *(c for c in examples.columns if c > start)])
            self.limits.under_way, examples.stage = stop - start, "the backward pass"
            whole = found is not None and stop - start == columns.total
            grads = found if whole else recording.differentiate(columns.chunk(start, stop).to(recording.outputs.dtype))
            assert grads is not None
            for i, sums in enumerate(self.sums):
                if examples.columns[i] < stop:
                    examples.stage = f"the gradients of {sums.name}"
                    sums.add_gradients(grads)
                    examples.columns[i] = stop

    def _too_large(self, examples: Examples) -> str:
        like = self.plan.network.like
        most = sorted(examples.layers.items(), key=lambda item: -item[1])[:3]
        layers = "; ".join(f"{name} {readable(size)}" for name, size in most)
        return (
            f"one example with one root column does not fit into the memory of {like.device}, which ran out in "
            f"{examples.stage}. "
            + (f"Inputs and gradients of one example: {layers}. " if layers else "")
            + f"Curvature: {largest(self.plan.blocks, max(like.element_size(), 4))}. {remedy(self.options)}"
        )


def _layer_bytes(recording: Recording) -> dict[str, int]:
    """Bytes of each layer's inputs and of one column of its gradients."""
    found: dict[str, int] = {}
    for call in recording.calls:
        ref = call.use.refs[0]
        size = (call.use.rule.x.numel() + call.use.shape.numel()) * recording.outputs.element_size()
        block = recording.plan.block_of.get(ref.name)
        name = ref.name if block is None else block.name
        found[name] = found.get(name, 0) + size
    return found


def column_step(recording: Recording, limits: ChunkLimits | None = None) -> int:
    """Number of root columns whose gradients fit the memory budget."""
    device = recording.outputs.device
    most = sizes().one_tensor(device) * 4 if device.type == "cuda" else sizes().columns
    step = max(1, int(most // max(recording.bytes_per_column(), 1)))
    return step if limits is None or limits.columns is None else min(step, limits.columns)
