"""What a contender is asked to do. A job loads its model and data when made, works when called."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.compared import Summary
from benchmarks.networks import NETWORKS, inputs, loader, network


@dataclass
class Task:
    """The numbers of a work that all of its contenders share."""

    net: str
    device: str = "cpu"
    size: int = 512  # examples, or inputs of a prediction
    batch: int = 512
    fit_size: int = 512  # examples that a prediction's posterior was fitted to
    hidden: int = 2  # of the multi-layer perceptron
    width: int = 1024
    placeholder: bool = False  # eigendecompositions give the identity: for timing what does not depend on them

    def small(self) -> Task:
        """The small problem on which linearised covariances are compared."""
        many = NETWORKS[self.net].classes >= 1000
        return replace(self, size=1 if many else 6, batch=64, fit_size=16 if many else 64)

    def network(self, bias: bool = True) -> nn.Module:
        options = {"hidden": self.hidden, "width": self.width} if self.net == "mlp" else {}
        return network(self.net, bias, self.device, **options)

    def loader(self, size: int | None = None, seed: int = 0) -> Any:
        return loader(self.net, size or self.size, self.batch, self.device, seed)

    def inputs(self, size: int | None = None) -> Tensor:
        return inputs(self.net, size or self.size, device=self.device)


@dataclass
class Job:
    """``work`` is timed; ``result`` gives what is compared with the other libraries' answers."""

    work: Callable[[], Any]
    result: Callable[[Any], Summary] | None = None
    beside: Callable[[], Any] | None = None  # timed apart: what the work is held against besides the plain network


def epoch(task: Task) -> Job:
    """Forward and backward of every batch; no optimiser's step."""
    model, data = task.network(), task.loader()
    return Job(lambda: run_epoch(model, data))


def run_epoch(model: nn.Module, data: Iterable[tuple[Tensor, Tensor]]) -> None:
    for x, y in data:
        model.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x), y).backward()


def forward(task: Task) -> Job:
    """The plain network on the inputs, batch by batch."""
    model, x = task.network(), task.inputs()

    @torch.no_grad()
    def work() -> Tensor:
        return torch.cat([model(piece) for piece in x.split(task.batch)])

    return Job(work)


class Stopwatch:
    """Seconds spent in eigendecompositions, by whichever library; the device is waited for at both ends.

    With ``placeholder`` they give those of the diagonal instead, which costs nothing.
    """

    def __init__(self, placeholder: bool = False) -> None:
        self.seconds, self.placeholder = 0.0, placeholder

    @contextmanager
    def running(self) -> Iterator[None]:
        plain = torch.linalg.eigh

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.placeholder:
                return identity(args[0])
            synchronise()
            start = time.perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                synchronise()
                self.seconds += time.perf_counter() - start

        torch.linalg.eigh = timed
        try:
            yield
        finally:
            torch.linalg.eigh = plain


def identity(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the diagonal alone: they add up to the trace, as a library may check."""
    size = matrix.shape[-1]
    vectors = torch.eye(size, dtype=matrix.dtype, device=matrix.device).expand(matrix.shape).contiguous()
    return matrix.diagonal(dim1=-2, dim2=-1).clone(), vectors


class Clock:
    """Seconds by part. A step inside another one counts for the inner one alone."""

    def __init__(self, parts: Sequence[str]) -> None:
        self.seconds = dict.fromkeys(parts, 0.0)
        self.inner = 0.0

    @contextmanager
    def around(self, part: str, owner: type, method: str) -> Iterator[None]:
        plain = getattr(owner, method)

        @functools.wraps(plain)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if capturing():
                return plain(*args, **kwargs)
            outer, self.inner = self.inner, 0.0
            synchronise()
            start = time.perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                synchronise()
                took = time.perf_counter() - start
                self.seconds[part] += took - self.inner
                self.inner = outer + took

        setattr(owner, method, timed)
        try:
            yield
        finally:
            setattr(owner, method, plain)


def capturing() -> bool:
    """Whether a CUDA graph is being recorded, in which nothing may wait."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def synchronise() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


PLACES = {
    "plain": "benchmarks.contenders",
    "whence": "benchmarks.contenders_whence",
    "laplace": "benchmarks.contenders_laplace",
    "backpack": "benchmarks.contenders_curvature",
    "curvlinops": "benchmarks.contenders_curvature",
    "posteriors": "benchmarks.contenders_curvature",
    "variational": "benchmarks.contenders_variational",
}


def make(job: str, task: Task, options: dict[str, Any]) -> Job:
    """The job of that name, ``library:function``; only its own library is imported."""
    place, _, function = job.partition(":")
    return getattr(importlib.import_module(PLACES[place]), function)(task, **options)
