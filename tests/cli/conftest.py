from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import whence
from tests.cli import fakes

pytest.importorskip("typer")
ROOT = Path(__file__).parents[2]
NET = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.first(x).relu())

def needs(path): return Net()
def breaks(): raise RuntimeError("no such\\nfile")
def words(): return "hello"

class Holder:
    pass

torch.manual_seed(0)
model = Net()
Holder.inner = model
x = torch.randn(96, 4)
y = x[:, :3].argmax(1)
pair = (x[:32], y[:32])
dataset = TensorDataset(x, y)
loader = DataLoader(dataset, batch_size=32, shuffle=True)
held = (x[32:64], y[32:64])
def test(): return DataLoader(dataset, batch_size=16)
strange = 5 * torch.randn(10, 4)
wide = torch.randn(10, 7)
wide_pair = (wide, y[:10])
strings = ["ab", "cd"]
stringly = DataLoader(TensorDataset(x), batch_size=8)
triples = [(x, y, y)]
single = [x, x, x]
short = (x[:5], y[:4])
far = (x, y + 7)
empty = []
def once(): return iter([(x, y)])
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a user's module in it; the audit is a pretended one."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(whence, "audit", fakes.fake_audit)
    fakes.calls.clear()
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


Result = subprocess.CompletedProcess


@pytest.fixture
def whence_process(shop: Path) -> Callable[..., Result]:
    """The command in a process of its own; the user's module brings the pretended audit."""
    (shop / "slow.py").write_text(
        f"import whence\nfrom tests.cli.fakes import fake_audit as audit\nwhence.audit = audit\n{NET}"
    )

    def run(*args: str, **settings: str) -> Result:
        return subprocess.run(
            [sys.executable, "-m", "whence.cli", *args], capture_output=True, text=True, env=environment(**settings)
        )

    return run


def environment(**settings: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
        **settings,
    }
