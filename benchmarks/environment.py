"""The environment that every contender runs in: ``.bench/venv``, made once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / ".bench"
VENV = BENCH / "venv"

PEERS = ["laplace-torch==0.3", "asdfghjkl==0.1a4", "backpack-for-pytorch==1.7.1", "curvlinops-for-pytorch==3.0.1"]
# What the peers import. Those that would ask for another torch build (or torchvision, which laplace-torch names
# but never imports) come without their own dependencies.
PLAIN = ["numpy", "scipy", "tqdm", "safetensors", "packaging", "einops", "opt_einsum"]
BARE = ["einconv", "unfoldNd", "linear_operator", "jaxtyping", "wadler_lindig", "torchmetrics", "lightning-utilities"]


def steps() -> list[list[str]]:
    """Arguments of each ``pip install``."""
    constraints = ["-c", str(ROOT / "constraints.txt")]
    return [
        [*constraints, "torch"],
        [*constraints, *PLAIN],
        ["--no-deps", *BARE, *PEERS],
        ["--no-deps", "-e", str(ROOT)],
    ]


def interpreter() -> Path:
    """The environment's python; builds the environment if it is missing or was built from another list."""
    python = VENV / "bin" / "python"
    stamp = VENV / ".installed"
    key = hashlib.sha256(repr((steps(), (ROOT / "constraints.txt").read_text())).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == key:
        return python
    print("Setting up .bench/venv (once)", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    for arguments in steps():
        _pip(python, arguments)
    stamp.write_text(key)
    return python


def _pip(python: Path, arguments: list[str]) -> None:
    done = subprocess.run([python, "-m", "pip", "install", "-q", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"pip install {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
