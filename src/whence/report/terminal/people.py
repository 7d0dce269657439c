"""Classes, binary decisions and groups of an audit in the terminal. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from whence.numerals import percent
from whence.report.record.audit import Quality
from whence.report.record.common import Estimate, Form
from whence.report.record.groups import Groups
from whence.report.record.labels import ClassCalibration, Confusion, TwoClasses
from whence.report.terminal.tables import WIDE, Column, add_row, estimate, new_table, section, split_tables, whole

LISTED = 5  # classes and confusions


def label_sections(quality: Quality, things: str, width: int) -> Iterator[RenderableType]:
    """The binary decision, the weakest classes, and the most frequent confusions; ``things`` are inputs or pixels."""
    if quality.two_classes is not None:
        yield _two_classes(quality.two_classes)
    known = [row for row in quality.classes or () if row.recall is not None and row.recall.value is not None]
    if len(known) > 1:
        yield _classes(known, things, width)
    if quality.confusion is not None and len(quality.confusion.names) > 2 and quality.confusion.largest:
        yield _confusions(quality.confusion, things)


def _share(value: Estimate | None, interval: bool = True) -> str:
    return estimate(value, "percent", interval)


def _two_classes(two: TwoClasses) -> RenderableType:
    table = new_table("", "value>", "inputs>")
    rows = {
        "prevalence": two.prevalence,
        "sensitivity": two.sensitivity,
        "specificity": two.specificity,
        "precision (PPV)": two.precision,
        "NPV": two.npv,
    }
    for name, value in rows.items():
        add_row(table, name, _share(value), whole(value.count) if value else "0")
    for name, value in (("average precision", two.average_precision), ("AUROC", two.auroc)):
        if value is not None:
            add_row(table, name, estimate(value, "area"), whole(value.count))
    note = f"positive: {two.positive}, negative: {two.negative}; positive above a probability of {two.threshold:g}"
    return section("The decision", table, (), f"{note}; exact 95% intervals of rates")


def _classes(rows: list[ClassCalibration], things: str, width: int) -> RenderableType:
    rows = sorted(rows, key=lambda row: (row.recall and row.recall.value) or 0.0)
    shown, left = rows[:LISTED], len(rows) - LISTED
    columns = {
        "n": [whole(row.count) for row in shown],
        "accuracy": [_share(row.recall) for row in shown],
        "precision": [_share(row.precision, False) for row in shown],
        "confidence": ["" if row.confidence is None else percent(row.confidence, 1) for row in shown],
        "ECE (points)": [estimate(row.ece, "points", False) for row in shown],
        "deferred": [_share(row.deferred, False) for row in shown],
    }
    table = split_tables("class", [row.name for row in shown], _columns(columns), width)
    note = f"accuracy: of the {things} that have it; precision: of the answers that say it"
    return section("By class", table, (), f"{note}; {left:,} more on the page" if left > 0 else note)


def _columns(texts: Mapping[str, Sequence[str]]) -> list[Column]:
    return [(name, [Text(text) for text in cells]) for name, cells in texts.items()]


def _confusions(found: Confusion, things: str) -> RenderableType:
    table = new_table("true class", "predicted as", f"{things}>", "share of the true class>")
    for one in found.largest[:LISTED]:
        add_row(table, one.true, one.predicted, whole(one.count), _share(one.share))
    return section("Most frequent confusions", table)


def groups_section(found: Groups, width: int) -> RenderableType:
    """The first metric and the deferral of every group, and what the comparisons found."""
    wide, form = width >= WIDE, found.metrics[0].form
    of_error: Form = "percent" if found.is_rate else "number"
    parts: list[RenderableType] = []
    for one in found.groupings:
        rows = (found.overall, *one.groups)
        columns = {
            "n": [whole(row.inputs) for row in rows],
            found.metrics[0].label: [estimate(row.metrics[0], form) for row in rows],
            "deferred": [_share(row.deferred, wide) for row in rows],
            "error": [estimate(row.answered_error, of_error, wide) for row in rows],
        }
        parts += [Text()] if parts else []
        parts.append(split_tables(one.name, [row.name for row in rows], _columns(columns), width))
    note = f"95% intervals; error: {found.error} of the answered; more metrics on the page"
    return section("Groups of test inputs", Group(*parts), found.words, note)
