"""Tables of named columns: printed as text, or as a ``pandas.DataFrame``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from html import escape
from typing import Any

import torch
from torch import Tensor

from whence.errors import need, one_of

PRINTED = 40  # rows
SHORT = 12  # rows of a repr, and in a notebook


class Table(Mapping[str, Any]):
    """Columns by name, in order: lists or tensors of equal length."""

    def __init__(self, columns: Mapping[str, Any], note: str = "") -> None:
        lengths = {len(values) for values in columns.values()}
        assert len(lengths) == 1, f"columns of different lengths: {lengths}"
        self.columns, self.note = dict(columns), note

    @classmethod
    def of_rows(cls, row_type: Any, rows: Sequence[Any]) -> Table:
        """One column for each field of a dataclass."""
        return cls({f.name: [getattr(row, f.name) for row in rows] for f in fields(row_type)})

    def filled(self) -> Table:
        """Without columns that are None or "" in every row."""
        kept = {name: v for name, v in self.columns.items() if not len(v) or any(x not in (None, "") for x in v)}
        return Table(kept, self.note)

    def __getitem__(self, name: str) -> Any:
        return self.columns[one_of(name, self.columns, "column")]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One mapping per row, with plain Python values."""
        columns = self.to_dict()
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))

    def top(self, column: str, count: int = 10, largest: bool = True) -> Table:
        """The rows with the largest (or smallest) values of a column."""
        order = torch.as_tensor(self[column]).argsort(descending=largest)[:count].tolist()
        return Table({name: [values[i] for i in order] for name, values in self.to_dict().items()}, self.note)

    def to_dict(self) -> dict[str, list[Any]]:
        """Lists of plain Python values."""
        return {name: v.tolist() if isinstance(v, Tensor) else list(v) for name, v in self.columns.items()}

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with the same columns."""
        return need("pandas", "pandas").DataFrame(self.to_dict())

    def cells(self, most: int) -> list[list[str]]:
        """The first rows as text, without reading the others."""
        few = {name: values[:most] for name, values in self.columns.items()}
        return [[number(v) for v in row.values()] for row in Table(few).rows()]

    def _text(self, most: int) -> str:
        more = f"\n… {len(self) - most:,} more rows" if len(self) > most else ""
        return text(list(self.columns), self.cells(most)) + more + (f"\n{self.note}" if self.note else "")

    def __str__(self) -> str:
        return self._text(PRINTED)

    def __repr__(self) -> str:
        return self._text(SHORT)

    def _repr_html_(self) -> str:
        return html_of(self)


def html(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str = "",
    note: str = "",
    left: int = 1,
    more: int = 0,
    bold: Callable[[int, int], bool] = lambda row, column: False,
) -> str:
    """A small table for notebooks. It has no colours of its own, so that it is readable in light and dark ones.

    The first ``left`` columns are aligned left, the others right; ``more`` rows are not shown; ``bold`` says which
    cells are.
    """

    def cell(tag: str, value: str, column: int, heavy: bool = False) -> str:
        side = "left" if column < left else "right"
        inner = f"<b>{escape(value)}</b>" if heavy else escape(value)
        return f'<{tag} style="text-align:{side};padding:0.1em 0.6em">{inner}</{tag}>'

    body = "".join(
        f"<tr>{''.join(cell('td', value, c, bold(r, c)) for c, value in enumerate(row))}</tr>"
        for r, row in enumerate(rows)
    )
    names = "".join(cell("th", name, c) for c, name in enumerate(head))
    table = f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    rest = f"… {more:,} more row{'s' * (more > 1)}" if more > 0 else ""
    parts = (paragraph(title), table, paragraph(rest), paragraph(note))
    return f"<div>{''.join(parts)}</div>"


def html_of(table: Table, title: str = "", left: int = 1) -> str:
    """The first rows of a table for notebooks."""
    cells = table.cells(SHORT)
    return html(list(table), cells, title, table.note, left, more=len(table) - SHORT)


def paragraph(words: str) -> str:
    """Words as HTML, line by line; nothing where there are none."""
    return f"<p>{escape(words).replace(chr(10), '<br>')}</p>" if words else ""


def number(value: Any) -> str:
    """A value as text for a table."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def text(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligned columns under a rule; the first ``left`` columns are aligned left, the others right."""
    table = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    lines = []
    for line in table:
        cells = [c.rjust(w) if i >= left else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("─" * w for w in widths))
    return "\n".join(lines)
