"""A table: named columns of equal length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from whence.errors import need, one_of
from whence.metrics.tables import text

SHOWN = 40  # rows that are printed


class Table(Mapping[str, Any]):
    """Columns by name, in order: lists or tensors of equal length. Prints as text; ``to_pandas`` for the rest."""

    def __init__(self, columns: Mapping[str, Any], note: str = "") -> None:
        sizes = {len(values) for values in columns.values()}
        assert len(sizes) == 1, f"columns of different lengths: {sizes}"
        self.columns, self.note = dict(columns), note

    def __getitem__(self, name: str) -> Any:
        return self.columns[one_of(name, self.columns, "column")]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One mapping for each row, of plain values."""
        plain = {name: _plain(values) for name, values in self.columns.items()}
        for values in zip(*plain.values(), strict=True):
            yield dict(zip(plain, values, strict=True))

    def top(self, column: str, count: int = 10, largest: bool = True) -> Table:
        """The rows with the largest (or smallest) values of a column."""
        order = torch.as_tensor(self[column]).argsort(descending=largest)[:count].tolist()
        plain = {name: _plain(values) for name, values in self.columns.items()}
        return Table({name: [values[i] for i in order] for name, values in plain.items()}, self.note)

    def to_dict(self) -> dict[str, list[Any]]:
        return {name: _plain(values) for name, values in self.columns.items()}

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with the same columns."""
        return need("pandas", "pandas").DataFrame(self.to_dict())

    def __str__(self) -> str:
        shown = [[number(v) for v in row.values()] for row, _ in zip(self.rows(), range(SHOWN), strict=False)]
        more = f"\n… {len(self) - SHOWN:,} more rows" if len(self) > SHOWN else ""
        return text(list(self.columns), shown) + more + (f"\n{self.note}" if self.note else "")

    __repr__ = __str__


def number(value: Any) -> str:
    """A value as tables show it."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _plain(values: Any) -> list[Any]:
    return values.tolist() if isinstance(values, Tensor) else list(values)
