"""What every view in the terminal is made of: tables, bars, numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whence.errors import MissingExtra

try:
    from rich.console import Group, JustifyMethod, RenderableType
    from rich.table import Table
    from rich.text import Text
except ImportError as missing:
    raise MissingExtra("this needs rich: pip install 'whence[cli]'") from missing

EIGHTHS = " ▏▎▍▌▋▊▉█"
WIDE = 110  # characters from which on every interval is shown
WIDEST = 120  # beyond which lines are hard to read


def facts(rows: Sequence[tuple[str, str]]) -> RenderableType:
    """Labels and what they say."""
    made = new_grid()
    for label, words in rows:
        add_row(made, label, words)
    return made


def missing_rows(table: Table, run: Mapping[str, Any]) -> Table:
    """Rows for what was not done, and why."""
    if run.get("interrupted"):
        add_row(table, Text("interrupted", style="red"), f"during {run['interrupted']}; what was finished is shown")
    reasons: dict[str, list[str]] = {}
    for row in run.get("left_out") or []:
        reasons.setdefault(row["why"], []).append(row["what"])
    for why, what in reasons.items():
        add_row(table, Text("left out", style="yellow"), f"{', '.join(what)}: {why}")
    return table


def section(title: str, body: RenderableType | None, words: Sequence[str] | None, note: str) -> RenderableType:
    """A heading, a table, sentences."""
    parts: list[RenderableType] = [heading(title, note)]
    parts += [] if body is None else [body]
    parts += [Text(f"• {sentence}") for sentence in words or []]
    return Group(*parts)


def heading(title: str, note: str) -> Text:
    """A title after an empty line, and what to know of what follows."""
    made = Text.assemble("\n", (title, "bold"))
    return made.append(f"\n{note}", style="dim") if note else made


def add_row(table: Table, *cells: RenderableType) -> None:
    """Add a row; strings are taken as they are, without markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def new_grid() -> Table:
    """Two columns: a label and words."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column()
    return table


def new_table(*columns: str) -> Table:
    """A table whose first column gives way; a name that ends in > is set to the right."""
    table = Table(box=None, header_style="cyan", padding=(0, 2, 0, 0), pad_edge=False)
    for place, name in enumerate(columns):
        justify: JustifyMethod = "right" if name.endswith(">") else "left"
        folds = place == 0 or name == "structure"
        table.add_column(Text(name.removesuffix(">")), justify=justify, no_wrap=not folds, overflow="fold")
    return table


def bar(share: float | None, length: int) -> Text:
    """A share as a bar of text blocks, with its number; negative ones have no bar."""
    if share is None:
        return Text("–")
    eighths = round(max(0.0, min(1.0, share)) * length * 8)
    drawn = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
    return Text.assemble((drawn.ljust(length), "magenta"), f" {percent(share):>6}")


def estimate(
    found: Mapping[str, Any] | None, shown: Callable[[float], str] | None = None, unit: str = "", interval: bool = True
) -> str:
    """A value with its interval."""
    if not found or found.get("value") is None:
        return "–"
    values = [found["value"], found.get("low"), found.get("high")]
    one = shown or _alike(values)
    value = f"{one(found['value'])}{unit}"
    if not interval or None in values:
        return value
    return f"{value} [{one(found['low'])}, {one(found['high'])}]"


def _alike(values: Sequence[float | None]) -> Callable[[float], str]:
    """One way to write numbers that stand together: as many decimals as the largest one asks for."""
    largest = max(abs(value) for value in values if value is not None)
    if not 0.01 <= largest < 10_000:
        return number
    decimals = 3 if largest < 10 else 1 if largest < 1_000 else 0
    return lambda value: f"{value:.{decimals}f}".replace("-", "−")


def tenths(value: float) -> str:
    """A part in per cent, without its sign."""
    return f"{100 * value:.1f}".replace("-", "−")


def number(value: float | None) -> str:
    """Three significant digits, without an exponent where that is short."""
    if value is None:
        return "–"
    text = f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 10 else f"{value:.3g}"
    return text.replace("-", "−", 1) if value < 0 else text


def percent(value: float | None) -> str:
    """A part as a percentage."""
    return "–" if value is None else f"{tenths(value)} %"


def whole(value: float | None) -> str:
    """A count with separators."""
    return "–" if value is None else f"{value:,.0f}"
