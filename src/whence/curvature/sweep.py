"""A pass over the data into accumulators: forward once, backward in chunks of root columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from whence.batches import Batch, size_of, take
from whence.curvature.accumulate import Accumulator
from whence.curvature.columns import columns_for
from whence.curvature.jacobian import Plan, Recording, budget
from whence.curvature.options import Options
from whence.curvature.passes import Passes
from whence.curvature.record import FitRecord, Recorder
from whence.likelihoods import Likelihood

CPU_COLUMNS = 32 * 2**20  # bytes of gradients that go backward together; more would leave the cache


def run(
    plan: Plan,
    batches: Passes,
    likelihood: Likelihood,
    options: Options,
    accumulators: list[Accumulator],
    label: str,
) -> FitRecord:
    """One or several passes over the data into the accumulators."""
    recorder = Recorder(likelihood)
    for batch in batches.passes(options.passes, options.progress, label):
        batch, rows = relevant(batch, likelihood)
        if not len(rows):
            continue
        recording = plan.record(batch.inputs, len(rows))
        targets = likelihood.check(recording.outputs, batch.targets, batch.index)
        recorder.add(recording.outputs, targets, batch.index)
        if not recording.outputs.requires_grad:
            continue
        for accumulator in accumulators:
            accumulator.inputs(recording)
        rows = rows + options.first
        columns = columns_for(options.curvature, likelihood, recording.outputs, targets, options.draws, rows)
        for piece in column_chunks(recording, columns.total):
            grads = recording.differentiate(columns.chunk(piece.start, piece.stop))
            for accumulator in accumulators:
                accumulator.gradients(grads)
    return recorder.record


def relevant(batch: Batch, likelihood: Likelihood) -> tuple[Batch, Tensor]:
    """The examples that the likelihood counts, and their numbers in the data."""
    rows = batch.offset + torch.arange(size_of(batch.inputs), device=batch.targets.device)
    counted = likelihood.counts(batch.targets)
    if counted is None or len(counted) != len(rows) or bool(counted.all()):
        return batch, rows
    which = counted.nonzero().squeeze(1)
    return replace(batch, inputs=take(batch.inputs, which), targets=batch.targets[which]), rows[which]


def column_chunks(recording: Recording, total: int) -> Iterator[slice]:
    """Pieces of the root columns whose gradients fit the memory budget."""
    device = recording.outputs.device
    room = budget(device) * 4 if device.type == "cuda" else CPU_COLUMNS
    step = max(1, int(room // max(recording.bytes_per_column(), 1)))
    for start in range(0, total, step):
        yield slice(start, min(start + step, total))
