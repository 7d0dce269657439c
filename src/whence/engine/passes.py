"""Passes over the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from whence.engine.batches import Batch, Data, size_of
from whence.engine.distributed_data import Part
from whence.engine.progress import progress_bar
from whence.engine.stages import FitCheckpoint, RunningSums, reorders
from whence.errors import BadData


class Passes:
    """Passes over data whose first batch can be read in advance, with a check that all passes agree."""

    def __init__(self, data: Data, part: Part | None = None, checkpoint: FitCheckpoint | None = None) -> None:
        self.data, self.part, self.checkpoint = data, part, checkpoint
        self._first: Batch | None = None
        self._rest: Iterator[Batch] | None = None
        self._sums: list[float] = []
        self._skipped = 0  # passes skipped because a checkpoint has the complete stage

    def peek(self) -> Batch:
        self._rest = self._read()
        self._first = next(self._rest)
        return self._first

    def _read(self) -> Iterator[Batch]:
        return iter(self.data) if self.part is None else self.part.once(self.data)

    def once(self) -> Iterator[Batch]:
        """One pass; the first continues from the batch that was read in advance."""
        if self._rest is not None:
            assert self._first is not None
            rest, first, self._rest, self._first = self._rest, self._first, None, None
            yield first
            yield from rest
        else:
            yield from self._read()

    def passes(
        self, count: int, progress: bool, label: str, running: Sequence[RunningSums] = (), basis: str = ""
    ) -> Iterator[Batch]:
        """``count`` passes with consecutive batch numbers, and a progress bar if it takes long.

        ``running`` are the sums that the loop updates; it must add a batch before it takes the next. With a
        checkpoint they are saved between batches and restored at the start; batches that they already
        count are read but not yielded again (for a complete stage only if a later one needs the order that a
        shuffling loader has after it). A stage that was computed with another ``basis`` starts again.
        """
        file = self.checkpoint
        if file is None:
            yield from self._numbered(count, progress, label)
            return
        stage = file.stage(label, running, basis)
        if stage.complete:
            self._skipped += count
            return
        self._catch_up()
        done, batch = 0, None
        for batch in self._numbered(count, progress, label):
            done += 1
            if done > stage.batches:
                yield batch
                file.offer(stage, running, done, batch)
            elif done == stage.batches:
                file.check_last(stage, batch)
        if batch is None or done < stage.batches:
            raise BadData(f"the data ended after {done} batches, but {file.path} counts {stage.batches}.")
        file.offer(stage, running, done, batch, complete=True)

    def _catch_up(self) -> None:
        """Read the skipped passes if the order of the next pass depends on them."""
        skipped, self._skipped = self._skipped, 0
        if reorders(self.data.source):
            for _ in range(skipped):
                for _ in self.once():
                    pass

    def _numbered(self, count: int, progress: bool, label: str) -> Iterator[Batch]:
        length = self.data.length()
        total = None if length is None else length * count
        offset = 0
        with progress_bar(total=total, label=label, unit="batch", shown=progress) as bar:
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
                f"in evaluation mode?), but structure={structure!r} needs the same data in each pass. Augment the "
                "data once and pass them as tensors, or use structure='kron', which needs one pass (passes=… averages "
                "several)."
            )
