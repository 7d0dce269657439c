"""CUDA graphs: for small networks most GPU time is kernel launches, and a graph launches all kernels at once.

The first batches of a shape run eagerly. Then one is captured, and the graph's result is compared with eager
execution. Work that cannot be captured (it waits for the device, or changes between batches) stays eager, as does
work that keeps the device busy anyway.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from whence.engine.batches import Inputs, map_tensors, tensors_in
from whence.engine.checks import DeferredChecks, Explain, collecting, refuse

T = TypeVar("T")
WARM = 2  # eager batches of a shape before a capture; the second is timed
FEW_CALLS = 16  # remaining calls for which a capture pays off
BUSY = 1.5  # ratio of a batch's time to its launch time
SHAPES = 8  # largest number of graphs, each with its own memory
TOLERANCE = 1e-3  # relative; only rounding may differ

Capture = Callable[[Callable[[], None], torch.device], Callable[[], None]]
Computed = tuple[Tensor, ...]
_streams: dict[int, torch.cuda.Stream] = {}
_one_at_a_time = threading.Lock()  # threads share the stream


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream per device: torch's own belongs to the device that was current at its creation."""
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _streams:
        _streams[index] = torch.cuda.Stream(index)
    return _streams[index]


@contextlib.contextmanager
def capturing(graph: torch.cuda.CUDAGraph, device: torch.device) -> Iterator[None]:
    """Capture kernel launches into the graph without executing them; an error restores the stream."""
    stream = capture_stream(device)
    recording = torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")
    with _one_at_a_time, _uncollected(), torch.cuda.device(device), torch.cuda.stream(stream), recording:
        yield


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Switch off garbage collection, which may free an older graph; that is not permitted during a capture."""
    collecting_garbage = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting_garbage:
            gc.enable()


def cuda_capture(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Capture the kernels that a function launches as one graph, without executing them."""
    graph = torch.cuda.CUDAGraph()
    with capturing(graph, device):
        function()

    def replay() -> None:
        with torch.cuda.device(device):
            graph.replay()

    return replay


class Mode(Enum):
    """How a batch is executed."""

    EAGER = "kernel by kernel"
    TIMED = "kernel by kernel, timed"
    CAPTURE = "eagerly, and captured as a graph"
    REPLAY = "by the graph of its shape"


class CapturePolicy(Generic[T]):
    """How batches are executed, by their shapes.

    ``left`` is the number of remaining batches, if known; ``few`` the number for which a capture pays off; ``busy`` the
    largest ratio of a batch's time to its launch time for which it does.
    """

    def __init__(self, left: int | None, few: int, busy: float = BUSY) -> None:
        self.left, self.few, self.busy, self.on = left, few, busy, True
        self.ready: dict[Hashable, T | None] = {}
        self._seen: Counter[Hashable] = Counter()

    def mode(self, key: Hashable | None) -> Mode:
        self.left = None if self.left is None else self.left - 1
        if not self.on or key is None:
            return Mode.EAGER
        if key in self.ready:
            return Mode.EAGER if self.ready[key] is None else Mode.REPLAY
        self._seen[key] += 1
        if self._seen[key] <= WARM:
            return Mode.EAGER if self._seen[key] < WARM else Mode.TIMED
        many = sum(graph is not None for graph in self.ready.values()) >= SHAPES
        if many or (self.left is not None and self.left < self.few):
            self.ready[key] = None
            return Mode.EAGER
        return Mode.CAPTURE

    def timed(self, function: Callable[[], Any], device: torch.device) -> Any:
        """Call a function, and measure whether its time is mostly launches."""
        start = _now(device)
        found = function()
        launched = time.perf_counter()
        self.on = _now(device) - start < self.busy * (launched - start)
        return found


class BatchNumber:
    """A batch number for error messages, which changes between replays."""

    def __init__(self) -> None:
        self.value = 0
        self.captured = False  # whether what asks for it now is being captured

    def now(self) -> int | BatchNumber:
        """The number itself; for what is replayed, this object."""
        return self if self.captured else self.value

    def set(self, value: int) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)


