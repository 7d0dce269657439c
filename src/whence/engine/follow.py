"""Whether results stay differentiable in the inputs, or in something inside the network."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from whence.engine.checks import tensors_in

_inside: ContextVar[bool] = ContextVar("_inside", default=False)


def is_followed(inputs: Any) -> bool:
    """Whether gradients will be taken in the inputs, or in values inside the network."""
    return _inside.get() or any(t.requires_grad for t in tensors_in(inputs))


@contextlib.contextmanager
def graph_kept() -> Iterator[None]:
    """Keep results differentiable in values inside the network, for inputs such as token ids that have no gradient."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)
