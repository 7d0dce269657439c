from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers, two cores

import shutil

import pytest
import torch

torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        terminalreporter.write_line("browser tests were left out: there is no Chromium on this machine")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