class CapturedChecks:
    """Checks inside a captured function, whose results the host reads after a replay."""

    def __init__(self, device: torch.device) -> None:
        self.deferred = DeferredChecks(on_cpu=device.type != "cuda", every=None)
        self.evidence: Tensor | None = None
        self.explains: list[tuple[int, Explain]] = []  # how many numbers each check reads

    def around(self, function: Callable[[], T]) -> T:
        """Call a function and collect its checks in memory that stays the same between replays."""
        self.deferred.collected.clear()
        with collecting(self.deferred):
            found = function()
        if self.deferred.collected:
            evidence = torch.cat([evidence.double() for evidence, _ in self.deferred.collected])
            self.evidence = evidence if self.evidence is None else self.evidence.copy_(evidence)
            self.explains = [(len(evidence), explain) for evidence, explain in self.deferred.collected]
        return found

    def refuse(self, before: Callable[[], None] = lambda: None) -> None:
        """Raise failures of the last replay; ``before`` is called before the results are read."""
        if self.evidence is None:
            return

        def problem(values: list[float]) -> str | None:
            before()
            at = 0
            for length, explain in self.explains:
                found = explain(values[at : at + length])
                if found is not None:
                    return found
                at += length
            return None

        refuse(self.evidence.clone(), problem)


@dataclass
class Graph:
    """A function of inputs as a graph, with the memory that it reads and writes."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    outputs: Computed
    checks: CapturedChecks
    held: list[Tensor]  # other tensors that it reads, kept alive

    def __call__(self, inputs: Inputs) -> Computed:
        for static, given in zip(self.inputs, tensors_in(inputs), strict=True):
            static.copy_(given)
        self.replay()
        self.checks.refuse()
        return tuple(t.clone() for t in self.outputs)


class Replayed:
    """A function from inputs to tensors, replayed as a graph where that pays off.

    ``total`` is the number of calls; ``holds`` returns tensors that it reads and that may be replaced; ``few`` and
    ``busy`` are those of :class:`CapturePolicy`.
    """

    def __init__(
        self,
        function: Callable[[Inputs], Computed],
        total: int | None,
        capture: Capture = cuda_capture,
        holds: Callable[[], list[Tensor]] = list,
        few: int = FEW_CALLS,
        busy: float = BUSY,
    ) -> None:
        self.function, self.capture, self.holds = function, capture, holds
        self.policy: CapturePolicy[Graph] = CapturePolicy(total, few, busy)

    def __call__(self, inputs: Inputs) -> Computed:
        key = shapes(inputs)
        mode = self.policy.mode(key)
        if mode is Mode.REPLAY:
            graph = self.policy.ready[key]
            assert graph is not None
            return graph(inputs)
        if mode is Mode.CAPTURE:
            return self._captured(key, inputs)
        eagerly = partial(self.function, inputs)
        return self.policy.timed(eagerly, _device(inputs)) if mode is Mode.TIMED else eagerly()

    def _captured(self, key: Hashable, inputs: Inputs) -> Computed:
        """The graph's result if it matches eager execution, otherwise the eager result."""
        eager = self.function(inputs)
        graph = self._capture(inputs)
        again = None if graph is None else graph(inputs)
        if again is None or not agree(zip(eager, again, strict=True)):
            self.policy.on = False
            return eager
        self.policy.ready[key] = graph
        return again

    def _capture(self, inputs: Inputs) -> Graph | None:
        device = _device(inputs)
        static, checks = (
            map_tensors(torch.zeros_like, inputs),
            CapturedChecks(device),
        )  # work outside the graph gives zeros
        held: list[Computed] = []

        def function() -> None:
            found = checks.around(lambda: self.function(static))
            held[:] = [tuple(t.copy_(f) for t, f in zip(held[0], found, strict=True))] if held else [found]

        try:
            replay = self.capture(function, device)
        except Exception:  # eager execution raises it too, or does not need this
            hand_back(device)
            return None
        return Graph(replay, list(tensors_in(static)), held[0], checks, self.holds())


def hand_back(device: torch.device) -> None:
    """Free the memory of a failed capture; before torch 2.12 its pool may count as still in use."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def agree(pairs: Any) -> bool:
    """Whether tensors are the same up to rounding."""
    errors = [torch.stack([(a - b).norm(), a.norm()]).double() for a, b in pairs if a.numel()]
    return all(off <= TOLERANCE * size for off, size in torch.stack(errors).tolist())


def shapes(value: Any) -> Hashable | None:
    """Inputs with the same key can use the same graph; None if no key can be computed."""
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

    return tuple(leaves) if walk(value) else None


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.clone() for t in tensors]


def restore(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def _device(inputs: Inputs) -> torch.device:
    return next(iter(tensors_in(inputs))).device


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
