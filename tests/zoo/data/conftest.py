from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No file of the user's is found, and none is written to."""
    monkeypatch.delenv("WHENCE_DATA", raising=False)
    monkeypatch.setenv("WHENCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
