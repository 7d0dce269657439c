"""The checkpoint of a fit: what is removed with it, and which loaders have another order in each pass."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from whence.engine.stages import FitCheckpoint, reorders


def setting() -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    return model, x, torch.randint(0, 3, (12,), generator=generator)


def test_what_killed_processes_left_goes_with_the_checkpoint(tmp_path: Path) -> None:
    file = FitCheckpoint(tmp_path / "fit")
    left, other = tmp_path / ".fit.ab12cd34.part", tmp_path / ".fit.rank0-of-2.ab12cd34.part"
    for path in (file.path, left, other):
        path.touch()
    file.remove()
    assert list(tmp_path.iterdir()) == [other]


def test_which_loaders_have_another_order_in_each_pass() -> None:
    _, x, y = setting()
    data = TensorDataset(x, y)
    assert not reorders(DataLoader(data)) and not reorders([(x, y)])
    assert reorders(DataLoader(data, shuffle=True))
    assert reorders(DataLoader(data, generator=torch.Generator()))
    assert reorders(DataLoader(data, sampler=torch.utils.data.WeightedRandomSampler([1.0] * 12, 12)))
