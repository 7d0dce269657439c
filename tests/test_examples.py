"""Examples are run as they stand."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


OF_A_FILE = {"recompute_verdict.py"}  # tested in auditing/test_recomputed.py
ELSEWHERE = {"timm.md"}  # needs torchvision; run by integrations/test_timm.py where that is there
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in ELSEWHERE)]
ALONE = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name not in OF_A_FILE]


@pytest.mark.parametrize("path", ALONE, ids=lambda p: p.name)
def test_example(path: Path, capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out) > 200


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_code_in_documents(path: Path, tmp_path, monkeypatch) -> None:
    """Python blocks of a page run from its top to its end."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S)
    code = "\n".join(blocks)
    exec(compile(code, str(path), "exec"), {"__name__": "__page__"})
    assert blocks or path.name != "README.md"
