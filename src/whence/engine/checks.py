"""Checks of data and outputs. On a GPU the results are collected, so that no batch waits for the device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar, Token
from typing import Any

import torch
from torch import Tensor

from whence.engine.memory import sizes
from whence.errors import BadData

Explain = Callable[[list[float]], str | None]  # an error message from a few numbers; None if they are fine


class DeferredChecks:
    """Inside this context, checks of GPU tensors are collected and read every ``every`` checks and at the end.

    ``on_cpu`` also collects checks of CPU tensors; with ``every=None`` they are read only by :meth:`read`.
    """

    def __init__(self, *, on_cpu: bool = False, every: int | None = 256) -> None:
        self.on_cpu, self.every = on_cpu, every
        self.collected: list[tuple[Tensor, Explain]] = []
        self._token: Token[DeferredChecks | None] | None = None

    def __enter__(self) -> DeferredChecks:
        self._token = _open.set(self)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._token is not None
        _open.reset(self._token)
        if error is None:
            self.read()
        elif isinstance(error, Exception):
            with contextlib.suppress(RuntimeError):  # the device may be lost
                self.read()  # report a collected failure, not its consequences

    def collects(self, evidence: Tensor) -> bool:
        return evidence.is_cuda or self.on_cpu

    def add(self, evidence: Tensor, explain: Explain) -> None:
        self.collected.append((evidence.detach().reshape(-1), explain))
        if self.every is not None and len(self.collected) >= self.every:
            self.read()

    def read(self) -> None:
        """Read all collected checks, and raise the first failure."""
        collected, self.collected = self.collected, []
        if not collected:
            return
        values = torch.cat([evidence.double() for evidence, _ in collected]).tolist()
        at = 0
        for evidence, explain in collected:
            _raise(explain(values[at : at + len(evidence)]))
            at += len(evidence)


_open: ContextVar[DeferredChecks | None] = ContextVar("checks", default=None)


def deferred(tensor: Tensor) -> bool:
    """Whether a check of this tensor is deferred, so that later code must tolerate invalid values."""
    checks = _open.get()
    return checks is not None and checks.collects(tensor)


def refuse(evidence: Tensor, explain: Explain) -> None:
    """Raise :class:`BadData` if ``explain`` finds a problem in the evidence; later if checks are deferred."""
    checks = _open.get()
    if checks is not None and checks.collects(evidence):
        checks.add(evidence, explain)
    else:
        _raise(explain(evidence.detach().double().reshape(-1).tolist()))


@contextlib.contextmanager
def collecting(checks: DeferredChecks) -> Iterator[None]:
    """Collect into ``checks`` without reading them at the end."""
    token = _open.set(checks)
    try:
        yield
    finally:
        _open.reset(token)


def read_checks() -> None:
    """Read the checks collected so far."""
    checks = _open.get()
    if checks is not None:
        checks.read()


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
    """Refuse floating-point tensors that contain NaN or infinity."""
    for tensor in tensors_in(value):
        if not tensor.is_floating_point() or not tensor.numel():
            continue

        def explain(bad: list[float], total: int = tensor.numel()) -> str | None:
            if not bad[0]:
                return None
            return (
                f"{what} of batch {index} contain {bad[0]:,.0f} NaN or infinite values (of {total:,}). Clean the "
                "data, or check the network for overflow."
            )

        if deferred(tensor) or not _all_finite(tensor):
            refuse(tensor.numel() - _finite(tensor.detach()), explain)


def _finite(tensor: Tensor) -> Tensor:
    """The number of finite values; in parts, since the check takes twice the memory of its input."""
    rows = max(1, sizes().checked * len(tensor) // tensor.numel()) if tensor.dim() else 1
    parts = tensor.split(rows) if tensor.dim() else (tensor,)
    found = [torch.isfinite(part).sum() for part in parts]
    return found[0] if len(found) == 1 else torch.stack(found).sum()


def _all_finite(tensor: Tensor) -> bool:
    """Whether all values are finite, by the extremes, which propagate NaN and infinity without a boolean tensor."""
    low, high = torch.aminmax(tensor.detach())
    return bool(torch.isfinite(low) & torch.isfinite(high))
