"""Terminal views of records. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from whence.errors import MissingExtra

try:
    from rich.console import Console, RenderableType
except ImportError as missing:
    raise MissingExtra("this needs rich: pip install 'whence[cli]'") from missing

from whence.report.record.audit import AuditRecord
from whence.report.record.comparison import ComparisonRecord
from whence.report.record.difference import DiffRecord
from whence.report.terminal.audit import audit_view, verdict_view
from whence.report.terminal.comparison import comparison_view
from whence.report.terminal.difference import difference_view
from whence.report.terminal.tables import WIDEST

__all__ = ["audit_view", "comparison_view", "difference_view", "place", "show_record", "verdict_view"]
T = TypeVar("T")


def show_record(record: AuditRecord | ComparisonRecord | DiffRecord, console: Console | None = None) -> None:
    """Print the record of an audit, of a comparison or of what changed."""
    console = console or Console(highlight=False)
    if isinstance(record, DiffRecord):
        place(console, difference_view, record)
        return
    if isinstance(record, AuditRecord):
        place(console, audit_view, record)
    else:
        place(console, comparison_view, record)


def place(console: Console, view: Callable[[T, int], RenderableType], about: T) -> None:
    """Print a view at the console's width, up to a readable width."""
    width = min(console.width, WIDEST)
    console.print(view(about, width), width=width)
