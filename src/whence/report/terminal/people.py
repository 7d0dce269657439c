"""Classes, binary decisions and groups of an audit in the terminal. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType

from whence.numerals import percent
from whence.report.record.audit import Quality
from whence.report.record.common import Estimate
from whence.report.record.groups import Groups
from whence.report.record.labels import ClassCalibration, Confusion, TwoClasses
from whence.report.terminal.tables import add_row, estimate, new_table, section, whole

LISTED = 5  # classes and confusions


def label_sections(quality: Quality) -> Iterator[RenderableType]:
    """The binary decision, the weakest classes, and the most frequent confusions."""
    if quality.two_classes is not None:
        yield _two_classes(quality.two_classes)
    known = [row for row in quality.classes or () if row.recall is not None and row.recall.value is not None]
    if len(known) > 1:
        yield _classes(known)
    if quality.confusion is not None and len(quality.confusion.names) > 2 and quality.confusion.largest:
        yield _confusions(quality.confusion)


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
            add_row(table, name, estimate(value), whole(value.count))
    note = f"positive: {two.positive}, negative: {two.negative}; positive above a probability of {two.threshold:g}"
    return section("The decision", table, (), f"{note}; exact 95% intervals of rates")


def _classes(rows: list[ClassCalibration]) -> RenderableType:
    rows = sorted(rows, key=lambda row: (row.recall and row.recall.value) or 0.0)
    table = new_table("class", "n>", "accuracy>", "precision>", "confidence>", "ECE (points)>", "deferred>")
    for row in rows[:LISTED]:
        shares = (
            _share(row.recall),
            _share(row.precision, False),
            percent(row.confidence) if row.confidence else "",
        )
        add_row(
            table, row.name, whole(row.count), *shares, estimate(row.ece, "points", False), _share(row.deferred, False)
        )
    left = len(rows) - LISTED
    note = "accuracy: of the inputs that have it; precision: of the answers that say it"
    return section("By class", table, (), f"{note}; {left:,} more on the page" if left > 0 else note)


def _confusions(found: Confusion) -> RenderableType:
    table = new_table("true class", "predicted as", "inputs>", "share of the true class>")
    for one in found.largest[:LISTED]:
        add_row(table, one.true, one.predicted, whole(one.count), _share(one.share))
    return section("Most frequent confusions", table)


def groups_section(found: Groups, wide: bool) -> RenderableType:
    """The first metric and the deferral of every group, and what the comparisons found."""
    label = found.metrics[0].label
    parts: list[RenderableType] = []
    for one in found.groupings:
        table = new_table(one.name, "n>", f"{label}>", "deferred>", f"{found.error} of the answered>")
        for row in (found.overall, *one.groups):
            error = estimate(row.answered_error, "percent" if found.is_rate else "number", wide)
            add_row(
                table,
                row.name,
                whole(row.inputs),
                estimate(row.metrics[0], found.metrics[0].form),
                _share(row.deferred, wide),
                error,
            )
        parts.append(table)
    return section("Groups of test inputs", Group(*parts), found.words, "95% intervals; more metrics on the page")
