"""Passes over the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tqdm import tqdm

from whence.batches import Batch, Data, size_of
from whence.curvature.checkpoint import Checkpoint, Kept, reorders
from whence.curvature.distributed_data import Part
from whence.errors import BadData


class Passes:
    """The data with its first batch looked at beforehand, and a check that passes agree."""

    def __init__(self, data: Data, part: Part | None = None, checkpoint: Checkpoint | None = None) -> None:
        self.data, self.part, self.checkpoint = data, part, checkpoint
        self._first: Batch | None = None
        self._rest: Iterator[Batch] | None = None
        self._sums: list[float] = []
        self._skipped = 0  # passes of stages that a checkpoint has complete

    def peek(self) -> Batch:
        self._rest = self._read()
        self._first = next(self._rest)
        return self._first

    def _read(self) -> Iterator[Batch]:
        return iter(self.data) if self.part is None else self.part.once(self.data)

    def once(self) -> Iterator[Batch]:
        """One pass; the first one goes on from the batch that was looked at."""
        if self._rest is not None:
            assert self._first is not None
            rest, first, self._rest, self._first = self._rest, self._first, None, None
            yield first
            yield from rest
        else:
            yield from self._read()

    def passes(
        self, count: int, progress: bool, label: str, kept: Sequence[Kept] = (), basis: str = ""
    ) -> Iterator[Batch]:
        """``count`` passes in a row, numbered through, with a progress bar if it takes long.

        ``kept`` are the sums that the loop adds to; it must have added a batch before it asks for the next. With a
        checkpoint they are written between two batches, and at the start set to what was written; the batches that
        they count are then read and not given out again (of a complete stage only if a later one needs the order that a
        shuffling loader has after it). A stage that was computed with another ``basis`` starts anew.
        """
        file = self.checkpoint
        if file is None:
            yield from self._numbered(count, progress, label)
            return
        stage = file.stage(label, kept, basis)
        if stage.complete:
            self._skipped += count
            return
        self._catch_up()
        done, batch = 0, None
        for batch in self._numbered(count, progress, label):
            done += 1
            if done > stage.batches:
                yield batch
                file.offer(stage, kept, done, batch)
            elif done == stage.batches:
                file.check_last(stage, batch)
        if batch is None or done < stage.batches:
            raise BadData(f"the data ended after {done} batches, and {file.path} counts {stage.batches} of them.")
        file.offer(stage, kept, done, batch, complete=True)

    def _catch_up(self) -> None:
        """Read the passes that were skipped, where the order of the next depends on them."""
        skipped, self._skipped = self._skipped, 0
        if reorders(self.data.source):
            for _ in range(skipped):
                for _ in self.once():
                    pass

    def _numbered(self, count: int, progress: bool, label: str) -> Iterator[Batch]:
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
                offset += seen if self.part is None else self.part.size

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
