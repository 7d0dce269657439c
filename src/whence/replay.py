"""CUDA graphs. A small network costs a GPU little but launches, and a graph launches everything at once.

The first batches of a shape go kernel by kernel. Then one is captured, and checked: the graph must give what the plain
way gives. What cannot be captured (it waits for the device, or does something else on another batch) goes on the plain
way, and so does what keeps the device busy anyhow.
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

from whence.batches import Inputs, map_tensors, tensors_in
from whence.checks import Explain, Watch, collecting, refuse

T = TypeVar("T")
WARM = 2  # batches of a shape before one is captured; the second is timed
FEW_CALLS = 16  # that must be left for a capture to pay, which takes as long as some of them
BUSY = 1.5  # how many times longer than launching a batch may take for a graph to pay
SHAPES = 8  # that have a graph, each with memory of its own
TOLERANCE = 1e-3  # relative; only rounding may differ

Capture = Callable[[Callable[[], None], torch.device], Callable[[], None]]
Computed = tuple[Tensor, ...]
_streams: dict[int, torch.cuda.Stream] = {}
_one_at_a_time = threading.Lock()  # threads share the stream


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for each device: torch's own belongs to the device that was current when it was made."""
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _streams:
        _streams[index] = torch.cuda.Stream(index)
    return _streams[index]


@contextlib.contextmanager
def capturing(graph: torch.cuda.CUDAGraph, device: torch.device) -> Iterator[None]:
    """What is launched inside goes into the graph and is not executed; an error leaves the stream as it was."""
    stream = capture_stream(device)
    recording = torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local")
    with _one_at_a_time, _uncollected(), torch.cuda.device(device), torch.cuda.stream(stream), recording:
        yield


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection: it may free an older graph, which is not permitted during a capture."""
    collecting_garbage = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting_garbage:
            gc.enable()


def cuda_capture(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The kernels that a function launches on a device, as one graph; nothing of it is executed yet."""
    graph = torch.cuda.CUDAGraph()
    with capturing(graph, device):
        function()

    def replay() -> None:
        with torch.cuda.device(device):
            graph.replay()

    return replay


class Way(Enum):
    """How a batch goes."""

    PLAIN = "kernel by kernel"
    TIMED = "the same, on the clock"
    CAPTURE = "the plain way and by a new graph"
    REPLAY = "by the graph of its shape"


class Choice(Generic[T]):
    """Which way batches go, by their shapes.

    ``left`` is how many there are, if that is known; ``few`` how many must be left for a capture to pay.
    """

    def __init__(self, left: int | None, few: int) -> None:
        self.left, self.few, self.on = left, few, True
        self.ready: dict[Hashable, T | None] = {}
        self._seen: Counter[Hashable] = Counter()

    def way(self, key: Hashable | None) -> Way:
        self.left = None if self.left is None else self.left - 1
        if not self.on or key is None:
            return Way.PLAIN
        if key in self.ready:
            return Way.PLAIN if self.ready[key] is None else Way.REPLAY
        self._seen[key] += 1
        if self._seen[key] <= WARM:
            return Way.PLAIN if self._seen[key] < WARM else Way.TIMED
        many = sum(graph is not None for graph in self.ready.values()) >= SHAPES
        if many or (self.left is not None and self.left < self.few):
            self.ready[key] = None
            return Way.PLAIN
        return Way.CAPTURE

    def timed(self, function: Callable[[], Any], device: torch.device) -> Any:
        """Call a function, and see whether launching is what it costs."""
        start = _now(device)
        found = function()
        launched = time.perf_counter()
        self.on = _now(device) - start < BUSY * (launched - start)
        return found


class Checks:
    """What the checks inside a captured function see, which the host looks at after a replay."""

    def __init__(self, device: torch.device) -> None:
        self.watch = Watch(gather_on_cpu=device.type != "cuda", patient=True)
        self.evidence: Tensor | None = None
        self.explains: list[tuple[int, Explain]] = []  # how many numbers each check reads

    def around(self, function: Callable[[], T]) -> T:
        """Call a function; what its checks gather lies in the same memory each time."""
        self.watch.seen.clear()
        with collecting(self.watch):
            found = function()
        if self.watch.seen:
            evidence = torch.cat([evidence.double() for evidence, _ in self.watch.seen])
            self.evidence = evidence if self.evidence is None else self.evidence.copy_(evidence)
            self.explains = [(len(evidence), explain) for evidence, explain in self.watch.seen]
        return found

    def refuse(self, before: Callable[[], None] = lambda: None) -> None:
        """Pass on what the last replay saw; ``before`` is called when somebody looks."""
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
    checks: Checks
    held: list[Tensor]  # what else it reads, so that the memory stays

    def __call__(self, inputs: Inputs) -> Computed:
        for static, given in zip(self.inputs, tensors_in(inputs), strict=True):
            static.copy_(given)
        self.replay()
        self.checks.refuse()
        return tuple(t.clone() for t in self.outputs)


class Replayed:
    """A function from inputs to tensors; by graphs where that pays.

    ``total`` is how often it will be called, ``holds`` gives tensors that it reads and somebody may replace.
    """

    def __init__(
        self,
        function: Callable[[Inputs], Computed],
        total: int | None,
        capture: Capture = cuda_capture,
        holds: Callable[[], list[Tensor]] = list,
    ) -> None:
        self.function, self.capture, self.holds = function, capture, holds
        self.choice: Choice[Graph] = Choice(total, FEW_CALLS)

    def __call__(self, inputs: Inputs) -> Computed:
        key = shapes(inputs)
        way = self.choice.way(key)
        if way is Way.REPLAY:
            graph = self.choice.ready[key]
            assert graph is not None
            return graph(inputs)
        if way is Way.CAPTURE:
            return self._captured(key, inputs)
        plainly = partial(self.function, inputs)
        return self.choice.timed(plainly, _device(inputs)) if way is Way.TIMED else plainly()

    def _captured(self, key: Hashable, inputs: Inputs) -> Computed:
        """What a new graph gives if that is what the plain way gives, else that."""
        plain = self.function(inputs)
        graph = self._attempt(inputs)
        again = None if graph is None else graph(inputs)
        if again is None or not agree(zip(plain, again, strict=True)):
            self.choice.on = False
            return plain
        self.choice.ready[key] = graph
        return again

    def _attempt(self, inputs: Inputs) -> Graph | None:
        device = _device(inputs)
        static, checks = map_tensors(torch.zeros_like, inputs), Checks(device)  # what is executed now shows as wrong
        held: list[Computed] = []

        def function() -> None:
            found = checks.around(lambda: self.function(static))
            held[:] = [tuple(t.copy_(f) for t, f in zip(held[0], found, strict=True))] if held else [found]

        try:
            replay = self.capture(function, device)
        except Exception:  # whatever it is, the plain way meets it too, or does without
            hand_back(device)
            return None
        return Graph(replay, list(tensors_in(static)), held[0], checks, self.holds())


def hand_back(device: torch.device) -> None:
    """What a failed capture has left; before torch 2.12 its pool may be taken for one still in use."""
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def agree(pairs: Any) -> bool:
    """Whether tensors are the same up to rounding."""
    errors = [torch.stack([(a - b).norm(), a.norm()]).double() for a, b in pairs if a.numel()]
    return all(off <= TOLERANCE * size for off, size in torch.stack(errors).tolist())


def shapes(value: Any) -> Hashable | None:
    """What the inputs of two calls must share to go through the same graph; None where that cannot be told."""
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
