"""Batches of a fit as CUDA graphs: see :mod:`whence.replay`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.batches import map_tensors, tensors_in
from whence.curvature.memory import attempt, release
from whence.replay import Capture, Checks, Choice, Way, agree, copies, cuda_capture, hand_back, restore, shapes

if TYPE_CHECKING:
    from whence.curvature.sweep import Piece, Sweep

FEW = 6  # batches that must be left for a capture to pay
LARGEST = 4 * 2**30  # bytes of sums: they are copied twice for the check


class Number:
    """The number of a batch in the messages of its checks; it changes from one replay to the next."""

    def __init__(self) -> None:
        self.value = 0

    def set(self, value: int) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)


@dataclass
class Captured:
    """A graph of one batch, with the memory that it reads, and what it leaves to the host."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    targets: Tensor
    rows: Tensor
    number: Number
    checks: Checks
    counted: list[Tensor]  # what a replay adds to the sums that the host keeps
    held: list[Tensor]  # what the network has beside its parameters: a graph reads the memory, not the tensor


class Graphs:
    """Captures for the shapes that batches have."""

    def __init__(self, sweep: Sweep, total: int | None, capture: Capture = cuda_capture) -> None:
        self.sweep, self.capture = sweep, capture
        self.choice: Choice[Captured] = Choice(total, FEW)
        self.choice.on = sum(t.nbytes for t in self._sums()) <= LARGEST

    def add(self, piece: Piece) -> bool:
        """Sum a piece by a graph; False where that is left to the plain way."""
        key = _key(piece)
        way = self.choice.way(key)
        if way is Way.TIMED:
            self.choice.timed(partial(self.sweep.sum_plainly, piece), piece.rows.device)
        elif way is Way.CAPTURE:
            self.choice.ready[key] = self._captured(piece)
        elif way is Way.REPLAY:
            captured = self.choice.ready[key]
            assert captured is not None
            self._replay(captured, piece)
        return way is not Way.PLAIN

    def _captured(self, piece: Piece) -> Captured | None:
        """Capture a piece's shape, and sum the piece: by the graph if it gives the same, else the plain way."""
        sums, host, recorder = self._sums(), self._host(), self.sweep.recorder
        before, host_before, size = attempt(partial(copies, sums)), copies(host), recorder.size
        self.sweep.sum_plainly(piece)
        after, host_after, size_after = attempt(partial(copies, sums)), copies(host), recorder.size
        if before is None or after is None:  # no room for the check
            release(piece.rows.device)
            self.choice.on = False
            return None
        restore([*sums, *host], [*before, *host_before])
        recorder.size = size
        found = attempt(partial(self._attempt, piece))
        if found is not None:
            self._replay(found, piece)
            added = ((a - b, now - b) for b, a, now in zip(before, after, sums, strict=True))
            if attempt(partial(agree, added)):
                return found
        restore([*sums, *host], [*after, *host_after])
        recorder.size, self.choice.on = size_after, False
        return None

    def _attempt(self, piece: Piece) -> Captured | None:
        host = self._host()
        before, size = copies(host), self.sweep.recorder.size
        number, checks = Number(), Checks(piece.rows.device)
        given = (piece.batch.inputs, piece.batch.targets, piece.rows)
        inputs, targets, rows = map_tensors(torch.zeros_like, given)  # what is executed now shows as wrong
        batch = replace(piece.batch, inputs=inputs, targets=targets, index=number)  # type: ignore[arg-type]

        def function() -> None:
            checks.around(lambda: self.sweep.sum_once(type(piece)(batch, rows, [0] * len(piece.columns))))

        try:
            replay = self.capture(function, piece.rows.device)
        except Exception:
            hand_back(piece.rows.device)
            return None
        finally:
            counted = [now - then for now, then in zip(host, before, strict=True)]
            restore(host, before)
            self.sweep.recorder.size = size
        held = self.sweep.plan.network.tensors()
        return Captured(replay, list(tensors_in(inputs)), targets, rows, number, checks, counted, held)

    def _replay(self, captured: Captured, piece: Piece) -> None:
        for static, given in zip(captured.inputs, tensors_in(piece.batch.inputs), strict=True):
            static.copy_(given)
        captured.targets.copy_(piece.batch.targets)
        captured.rows.copy_(piece.rows)
        captured.replay()
        for total, more in zip(self._host(), captured.counted, strict=True):
            total += more
        self.sweep.recorder.size += len(piece.rows)
        captured.checks.refuse(partial(captured.number.set, piece.batch.index))

    def _sums(self) -> list[Tensor]:
        """What is added up on the device."""
        found = [t for a in self.sweep.every_sum for k, t in a.state().items() if k not in a.host]
        return found + self.sweep.recorder.sums

    def _host(self) -> list[Tensor]:
        return [t for a in self.sweep.every_sum for k, t in a.state().items() if k in a.host]


def wanted(sweep: Sweep) -> bool:
    """Whether graphs are tried at all."""
    plan = sweep.plan
    return sweep.options.cuda_graphs and plan.network.device.type == "cuda" and not plan.example_blocks


def _key(piece: Piece) -> Hashable | None:
    """What two batches must share to go through the same graph."""
    if piece.recorded or any(piece.columns):
        return None
    return shapes((piece.batch.inputs, piece.batch.targets))
