"""The way through the house: imports go one way, rooms stay small, the front door is quick."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "whence"
ORDER = [
    "errors", "_version", "engine", "randomness", "checks", "batches", "sharded", "copies", "labels", "functional",
    "likelihoods", "linalg", "replay", "curvature", "priors", "predictive", "posteriors", "metrics", "robustness",
    "where", "io", "auditing", "report", "zoo", "cli",
]  # fmt: skip
# The one place where two rooms share a wall: projections are of blocks' Gaussians.
ALLOWED = {("predictive", "posteriors")}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def top_level_imports(path: Path) -> list[str]:
    found = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("whence"):
            parts = (node.module or "").split(".")
            found += [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way_and_files_stay_small(path: Path) -> None:
    assert path.read_text().count("\n") <= 400, "a room this large wants a wall"
    mine = room(path)
    if mine == "__init__":
        return
    for other in top_level_imports(path):
        if other != mine and (mine, other) not in ALLOWED:
            assert ORDER.index(other) < ORDER.index(mine), f"{mine} must not import {other}"


def test_import_is_light() -> None:
    """Nothing heavy beside torch itself is imported with whence."""
    code = (
        "import sys, whence; print(sorted(m for m in ('pandas', 'sklearn', 'scipy', 'matplotlib') if m in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
