"""A record, or what a posterior's file says, in the terminal. Draws what is there, computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from whence.errors import MissingExtra

try:
    from rich.console import Console, RenderableType
except ImportError as missing:
    raise MissingExtra("this needs rich: pip install 'whence[cli]'") from missing

from whence.report.terminal.audited import audit, verdict
from whence.report.terminal.cells import WIDEST, bar, estimate, facts, number, percent, tenths, whole
from whence.report.terminal.compared import comparison
from whence.report.terminal.saved import drawn_posterior, posterior

__all__ = [
    "audit",
    "bar",
    "comparison",
    "drawn_posterior",
    "estimate",
    "facts",
    "number",
    "percent",
    "place",
    "posterior",
    "show_record",
    "tenths",
    "verdict",
    "view_of",
    "whole",
]


def show_record(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the record of an audit or of a comparison."""
    place(console or Console(highlight=False), view_of(record), record)


def view_of(record: Mapping[str, Any]) -> Callable[[Any, int], RenderableType]:
    """How a record is shown, by its schema."""
    return comparison if str(record.get("schema") or "").startswith("whence.comparison/") else audit


def place(console: Console, view: Callable[[Any, int], RenderableType], about: Any) -> None:
    """Print a view at the console's width, but no wider than can be read."""
    width = min(console.width, WIDEST)
    console.print(view(about, width), width=width)
