"""Passes over the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tqdm import tqdm

from whence.batches import Batch, Data, size_of
from whence.errors import BadData


class Passes:
    """The data with its first batch looked at beforehand, and a check that passes agree."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self._first: Batch | None = None
        self._rest: Iterator[Batch] | None = None
        self._sums: list[float] = []

    def peek(self) -> Batch:
        self._rest = iter(self.data)
        self._first = next(self._rest)
        return self._first

    def once(self) -> Iterator[Batch]:
        """One pass; the first one goes on from the batch that was looked at."""
        if self._rest is not None:
            assert self._first is not None
            rest, first, self._rest, self._first = self._rest, self._first, None, None
            yield first
            yield from rest
        else:
            yield from self.data

    def passes(self, count: int, progress: bool, label: str) -> Iterator[Batch]:
        """``count`` passes in a row, numbered through, with a progress bar if it takes long."""
        length = self.data.length()
        total = None if length is None else length * count
        offset = 0
        with tqdm(total=total, desc=label, unit="batch", delay=3, leave=False, disable=not progress) as bar:
            for _ in range(count):
                seen = 0
                for batch in self.once():
                    yield replace(batch, offset=offset + batch.offset)
                    seen = batch.offset + size_of(batch.inputs)
                    bar.update()
                offset += seen

    def same_data(self, total: float, structure: str) -> None:
        """Refuse random augmentation between the passes of one computation; ``total`` is a checksum."""
        self._sums.append(total)
        if abs(total - self._sums[0]) > 1e-4 * (abs(self._sums[0]) + 1e-12):
            raise BadData(
                "the data changed between two passes (random augmentation, dropped batches, or dropout that stays on "
                f"in evaluation mode?), but structure={structure!r} needs the same data in each. Draw the augmented "
                "data once and pass it as tensors, or use structure='kron', which needs one pass (passes=… averages "
                "several)."
            )
