"""Context managers for torch settings: precision, attention kernels, graph capture."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import torch

_outside: ContextVar[dict[str, torch.dtype]] = ContextVar("_outside", default={})  # noqa: B039


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Switch autocast off: sums and decompositions keep their dtypes; forward passes have their own context."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    if not kinds:
        yield
        return
    token = _outside.set({kind: torch.get_autocast_dtype(kind) for kind in kinds})
    try:
        with contextlib.ExitStack() as stack:
            for kind in kinds:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        _outside.reset(token)


def outer_autocast(device: torch.device) -> torch.dtype | None:
    """The autocast dtype of a device outside :func:`full_precision`."""
    return _outside.get().get(device.type)


class _FusedAttentionOff:
    """Switches off torch's fused attention and encoder kernels while any thread is inside."""

    def __init__(self) -> None:
        self._lock, self._inside, self._was = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._was = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                torch.backends.mha.set_fastpath_enabled(self._was)


fused_attention_off = _FusedAttentionOff()


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
