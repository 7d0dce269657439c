from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers, two cores

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
