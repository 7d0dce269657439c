"""A batch as a CUDA graph. A small network costs a GPU little but launches, and a graph launches everything at once.

The first batches of a shape are summed kernel by kernel. Then one is captured, and checked: the sums that the graph
adds must be those that the plain way adds. A network that cannot be captured (it waits for the device, or does
something else on another batch) goes on the plain way, and so does one that keeps the device busy anyhow.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.batches import map_tensors, tensors_in
from whence.checks import Explain, Watch, collecting, refuse
from whence.curvature.memory import release

if TYPE_CHECKING:
    from whence.curvature.sweep import Piece, Sweep

WARM = 2  # batches of a shape before one is captured; the second is timed
FEW = 6  # batches that must be left for a capture to pay
BUSY = 3.0  # how many times longer than launching a batch may take for a graph to pay
LARGEST = 4 * 2**30  # bytes of sums: they are copied twice for the check
TOLERANCE = 1e-3  # of what a batch adds; only rounding may differ

Capture = Callable[[Callable[[], None]], Callable[[], None]]


class Number:
    """The number of a batch in the messages of its checks; it changes from one replay to the next."""

    def __init__(self) -> None:
        self.value = 0

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
    evidence: Tensor | None  # of the checks
    explains: list[tuple[int, Explain]]  # how many numbers of it each check reads
    counted: list[Tensor]  # what a replay adds to the sums that the host keeps

    def explain(self, index: int) -> Explain:
        def problem(values: list[float]) -> str | None:
            self.number.value, at = index, 0
            for length, explain in self.explains:
                found = explain(values[at : at + length])
                if found is not None:
                    return found
                at += length
            return None

        return problem


def cuda_capture(function: Callable[[], None]) -> Callable[[], None]:
    """The kernels that a function launches, as one graph; nothing of it is executed yet."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        function()
    return graph.replay


