"""The table of known data sets, and finding one in it by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from whence.errors import need, one_of
from whence.zoo.data.catalogue import IMAGES
from whence.zoo.data.description import Description
from whence.zoo.data.download import obtainable
from whence.zoo.data.files import Store
from whence.zoo.data.tables import TABLES

KNOWN: dict[str, Description] = {about.name: about for about in (*IMAGES, *TABLES)}
SMALLER = {"cifar10": "cifar10-subset", "svhn": "svhn-recropped"}  # what there may be instead


def describe(name: str) -> Description:
    """The description of a set, by its name or another name of it, in capitals or not."""
    plain = str(name).strip().lower().replace("_", "-").replace(" ", "-")
    names = {alias.replace("_", "-"): about.name for about in KNOWN.values() for alias in about.aliases}
    return KNOWN[one_of(names.get(plain, plain), KNOWN, "data set")]


@dataclass(frozen=True)
class Sets(Sequence[Description]):
    """Known data sets, and where each was found; prints as a table."""

    rows: tuple[Description, ...]
    found: tuple[str, ...]  # a path, or how the set is had

    @overload
    def __getitem__(self, index: int) -> Description: ...
    @overload
    def __getitem__(self, index: slice) -> Sets: ...
    def __getitem__(self, index: int | slice) -> Description | Sets:
        return Sets(self.rows[index], self.found[index]) if isinstance(index, slice) else self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Description]:
        return iter(self.rows)

    def _cells(self) -> list[dict[str, Any]]:
        return [
            {
                "name": about.name,
                "task": about.task,
                "classes": len(about.classes) or None,
                "shape": about.shape,
                "train": about.train,
                "test": about.test,
                "licence": about.licence,
                "here": found,
            }
            for about, found in zip(self.rows, self.found, strict=True)
        ]

    def to_pandas(self) -> Any:
        """The table as a ``pandas.DataFrame``."""
        return need("pandas", "pandas").DataFrame(self._cells())

    def __repr__(self) -> str:
        head = ["name", "task", "classes", "shape", "train", "test", "licence", "here"]
        table = [head, *([_text(row[key]) for key in head] for row in self._cells())]
        widths = [min(32, max(len(line[i]) for line in table)) for i in range(len(head))]
        lines = []
        for line in table:
            cells = [
                _short(c, w) if i < len(head) - 1 else c for i, (c, w) in enumerate(zip(line, widths, strict=True))
            ]
            right = {2, 4, 5}
            fitted = [
                c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
            ]
            lines.append("  ".join(fitted).rstrip())
        lines.insert(1, "  ".join("─" * width for width in widths))
        return "\n".join(lines)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def datasets(root: str | Path | None = None) -> Sets:
    """All known data sets, with where each was found."""
    rows = tuple(KNOWN.values())
    return Sets(rows, tuple(_found(about, root) for about in rows))


def _found(about: Description, root: str | Path | None) -> str:
    if about.kind == "sklearn":
        return "with scikit-learn"
    if not about.files:
        return "drawn"
    place = Store.of(about, root).where()
    return str(place) if place is not None else "no; can be downloaded" if obtainable(about) else "no"
