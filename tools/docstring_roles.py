"""Griffe extension: what docstrings need before they are shown.

Roles such as ``:func:`whence.audit``` become links into the reference, and an entry of several arguments
(``epochs, lr: …``) becomes one entry for each.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

PAGES = Path(__file__).parent.parent / "docs" / "reference"
ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc|obj):`~?([^`]+)`")

SEVERAL = re.compile(r"^    (?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)+):(?P<text>.*\n?(?:^(?: {5,}.*)?\n)*)", flags=re.M)


def documented() -> set[str]:
    """Names that have a heading of their own in the reference."""
    pages = "\n".join(page.read_text() for page in PAGES.glob("*.md"))
    return set(re.findall(r"^##+ `(whence[\w.]*)`", pages, flags=re.M))


class Roles(griffe.Extension):
    """Changes every docstring."""

    def __init__(self) -> None:
        self.names = documented()

    def _linked(self, match: re.Match[str]) -> str:
        name = match[1].removesuffix("()")
        parts = name.split(".")
        for end in range(len(parts), 1, -1):
            if ".".join(parts[:end]) in self.names:
                return f"[`{name}`][{'.'.join(parts[:end])}]"
        return f"`{name}`"

    @staticmethod
    def _apart(match: re.Match[str]) -> str:
        text = match["text"].rstrip("\n") + "\n"
        return "".join(f"    {name}:{text}" for name in match["names"].split(", "))

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            head, args, rest = obj.docstring.value.partition("\nArgs:\n")
            value = head + args + SEVERAL.sub(self._apart, rest + "\n").rstrip("\n")
            obj.docstring.value = ROLE.sub(self._linked, value)