class Graphs:
    """Captures for the shapes that batches have."""

    def __init__(self, sweep: Sweep, total: int | None, capture: Capture = cuda_capture) -> None:
        self.sweep, self.left, self.capture = sweep, total, capture
        self.seen: Counter[Hashable] = Counter()
        self.ready: dict[Hashable, Captured | None] = {}
        self.on = _bytes(self._sums()) <= LARGEST

    def add(self, piece: Piece) -> bool:
        """Sum a piece by a graph; False where that is left to the plain way."""
        self.left = None if self.left is None else self.left - 1
        key = _key(piece) if self.on else None
        if key is None:
            return False
        if key not in self.ready:
            self.seen[key] += 1
            if self.seen[key] < WARM:
                return False
            if self.seen[key] == WARM:
                return self._timed(piece)
            short = self.left is not None and self.left < FEW
            self.ready[key] = None if short else self._captured(piece)
            return self.ready[key] is not None or not short
        captured = self.ready[key]
        if captured is None:
            return False
        self._replay(captured, piece)
        return True

    def _timed(self, piece: Piece) -> bool:
        """Sum a piece the plain way, and see whether launching is what it costs."""
        start = _now(piece)
        self.sweep.sum_plainly(piece)
        launched = time.perf_counter()
        self.on = _now(piece) - start < BUSY * (launched - start)
        return True

    def _captured(self, piece: Piece) -> Captured | None:
        """Capture a piece's shape, and sum the piece: by the graph if it gives the same, else the plain way."""
        sums, host, recorder = self._sums(), self._host(), self.sweep.recorder
        before, host_before, size = _copies(sums), _copies(host), recorder.size
        self.sweep.sum_plainly(piece)
        after, host_after, size_after = _copies(sums), _copies(host), recorder.size
        _restore([*sums, *host], [*before, *host_before])
        recorder.size = size
        found = self._attempt(piece)
        if found is not None:
            self._replay(found, piece)
            if _same(before, after, sums):
                return found
        _restore([*sums, *host], [*after, *host_after])
        recorder.size, self.on = size_after, False
        return None

    def _attempt(self, piece: Piece) -> Captured | None:
        host = self._host()
        before, size = _copies(host), self.sweep.recorder.size
        number, collected = Number(), Watch(gather_on_cpu=not piece.rows.is_cuda)
        inputs, targets, rows = map_tensors(torch.clone, (piece.batch.inputs, piece.batch.targets, piece.rows))
        batch = replace(piece.batch, inputs=inputs, targets=targets, index=number)  # type: ignore[arg-type]
        held: list[Tensor] = []

        def function() -> None:
            collected.seen.clear()
            with collecting(collected):
                self.sweep.sum_once(type(piece)(batch, rows, [0] * len(piece.columns)))
            if collected.seen:
                evidence = torch.cat([evidence.double() for evidence, _ in collected.seen])
                held[:] = [held[0].copy_(evidence) if held else evidence]

        try:
            replay = self.capture(function)
        except Exception:
            release(piece.rows.device)
            return None
        finally:
            counted = [now - then for now, then in zip(host, before, strict=True)]
            _restore(host, before)
            self.sweep.recorder.size = size
        explains = [(len(evidence), explain) for evidence, explain in collected.seen]
        seen = held[0] if held else None
        return Captured(replay, list(tensors_in(inputs)), targets, rows, number, seen, explains, counted)

    def _replay(self, captured: Captured, piece: Piece) -> None:
        for static, given in zip(captured.inputs, tensors_in(piece.batch.inputs), strict=True):
            static.copy_(given)
        captured.targets.copy_(piece.batch.targets)
        captured.rows.copy_(piece.rows)
        captured.replay()
        for total, more in zip(self._host(), captured.counted, strict=True):
            total += more
        self.sweep.recorder.size += len(piece.rows)
        if captured.evidence is not None:
            refuse(captured.evidence.clone(), captured.explain(piece.batch.index))

    def _sums(self) -> list[Tensor]:
        """What is added up on the device."""
        found = [t for a in self.sweep.accumulators for k, t in a.state().items() if k not in a.host]
        return found + self.sweep.recorder.sums

    def _host(self) -> list[Tensor]:
        return [t for a in self.sweep.accumulators for k, t in a.state().items() if k in a.host]


def wanted(sweep: Sweep) -> bool:
    """Whether graphs are tried at all."""
    plan = sweep.plan
    return sweep.options.cuda_graphs and plan.network.device.type == "cuda" and not plan.example_blocks


def _key(piece: Piece) -> Hashable | None:
    """What two batches must share to go through the same graph; None where that cannot be told."""
    leaves: list[Any] = []

    def walk(value: Any) -> bool:
        if isinstance(value, Tensor):
            leaves.append((tuple(value.shape), value.dtype, value.stride()))
            return True
        if isinstance(value, dict):
            leaves.append(tuple(value))
            return all(walk(item) for item in value.values())
        leaves.append((type(value), len(value) if isinstance(value, (tuple, list)) else None))
        return isinstance(value, (tuple, list)) and all(walk(item) for item in value)

    whole = not piece.recorded and not any(piece.columns)
    return (
        (*leaves, tuple(piece.batch.targets.shape), piece.batch.targets.dtype)
        if whole and walk(piece.batch.inputs)
        else None
    )


def _same(before: Sequence[Tensor], wanted: Sequence[Tensor], found: Sequence[Tensor]) -> bool:
    """Whether two ways of adding a batch agree."""
    pairs = zip(before, wanted, found, strict=True)
    errors = [torch.stack([(f - w).norm(), (w - b).norm()]).double() for b, w, f in pairs if w.numel()]
    return all(off <= TOLERANCE * size for off, size in torch.stack(errors).tolist())


def _now(piece: Piece) -> float:
    if piece.rows.is_cuda:
        torch.cuda.synchronize(piece.rows.device)
    return time.perf_counter()


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(t.nbytes for t in tensors)


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.clone() for t in tensors]


def _restore(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)
