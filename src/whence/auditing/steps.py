"""The steps of a long piece of work: told, timed, and with what whence had to say on the way."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from tqdm import tqdm

from whence.auditing.ran import Log
from whence.errors import Notice


def now() -> str:
    """Date and time, as JSON takes them."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Bar:
    """The steps, told to whoever wants to know."""

    def __init__(self, steps: list[str], progress: bool, on_step: Callable[[str, int, int], None] | None) -> None:
        self.steps, self.on_step, self.done = steps, on_step, 0
        hidden = not progress or on_step is not None
        self.bar = tqdm(total=len(steps), desc="audit", unit="step", leave=False, disable=hidden)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    @contextmanager
    def step(self, name: str, log: Log) -> Iterator[None]:
        if name not in self.steps:
            self.steps.insert(self.done, name)
        if self.on_step is not None:
            self.on_step(name, self.done, len(self.steps))
        self.bar.set_description(f"audit: {name}")
        start = time.perf_counter()
        yield
        log.seconds[name] = time.perf_counter() - start
        self.done += 1
        self.bar.update()


@contextmanager
def kept_notices(log: Log) -> Iterator[None]:
    """Keep what whence has to say, and say it again at the end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Notice)
        yield
    said = set()
    for item in caught:
        if issubclass(item.category, Notice):
            log.notices.append(str(item.message))
        if (item.category, str(item.message)) not in said:
            warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)
        said.add((item.category, str(item.message)))
