"""A pass over the data into accumulators: forward once, backward in chunks of root columns.

Where memory runs out, a chunk is halved and the sum goes on where it stopped: what an accumulator has is counted, and
not added again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from whence.batches import Batch, size_of, take
from whence.checks import Watch
from whence.curvature import graphs
from whence.curvature.accumulate import Accumulator, InputSums
from whence.curvature.checkpoint import Kept
from whence.curvature.columns import Columns, columns_for
from whence.curvature.jacobian import Gradients, Recording, budget, widened
from whence.curvature.memory import Room, gib, largest, remedy, within
from whence.curvature.options import Options
from whence.curvature.passes import Passes
from whence.curvature.plan import Plan
from whence.curvature.positions import find_live, has_sequences, probe, reaching
from whence.curvature.record import FitRecord, Recorder
from whence.functional import differentiable
from whence.likelihoods import Likelihood

CPU_COLUMNS = 32 * 2**20  # bytes of gradients that go backward together; more would leave the cache
ALL = 2**62  # more root columns than there are


def run(
    plan: Plan,
    batches: Passes,
    likelihood: Likelihood,
    options: Options,
    accumulators: list[Accumulator],
    label: str,
    basis: str = "",
    signals: Sequence[InputSums] = (),
) -> FitRecord:
    """One or several passes over the data into the accumulators, and into sums of what the blocks saw."""
    recorder, room = Recorder(likelihood), Room()
    sweep = Sweep(plan, likelihood, options, accumulators, signals, recorder, room)
    if graphs.wanted(sweep):
        length = batches.data.length()
        sweep.graphs = graphs.Graphs(sweep, None if length is None else length * options.passes)
    try:
        with Watch():
            kept: list[Kept] = [recorder, *accumulators, *signals]
            for batch in batches.passes(options.passes, options.progress, label, kept, basis):
                batch, rows = relevant(batch, likelihood)
                if len(rows):
                    if batch.index == 1:
                        plan.confirm(batch.inputs)
                    sweep.add(Piece(batch, rows + options.first, [0] * len(accumulators)))
    finally:
        sweep.graphs = None  # they hold the sweep in turn, and much memory
    room.say("the fit")
    return recorder.record


@dataclass
class Piece:
    """Some examples of a batch, and what has been summed of them."""

    batch: Batch
    rows: Tensor  # numbers of the examples in the data
    columns: list[int]  # root columns that each accumulator has
    inputs: int = 0  # sums that have the inputs
    recorded: bool = False
    trying: int = 0  # root columns under way
    at: str = "the forward pass"
    layers: dict[str, int] = field(default_factory=dict)  # bytes of inputs and gradients, where it is one example

    def cut(self, size: int) -> list[Piece]:
        """Pieces of at most ``size`` examples that have got as far as this one."""
        pieces = []
        for start in range(0, len(self.rows), size):
            which = slice(start, start + size)
            inputs, targets = take(self.batch.inputs, which), self.batch.targets[which]
            batch = replace(self.batch, inputs=inputs, targets=targets, counted=None)
            pieces.append(Piece(batch, self.rows[which], list(self.columns), self.inputs, self.recorded))
        return pieces


@dataclass
class Sweep:
    """One pass: the sums, and the room there is for what is computed together."""

    plan: Plan
    likelihood: Likelihood
    options: Options
    accumulators: list[Accumulator]
    signals: Sequence[InputSums]
    recorder: Recorder
    room: Room
    graphs: graphs.Graphs | None = None

    @property
    def every_sum(self) -> list[InputSums]:
        return [*self.accumulators, *self.signals]

    def add(self, piece: Piece) -> None:
        """Sum a piece, by a graph where that pays."""
        if self.graphs is None or not self.graphs.add(piece):
            self.sum_plainly(piece)

    def sum_plainly(self, piece: Piece) -> None:
        """Sum a piece; halved, where memory runs out, until it fits."""
        within(self.room, piece, self.sum_once, self._too_large)

    def sum_once(self, piece: Piece) -> None:
        """Sum a piece as a whole."""
        with differentiable(self.plan.network, self.plan.fused):
            self._sum(piece)

    def _sum(self, piece: Piece) -> None:
        batch, piece.trying, piece.at = piece.batch, 0, "the forward pass"
        recording = self.plan.record(batch.inputs, len(piece.rows))
        if len(piece.rows) == 1:
            piece.layers = layer_bytes(recording)
        outputs = widened(recording.outputs.detach())
        targets = self.likelihood.check(outputs, batch.targets, batch.index)
        if not piece.recorded:
            self.recorder.add(outputs, targets, batch.index)
            piece.recorded = True
        if not recording.outputs.requires_grad:
            return
        exact = self.options.curvature == "ggn" and not self.likelihood.fisher_draws
        direct = exact and all(a.takes_direct for a in self.accumulators) and recording.direct
        columns = None if direct or not self.accumulators else self._columns(piece, outputs, targets)
        found = None
        if piece.inputs < len(self.every_sum) and has_sequences(recording):
            found = self._find_live(piece, recording, columns, targets)
        for sums in self.every_sum[piece.inputs :]:
            piece.at = f"the inputs of {sums.name}"
            sums.inputs(recording)
            piece.inputs += 1
        if columns is not None:
            self._sum_columns(piece, recording, columns, found)
        elif self.accumulators:
            self._sum_directly(piece, recording, targets)

    def _columns(self, piece: Piece, outputs: Tensor, targets: Tensor) -> Columns:
        piece.at, options = "the derivatives of the loss", self.options
        return columns_for(options.curvature, self.likelihood, outputs, targets, options.draws, piece.rows)

    def _find_live(
        self, piece: Piece, recording: Recording, columns: Columns | None, targets: Tensor
    ) -> Gradients | None:
        """Note which positions of sequences count; the gradients of all columns, where those have shown it."""
        column, sent = probe(recording, self.likelihood, targets), None
        if columns is not None and not any(piece.columns) and columns.total <= column_step(recording, self.room):
            piece.trying = columns.total
            every = columns.chunk(0, columns.total).to(recording.outputs.dtype)
            sent = reaching(every, recording, self.likelihood, targets)
        piece.at = "the backward pass"
        grads = recording.differentiate(column if sent is None else sent)
        find_live(recording, grads, column)
        return None if sent is None else grads

    def _sum_directly(self, piece: Piece, recording: Recording, targets: Tensor) -> None:
        for i, accumulator in enumerate(self.accumulators):
            if piece.columns[i] < ALL:
                piece.at = f"the gradients of {accumulator.name}"
                accumulator.direct(recording, self.likelihood, targets)
                piece.columns[i] = ALL

    def _sum_columns(self, piece: Piece, recording: Recording, columns: Columns, found: Gradients | None) -> None:
        step = column_step(recording, self.room)
        while (start := min(piece.columns, default=columns.total)) < columns.total:
            # Not past where some accumulators have got to and others have not.
            stop = min([start + step, columns.total, *(c for c in piece.columns if c > start)])
            piece.trying, piece.at = stop - start, "the backward pass"
            whole = found is not None and stop - start == columns.total
            grads = found if whole else recording.differentiate(columns.chunk(start, stop).to(recording.outputs.dtype))
            assert grads is not None
            for i, accumulator in enumerate(self.accumulators):
                if piece.columns[i] < stop:
                    piece.at = f"the gradients of {accumulator.name}"
                    accumulator.gradients(grads)
                    piece.columns[i] = stop

    def _too_large(self, piece: Piece) -> str:
        like = self.plan.network.like
        most = sorted(piece.layers.items(), key=lambda item: -item[1])[:3]
        layers = "; ".join(f"{name} {gib(size)}" for name, size in most)
        return (
            f"one example with one root column does not fit into the memory of {like.device}, which ran out in "
            f"{piece.at}. "
            + (f"Inputs and gradients of one example: {layers}. " if layers else "")
            + f"Curvature: {largest(self.plan.blocks, max(like.element_size(), 4))}. {remedy(self.options)}"
        )


def layer_bytes(recording: Recording) -> dict[str, int]:
    """Bytes of what the calls of each layer saw and of one column of their gradients."""
    found: dict[str, int] = {}
    for called in recording.called:
        ref = called.use.weight or called.use.bias
        assert ref is not None
        x = called.use.rule.x
        size = (x.numel() + called.use.shape.numel()) * recording.outputs.element_size()
        block = recording.plan.block_of.get(ref.name)
        name = ref.name if block is None else block.name
        found[name] = found.get(name, 0) + size
    return found


def relevant(batch: Batch, likelihood: Likelihood) -> tuple[Batch, Tensor]:
    """The examples that the likelihood counts, and their numbers in the data."""
    rows = batch.offset + batch.stride * torch.arange(size_of(batch.inputs), device=batch.targets.device)
    counted = batch.counted
    if counted is None and batch.targets.dim() and len(batch.targets) == len(rows):
        counted = likelihood.counts(batch.targets)
    if counted is None or bool(counted.all()):
        return batch, rows
    which = counted.nonzero().squeeze(1).to(rows.device)
    return replace(batch, inputs=take(batch.inputs, which), targets=batch.targets[which]), rows[which]


def column_step(recording: Recording, room: Room | None = None) -> int:
    """Root columns whose gradients fit the memory budget together."""
    device = recording.outputs.device
    bytes_ = budget(device) * 4 if device.type == "cuda" else CPU_COLUMNS
    step = max(1, int(bytes_ // max(recording.bytes_per_column(), 1)))
    return step if room is None or room.columns is None else min(step, room.columns)
