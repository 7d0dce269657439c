"""What the tests of tracking share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whence
from whence.extras.tracking.records import TrackRecord

COLUMNS = ("std", "identified", "effective_parameters", "signal_to_noise")
SHARES = ("variance_share", "prior_share", "explained")


def two_classes(size: int = 200) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] + x[:, 1] ** 2 > 1).long()


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))


def unquiet() -> nn.Sequential:
    """What a recording could disturb: batch-norm statistics, dropout, spectral norm's vectors, frozen weights."""
    net = nn.Sequential(
        nn.Linear(4, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
        nn.ReLU(),
        nn.Linear(8, 2),
    )
    net[0].weight.requires_grad_(False)
    return net


def train_step(net: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimiser.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimiser.step()


def same_as(tracked: TrackRecord, posterior: whence.Laplace, probe: Any) -> None:
    rows = posterior.where(probe).layers
    assert [r.name for r in rows] == [t.name for t in tracked.layers]
    for row, layer in zip(rows, tracked.layers, strict=True):
        assert (layer.kind, layer.parameters) == (row.kind, row.parameters)
        for name in COLUMNS + SHARES:
            assert getattr(layer, name) == pytest.approx(getattr(row, name), rel=1e-4, abs=1e-6), (row.name, name)
    record = posterior.record
    assert tracked.loss == pytest.approx(record.loss / record.data_size)
    assert tracked.accuracy == record.accuracy
