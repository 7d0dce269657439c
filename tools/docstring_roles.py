"""Griffe extension: roles such as ``:func:`whence.audit``` of docstrings become links into the reference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

PAGES = Path(__file__).parent.parent / "docs" / "reference"
ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc|obj):`~?([^`]+)`")


def documented() -> set[str]:
    """Names that have a heading of their own in the reference."""
    pages = "\n".join(page.read_text() for page in PAGES.glob("*.md"))
    return set(re.findall(r"^##+ `(whence[\w.]*)`", pages, flags=re.M))


class Roles(griffe.Extension):
    """Replaces roles in every docstring."""

    def __init__(self) -> None:
        self.names = documented()

    def _linked(self, match: re.Match[str]) -> str:
        name = match[1].removesuffix("()")
        parts = name.split(".")
        for end in range(len(parts), 1, -1):
            if ".".join(parts[:end]) in self.names:
                return f"[`{name}`][{'.'.join(parts[:end])}]"
        return f"`{name}`"

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(self._linked, obj.docstring.value)
