"""Where the peers live: ``.bench/venv``, made once, or a folder that goes to a machine without pip."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / ".bench"
VENV = BENCH / "venv"

# asdfghjkl installs the module asdl, which laplace-torch's third backend imports.
PEERS = [
    "laplace-torch==0.3",
    "asdfghjkl==0.1a4",
    "backpack-for-pytorch==1.7.1",
    "curvlinops-for-pytorch==3.0.1",
    "bayesian-torch==0.5.0",
    "blitz-bayesian-pytorch==0.2.8",
    "posteriors==0.1.3",
]
# What the peers import. Those that would ask for another torch build (or torchvision, which some name but nothing
# here imports) come without their own dependencies.
PLAIN = ["numpy", "scipy", "tqdm", "safetensors", "packaging", "einops", "opt_einsum"]
BARE = [
    "einconv", "unfoldNd", "linear_operator", "jaxtyping", "wadler_lindig", "torchmetrics", "lightning-utilities",
    "torchopt", "optree", "tensordict", "pyvers", "orjson", "cloudpickle", "importlib_metadata", "zipp", "graphviz",
]  # fmt: skip
UNUSED = ("tests", "__pycache__", "examples", "docs")


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
    """The environment's python; installs what is missing if it was made from another list."""
    python = VENV / "bin" / "python"
    stamp = VENV / ".installed"
    key = hashlib.sha256(repr((steps(), (ROOT / "constraints.txt").read_text())).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == key:
        return python
    print("Setting up .bench/venv (once)", flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    for arguments in steps():
        _pip(python, arguments)
    stamp.write_text(key)
    return python


def make_peers(folder: Path, version: str) -> None:
    """The peers and what they import beside torch and numpy, for Python ``version``, in a folder for PYTHONPATH."""
    platforms = ["manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"]
    target = ["--no-deps", "--upgrade", "--target", str(folder), "--python-version", version, "--implementation", "cp"]
    target += ["--only-binary=:all:", *(part for name in platforms for part in ("--platform", name))]
    light = [name for name in PLAIN if name not in ("numpy", "scipy")]
    _pip(Path(sys.executable), [*target, *light, *BARE, *PEERS])
    for path in [path for name in UNUSED for path in folder.rglob(name) if path.is_dir()]:
        shutil.rmtree(path, ignore_errors=True)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    print(f"{folder}: {size / 2**20:.1f} MB for Python {version}")


def _pip(python: Path, arguments: list[str]) -> None:
    done = subprocess.run([python, "-m", "pip", "install", "-q", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"pip install {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")


def versions() -> dict[str, str]:
    """The peers' versions by name."""
    return dict(peer.split("==") for peer in PEERS)  # type: ignore[misc]
