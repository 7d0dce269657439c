"""Context managers for torch settings: precision, attention kernels, graph capture."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

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


class ContiguousGradients(TorchFunctionMode):
    """Batch normalisation gets contiguous gradients.

    On a CPU torch's kernel for evaluation mode assumes that those of a single example are contiguous.
    (Under functional transforms it does not.)
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        alone = func in BATCH_NORM and out.requires_grad and len(out) == 1
        if alone and not torch._C._functorch.is_functorch_wrapped_tensor(out):
            out.register_hook(torch.Tensor.contiguous)
        return out


BATCH_NORM = {F.batch_norm, torch.batch_norm}


def has_batch_norm(module: nn.Module) -> bool:
    """Whether a module has batch normalisation with running statistics."""
    if module not in _known_norms:
        _known_norms[module] = any(name.rpartition(".")[2] == "running_var" for name, _ in module.named_buffers())
    return _known_norms[module]


_known_norms: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()
