"""Runs the Python blocks of a page about an integration, from its top to its end."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent.parent.parent / "docs" / "integrations"


def run_page(name: str, folder: Path, monkeypatch: Any) -> dict[str, Any]:
    """The names that the page has defined."""
    monkeypatch.chdir(folder)
    path = PAGES / f"{name}.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S))
    found: dict[str, Any] = {"__name__": "__page__"}
    exec(compile(code, str(path), "exec"), found)
    return found
