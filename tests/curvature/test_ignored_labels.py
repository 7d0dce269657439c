"""Labels that do not count are left out by every structure and curvature."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close


@pytest.mark.parametrize(
    "options",
    [
        {"structure": "lowrank", "rank": 23},
        {"structure": "kron", "curvature": "kfra"},
        {"structure": "full", "curvature": "hessian", "prior_precision": 100.0},
    ],
    ids=str,
)
def test_labels_that_do_not_count_are_left_out_by_every_curvature(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 3)).double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    half = torch.where(torch.arange(20) % 2 == 0, y, -100)
    with_ignored = whence.laplace(model, (x, half), likelihood="classification", **options)
    without = whence.laplace(model, (x[::2], y[::2]), likelihood="classification", **options)
    assert with_ignored.record.data_size == 10
    assert_close(with_ignored.covariance(), without.covariance(), 1e-8)


def mlp(inputs: int = 3, outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


def classes(count: int = 24) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3), torch.arange(count) % 2


@pytest.mark.parametrize("structure", ["kron", "ekfac", "full", "diag"])
def test_ignored_examples_do_not_count(structure: str) -> None:
    model, (x, y) = mlp().double(), classes()
    x = x.double()
    masked = y.clone()
    masked[::3] = -100
    keep = masked != -100
    one = whence.laplace(model, (x, masked), likelihood="classification", structure=structure)
    other = whence.laplace(model, (x[keep], y[keep]), likelihood="classification", structure=structure)
    assert_close(one.covariance(), other.covariance(), 1e-7)
    assert one.record.data_size == int(keep.sum())
    with pytest.raises(whence.errors.BadData, match="ignore_index"):
        whence.laplace(model, (x, torch.full_like(y, -100)), likelihood="classification")
