"""Tables of named columns: printed as text, or as a ``pandas.DataFrame``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from whence.errors import need, one_of

PRINTED = 40  # rows


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

    def __str__(self) -> str:
        printed = [[number(v) for v in row.values()] for row, _ in zip(self.rows(), range(PRINTED), strict=False)]
        more = f"\n… {len(self) - PRINTED:,} more rows" if len(self) > PRINTED else ""
        return text(list(self.columns), printed) + more + (f"\n{self.note}" if self.note else "")

    __repr__ = __str__


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
