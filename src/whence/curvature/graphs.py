"""CUDA graphs for the batches of a fit: see :mod:`whence.engine.graphs`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.engine.batches import map_tensors, tensors_in
from whence.engine.graphs import (
    BUSY,
    BatchNumber,
    Capture,
    CapturedChecks,
    CapturePolicy,
    Mode,
    agree,
    copies,
    cuda_capture,
    hand_back,
    restore,
    shapes,
)
from whence.engine.memory import none_if_out_of_memory, release

if TYPE_CHECKING:
    from whence.curvature.sweep import Examples, Sweep

FEW = 6  # remaining batches for which a capture pays off
LARGEST = 4 * 2**30  # bytes of sums, which are copied twice for the check


@dataclass
class Captured:
    """A graph of one batch, with the memory that it reads and its updates of sums on the host."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    targets: Tensor
    rows: Tensor
    number: BatchNumber
    checks: CapturedChecks
    counted: list[Tensor]  # a replay adds these to the sums on the host
    held: list[Tensor]  # the network's other tensors: a graph reads memory, not tensors


class BatchGraphs:
    """One captured graph per batch shape."""

    def __init__(self, sweep: Sweep, total: int | None, capture: Capture = cuda_capture, busy: float = BUSY) -> None:
        self.sweep, self.capture = sweep, capture
        self.policy: CapturePolicy[Captured] = CapturePolicy(total, FEW, busy)
        self.policy.on = sum(t.nbytes for t in self._sums()) <= LARGEST

    def add(self, examples: Examples) -> bool:
        """Sum some examples with a graph; return False if eager execution must do it."""
        key = _key(examples)
        mode = self.policy.mode(key)
        if mode is Mode.TIMED:
            self.policy.timed(partial(self.sweep.add, examples, eagerly=True), examples.rows.device)
        elif mode is Mode.CAPTURE:
            self.policy.ready[key] = self._captured(examples)
        elif mode is Mode.REPLAY:
            captured = self.policy.ready[key]
            assert captured is not None
            self._replay(captured, examples)
        return mode is not Mode.EAGER

    def _captured(self, examples: Examples) -> Captured | None:
        """Capture a graph for this shape and sum the examples: with the graph if it matches eager execution."""
        sums, host, record = self._sums(), self._host(), self.sweep.record
        before, host_before, size = none_if_out_of_memory(partial(copies, sums)), copies(host), record.size
        self.sweep.add(examples, eagerly=True)
        after, host_after, size_after = none_if_out_of_memory(partial(copies, sums)), copies(host), record.size
        if before is None or after is None:  # not enough memory for the check
            release(examples.rows.device)
            self.policy.on = False
            return None
        restore([*sums, *host], [*before, *host_before])
        record.size = size
        found = none_if_out_of_memory(partial(self._capture, examples))
        if found is not None:
            self._replay(found, examples)
            added = ((a - b, now - b) for b, a, now in zip(before, after, sums, strict=True))
            if none_if_out_of_memory(partial(agree, added)):
                return found
        restore([*sums, *host], [*after, *host_after])
        record.size, self.policy.on = size_after, False
        return None

    def _capture(self, examples: Examples) -> Captured | None:
        host = self._host()
        before, size = copies(host), self.sweep.record.size
        number, checks = BatchNumber(), CapturedChecks(examples.rows.device)
        given = (examples.batch.inputs, examples.batch.targets, examples.rows)
        inputs, targets, rows = map_tensors(torch.zeros_like, given)  # work outside the graph gives zeros
        batch = replace(examples.batch, inputs=inputs, targets=targets, index=number)  # type: ignore[arg-type]

        def function() -> None:
            checks.around(lambda: self.sweep.add_once(type(examples)(batch, rows, [0] * len(examples.columns))))

        try:
            replay = self.capture(function, examples.rows.device)
        except Exception:
            hand_back(examples.rows.device)
            return None
        finally:
            counted = [now - then for now, then in zip(host, before, strict=True)]
            restore(host, before)
            self.sweep.record.size = size
        held = self.sweep.plan.network.tensors()
        return Captured(replay, list(tensors_in(inputs)), targets, rows, number, checks, counted, held)

    def _replay(self, captured: Captured, examples: Examples) -> None:
        for static, given in zip(captured.inputs, tensors_in(examples.batch.inputs), strict=True):
            static.copy_(given)
        captured.targets.copy_(examples.batch.targets)
        captured.rows.copy_(examples.rows)
        captured.replay()
        for total, more in zip(self._host(), captured.counted, strict=True):
            total += more
        self.sweep.record.size += len(examples.rows)
        captured.checks.refuse(partial(captured.number.set, examples.batch.index))

    def _sums(self) -> list[Tensor]:
        """All sums on the device."""
        found = [t for a in self.sweep.every_sum for k, t in a.state().items() if k not in a.host]
        return found + self.sweep.record.sums

    def _host(self) -> list[Tensor]:
        return [t for a in self.sweep.every_sum for k, t in a.state().items() if k in a.host]


def wanted(sweep: Sweep) -> bool:
    """Whether CUDA graphs should be tried."""
    plan = sweep.plan
    return sweep.options.execution.cuda_graphs and plan.network.device.type == "cuda" and not plan.example_blocks


def _key(examples: Examples) -> Hashable | None:
    """Batches with the same key can use the same graph."""
    if examples.recorded or any(examples.columns):
        return None
    return shapes((examples.batch.inputs, examples.batch.targets))
