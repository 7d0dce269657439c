"""TensorBoard: a track and an audit as scalars and text, beside those of the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whence.auditing import Audit
from whence.errors import BadOption, need
from whence.extras.tracking.records import TrackRecord
from whence.extras.tracking.track import Track
from whence.integrations.scalars import of_audit, of_record, records_of, words_of


class TensorBoard:
    """Logs records of a track and audits to TensorBoard.

    Args:
        writer: a ``torch.utils.tensorboard.SummaryWriter`` (or one with its methods), or a folder for a new one.
    """

    def __init__(self, writer: Any) -> None:
        self._own = isinstance(writer, (str, Path))
        if self._own:
            need("tensorboard", "tensorboard")
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(str(writer))
        if not hasattr(writer, "add_scalar") or not hasattr(writer, "add_text"):
            raise BadOption(f"writer is a {type(writer).__name__}; pass a SummaryWriter, or the name of a folder.")
        self.writer = writer

    def record(self, record: TrackRecord) -> None:
        """Log one record, as ``track.step()`` returns it, at its step."""
        self._scalars(of_record(record), record.step)

    def track(self, track: Track) -> None:
        """Log all records of a track."""
        for record in records_of(track):
            self.record(record)

    def audit(self, audit: Audit, step: int | None = None) -> None:
        """Log the numbers of an audit, and its verdict as text."""
        self._scalars(of_audit(audit), step)
        self.writer.add_text("whence/audit", words_of(audit), step)
        self.writer.flush()

    def _scalars(self, values: dict[str, float], step: int | None) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        """Close the writer, if it was made here."""
        if self._own:
            self.writer.close()
