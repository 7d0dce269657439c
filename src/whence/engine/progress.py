"""Progress bars: shown after some seconds, only where a person is looking, one at a time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

from whence.engine.batches import Inputs, is_inputs, size_of

DELAY = 3.0  # seconds before a bar appears
_allowed: ContextVar[bool] = ContextVar("allowed", default=True)


def progress_bar(
    iterable: Iterable[Any] | None = None,
    *,
    label: str,
    unit: str,
    total: float | None = None,
    shown: bool = True,
    delay: float = DELAY,
    **more: Any,
) -> Any:
    """A bar of ``tqdm``, which disappears when it is done.

    None if ``shown`` is False, and where nobody watches, so that log files get no control characters.
    """
    hidden = not (shown and _allowed.get() and watched())
    return tqdm(iterable, desc=label, unit=unit, total=total, delay=delay, leave=False, disable=hidden, **more)


def watched() -> bool:
    """Whether standard error is a terminal or a notebook."""
    return "ipykernel" in sys.modules or bool(getattr(sys.stderr, "isatty", lambda: False)())


@contextlib.contextmanager
def bars(allowed: bool) -> Iterator[None]:
    """Allow no bars inside a ``with`` block, for work that shows its own progress; never allows what was forbidden."""
    token = _allowed.set(allowed and _allowed.get())
    try:
        yield
    finally:
        _allowed.reset(token)


def over_inputs(pieces: Iterable[Inputs], x: Any, label: str) -> Iterator[Inputs]:
    """Yield the pieces of the inputs ``x``, with a bar."""
    with progress_bar(label=label, unit="input", total=size_of(x) if is_inputs(x) else None) as bar:
        for piece in pieces:
            yield piece
            bar.update(size_of(piece))
