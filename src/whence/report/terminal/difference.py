"""What changed between two audits, in the terminal. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from whence.numerals import NONE, share
from whence.report.record.common import Form
from whence.report.record.difference import ChangedFact, ChangedLayer, ChangedPoint, ChangedValue, DiffRecord
from whence.report.terminal.tables import WIDE, add_row, bullets, estimate, facts, new_table, section

STYLES = {"better": "green", "worse": "red", "differs": "yellow"}
LONGEST = 60  # letters of a fact
DIGEST = 64  # letters of a digest


def difference_view(record: DiffRecord, width: int = 80) -> RenderableType:
    """The terminal view: a summary, then what differs, section by section."""
    wide = width >= WIDE
    dates = f"{record.old.created[:16]} → {record.new.created[:16]}"
    panel = Panel(Group(*bullets(record.words)), title=Text(record.title, style="bold"), subtitle=Text(dates))
    points = [row for row in record.points if row.changed]
    layers = [row for row in record.layers if row.changed]
    parts: list[RenderableType | None] = [
        panel,
        _points(points) if points else None,
        _values("Metrics on test data", record.metrics, wide, every=True),
        _values("Deferral to a person", record.deferral, wide),
        _layers(layers) if layers else None,
        _values("Novelty", record.novelty, wide),
        _facts(record.facts) if record.facts else None,
        None if record.is_empty else section("How changes are judged", Text(record.how)),
    ]
    return Group(*(part for part in parts if part is not None))


def _points(points: Sequence[ChangedPoint]) -> RenderableType:
    """Points with another tone in full; of the others only that their numbers changed."""
    rows: list[tuple[str | Text, str | Text]] = []
    for row in points:
        if row.old is None or row.new is None or row.old.tone != row.new.tone:
            for when, point in (("old", row.old), ("new", row.new)):
                words = f"{when}: {point.tone}. {point.words}" if point else f"{when}: not part of the verdict"
                rows.append((row.label if when == "old" else "", words))
        else:
            rows.append((row.label, f"{row.new.tone} in both, with other numbers"))
    return section("Verdict", facts(rows))


def _values(title: str, values: Sequence[ChangedValue], wide: bool, every: bool = False) -> RenderableType | None:
    """The rows that changed by more than chance, or every row that differs; how many are left out is said."""
    rows = [row for row in values if row.changed and (every or row.judgement != "within chance")]
    changed = sum(row.changed for row in values)
    if not changed:
        return None
    table = new_table("", "old>", "new>", "change>", "")
    for row in rows:
        name = f"{row.label}, {row.of}"
        apart: Form = "number" if row.form in ("number", "area") else "points"
        cells = (estimate(row.old, row.form, wide), estimate(row.new, row.form, wide), estimate(row.change, apart))
        add_row(table, name, *cells, Text(row.judgement, style=STYLES.get(row.judgement, "dim")))
    left = [f"{changed - len(rows)} more changed within chance"] if changed > len(rows) else []
    left += [f"{len(values) - changed} did not change"] if len(values) > changed else []
    return section(title, table if rows else None, (), "; ".join(["95% intervals", *left]))


def _layers(rows: Sequence[ChangedLayer]) -> RenderableType:
    table = new_table("layer", "old share>", "new share>", "old explained>", "new explained>")
    for row in rows:
        numbers = (row.old_share, row.new_share, row.old_explained, row.new_explained)
        add_row(table, row.name, *map(share, numbers))
    return section("Source of the uncertainty", table, (), "shares have no interval")


def _facts(rows: Sequence[ChangedFact]) -> RenderableType:
    return section(
        "Settings, data and versions", facts([(row.name, f"{_short(row.old)} → {_short(row.new)}") for row in rows])
    )


def _short(text: str | None) -> str:
    """A digest by its first digits, another long text by its beginning."""
    if text is None:
        return NONE
    if len(text) == DIGEST and not set(text) - set("0123456789abcdef"):
        return f"{text[:12]}…"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
