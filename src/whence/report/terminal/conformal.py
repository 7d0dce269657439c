"""Conformal sets and intervals, and checks of predicted numbers, in the terminal."""

from __future__ import annotations

from rich.console import RenderableType

from whence.numerals import number, percent
from whence.report.record.conformal import ConformalSection
from whence.report.record.numbers import NumberChecks
from whence.report.terminal.tables import add_row, estimate, new_table, section


def conformal_view(found: ConformalSection, unit: str | None, wide: bool) -> RenderableType:
    """One row for each level."""
    sets = found.kind == "sets"
    of = f" ({unit})" if unit else ""
    columns = (
        ["size>", "none>", "one answer>", "several>", "size if wrong>"]
        if sets
        else [f"width{of}>", "Bayesian>", f"width{of}>"]
    )
    table = new_table("level", "coverage>", *columns)
    for row in found.rows:
        cells: list[str] = []
        if row.sets is not None:
            own = row.sets
            cells = [estimate(own.size, interval=wide), percent(own.empty, 1), percent(own.singletons, 1)]
            cells.append(percent(own.several, 1))
            cells.append(number(own.size_wrong))
        elif row.intervals is not None:
            of_row = row.intervals
            infinite = "∞" if of_row.width is None else estimate(of_row.width, interval=wide)
            covered = estimate(of_row.bayesian_coverage, "percent", wide)
            cells = [infinite, covered, estimate(of_row.bayesian_width, interval=wide)]
        add_row(table, percent(row.level), estimate(row.coverage, "percent"), *cells)
    title = "Prediction sets" if sets else "Prediction intervals"
    return section(f"{title} (conformal)", table, (found.guarantee, *found.words))


def numbers_view(found: NumberChecks, again: bool, wide: bool) -> RenderableType:
    """Coverage of intervals at several levels."""
    table = new_table("intervals of", "plain>", *(["recalibrated>"] if again else []), "Bayesian>")
    for row in found.coverage:
        shown = [row.plain, *([row.recalibrated] if again else []), row.bayesian]
        add_row(table, percent(row.level), *(estimate(one, "percent", wide) for one in shown))
    return section("Intervals on test data", table, found.words, "share of true values inside")
