import pytest
import torch


@pytest.fixture(autouse=True)
def _quiet() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
