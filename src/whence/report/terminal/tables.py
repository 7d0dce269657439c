"""Parts of terminal views: tables, bars, numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from whence.numerals import NONE, share
from whence.report import formatting
from whence.report.record.audit import AuditRun
from whence.report.record.common import Estimate, Form, Run, Versions

Column = tuple[str, list[Text]]  # a heading, and a cell for each row
EIGHTHS = " ▏▎▍▌▋▊▉█"
NARROWEST = 9  # characters per line of a heading
LONGEST = 24  # characters of a row name before it wraps
GAP = 2
WIDE = 110  # width from which every interval is shown
WIDEST = 120  # width above which lines are hard to read


# Numbers


def whole(value: float | None) -> str:
    """A count with separators."""
    return NONE if value is None else f"{value:,.0f}"


def estimate(found: Estimate | None, form: Form = "number", interval: bool = True) -> str:
    """A value with its interval."""
    shown = formatting.shown(found, form)
    return " ".join(filter(None, shown if interval else shown[:1]))


def bar(part: float | None, length: int) -> Text:
    """A share as a bar of text blocks, with its number; no bar if negative."""
    if part is None:
        return Text(NONE)
    eighths = round(max(0.0, min(1.0, part)) * length * 8)
    blocks = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
    return Text.assemble((blocks.ljust(length), "magenta"), f" {share(part):>6}")


# Tables


def section(title: str, body: RenderableType | None, sentences: Sequence[str] = (), note: str = "") -> Group:
    """A heading, a table, sentences."""
    parts = [heading(title, note), body, *bullets(sentences)]
    return Group(*(part for part in parts if part is not None))


def heading(title: str, note: str) -> Text:
    """A title after an empty line, with an explanatory note."""
    made = Text.assemble("\n", (title, "bold"))
    return made.append(f"\n{note}", style="dim") if note else made


def bullets(sentences: Sequence[str]) -> list[Text]:
    return [Text(f"• {sentence}") for sentence in sentences]


def add_row(table: Table, *cells: RenderableType) -> None:
    """Add a row; strings are not read as markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def facts(rows: Sequence[tuple[str | Text, str | Text]]) -> Table:
    """A table of labels and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column()
    for label, words in rows:
        add_row(table, label, words)
    return table


def new_table(*columns: str) -> Table:
    """A table whose first column may wrap; columns whose name ends in > are right-aligned."""
    table = Table(box=None, header_style="cyan", padding=(0, 2, 0, 0), pad_edge=False)
    for place, name in enumerate(columns):
        justify: JustifyMethod = "right" if name.endswith(">") else "left"
        folds = place == 0 or name == "structure"
        table.add_column(Text(name.removesuffix(">")), justify=justify, no_wrap=not folds, overflow="fold")
    return table


def split_tables(corner: str, names: Sequence[str], columns: Sequence[Column], width: int) -> RenderableType:
    """The columns in as many tables as the width requires, each with the row names."""
    first = max([len(corner), *(min(len(name), LONGEST) for name in names)]) + GAP
    tables: list[list[Column]] = []
    left = 0
    for title, cells in columns:
        widest = max((cell.cell_len for cell in cells), default=0)
        heading = textwrap.wrap(title, max(widest, NARROWEST, *(min(len(word), LONGEST) for word in title.split())))
        needs = max([widest, *map(len, heading)]) + GAP
        if not tables or needs > left:
            tables.append([])
            left = width - first
        left -= needs
        tables[-1].append(("\n".join(heading), cells))
    parts: list[RenderableType] = []
    for mine in tables:
        table = new_table(corner, *(f"{title}>" for title, _ in mine))
        table.columns[0].max_width = LONGEST
        for place, name in enumerate(names):
            add_row(table, name, *(cells[place] for _, cells in mine))
        parts += [Text(), table] if parts else [table]
    return Group(*parts)


# The run


def run_facts(run: Run) -> list[tuple[str | Text, str | Text]]:
    """Notices, versions and omissions."""
    took = f"; {sum(run.seconds.values()):.0f} s" if run.seconds else ""
    packages = ", ".join(f"{name} {getattr(run.versions, name)}" for name in Versions.__dataclass_fields__)
    notices: list[tuple[str | Text, str | Text]] = [("note", notice) for notice in run.notices]
    return [*notices, ("run", f"{packages}; seed {run.seed}, {run.device}{took}"), *missing_facts(run)]


def missing_facts(run: Run) -> list[tuple[str | Text, str | Text]]:
    """Omissions with their reasons."""
    found: list[tuple[str | Text, str | Text]] = []
    if isinstance(run, AuditRun) and run.interrupted:
        found.append((Text("interrupted", style="red"), f"during {run.interrupted}; finished parts are shown"))
    reasons: dict[str, list[str]] = {}
    for item in run.left_out:
        reasons.setdefault(item.why, []).append(item.what)
    left_out = Text("omitted", style="yellow")
    return [*found, *((left_out, f"{', '.join(what)}: {why}") for why, what in reasons.items())]
