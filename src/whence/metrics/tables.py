"""Tables for people: as text and as data frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whence.errors import need


def frame(columns: dict[str, Any]) -> Any:
    """A ``pandas.DataFrame`` of the columns."""
    return need("pandas", "pandas").DataFrame(columns)


def text(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Aligned columns under a rule; the first ``left`` to the left, the others to the right."""
    table = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    lines = []
    for line in table:
        cells = [c.rjust(w) if i >= left else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("─" * w for w in widths))
    return "\n".join(lines)
