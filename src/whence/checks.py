"""Checks of data and outputs. On a GPU what they saw is gathered, so that no batch has to wait for an answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from typing import Any

import torch
from torch import Tensor

from whence.errors import BadData

Explain = Callable[[list[float]], str | None]  # what is wrong, from a few numbers; None if nothing is

TOGETHER = 2**22  # values that are looked at together
EVERY = 256  # checks that are gathered before they are looked at


class Watch:
    """While it is open, checks on a GPU are gathered; it looks at them now and then, and when it closes."""

    def __init__(self, *, gather_on_cpu: bool = False, patient: bool = False) -> None:
        self.gather_on_cpu, self.patient = gather_on_cpu, patient  # patient: it looks when it closes and not before
        self.seen: list[tuple[Tensor, Explain]] = []
        self._token: Token[Watch | None] | None = None

    def __enter__(self) -> Watch:
        self._token = _open.set(self)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._token is not None
        _open.reset(self._token)
        if error is None:
            self.settle()
        elif isinstance(error, Exception):
            with contextlib.suppress(RuntimeError):  # of a device that is lost
                self.settle()  # a gathered failure comes before what it led to

    def gathers(self, evidence: Tensor) -> bool:
        return evidence.is_cuda or self.gather_on_cpu

    def add(self, evidence: Tensor, explain: Explain) -> None:
        self.seen.append((evidence.detach().reshape(-1), explain))
        if len(self.seen) >= EVERY and not self.patient:
            self.settle()

    def settle(self) -> None:
        """Look at everything that was gathered; the first failure is raised."""
        seen, self.seen = self.seen, []
        if not seen:
            return
        values = torch.cat([evidence.double() for evidence, _ in seen]).tolist()
        at = 0
        for evidence, explain in seen:
            _raise(explain(values[at : at + len(evidence)]))
            at += len(evidence)


_open: ContextVar[Watch | None] = ContextVar("watch", default=None)


def gathering(tensor: Tensor) -> bool:
    """Whether a check of this tensor would be gathered: what follows must then bear wrong values."""
    watch = _open.get()
    return watch is not None and watch.gathers(tensor)


def refuse(evidence: Tensor, explain: Explain) -> None:
    """Raise :class:`BadData` with what ``explain`` says of the evidence; later, if a :class:`Watch` gathers it."""
    watch = _open.get()
    if watch is not None and watch.gathers(evidence):
        watch.add(evidence, explain)
    else:
        _raise(explain(evidence.detach().double().reshape(-1).tolist()))


@contextlib.contextmanager
def collecting(watch: Watch) -> Iterator[Watch]:
    """Gather into a watch that nobody looks at until its owner does."""
    token = _open.set(watch)
    try:
        yield watch
    finally:
        _open.reset(token)


def settle_checks() -> None:
    """Look now at what an open :class:`Watch` has gathered."""
    watch = _open.get()
    if watch is not None:
        watch.settle()


def _raise(problem: str | None) -> None:
    if problem is not None:
        raise BadData(problem)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a nest of tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def check_finite(value: Any, what: str, index: int) -> None:
    """Refuse floating-point tensors that hold NaN or infinity."""
    for tensor in tensors_in(value):
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        total = tensor.numel()

        def explain(bad: list[float], total: int = total) -> str | None:
            return _not_finite(what, index, bad[0], total)

        if gathering(tensor) or not _all_finite(tensor):
            refuse(total - _finite(tensor.detach()), explain)


def _not_finite(what: str, index: int, bad: float, total: int) -> str | None:
    if not bad:
        return None
    return (
        f"{what} of batch {index} hold {bad:.0f} values that are NaN or infinite (of {total}). Clean the data, or "
        "check the network for overflow."
    )


def _finite(tensor: Tensor) -> Tensor:
    """The number of values that are finite; in parts, since finding out takes twice the memory of what is looked at."""
    rows = max(1, TOGETHER * len(tensor) // tensor.numel()) if tensor.dim() else 1
    parts = tensor.split(rows) if tensor.dim() else (tensor,)
    found = [torch.isfinite(part).sum() for part in parts]
    return found[0] if len(found) == 1 else torch.stack(found).sum()


def _all_finite(tensor: Tensor) -> bool:
    """By the extremes, which carry NaN and infinity; no tensor of truth values is made."""
    low, high = torch.aminmax(tensor.detach())
    return bool(torch.isfinite(low) & torch.isfinite(high))
