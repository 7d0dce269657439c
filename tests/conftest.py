from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers, two cores
# Some virtual machines announce AMX, but its instructions raise SIGILL there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import gc
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from whence.engine.memory import with_sizes

torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        terminalreporter.write_line("browser tests were left out: there is no Chromium on this machine")


class ByFile(LoadScopeScheduling):
    """Each file to one worker, as ``--dist loadfile``; and all of auditing, whose files ask about the same audits."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "tests/auditing" if file.startswith("tests/auditing/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(autouse=True, scope="module")
def _collected() -> None:
    """Leave modules, collected tests and what was cached out of later collections of garbage: 0.4 s each, and more."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def set_sizes() -> Iterator[Callable[..., None]]:
    """Sets sizes of :class:`whence.engine.memory.Sizes` until the test ends."""
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(with_sizes(**changes))
