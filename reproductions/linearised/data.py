"""Tables with their splits, standardised by the training rows of each, stacked.

Index legend: K splits, n rows, D features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whence import zoo
from whence.zoo.data.splits import gap

VALIDATION = 0.2  # of the training rows
SYNTHETIC = 120  # rows of a synthetic table


@dataclass(frozen=True)
class Part:
    """Rows of K splits; splits with fewer rows than the longest end in zeros, which nobody reads."""

    x: Tensor  # [K, n, D]
    y: Tensor  # [K, n, 1]
    sizes: tuple[int, ...]

    def of(self, split: int) -> tuple[Tensor, Tensor]:
        size = self.sizes[split]
        return self.x[split, :size], self.y[split, :size]


@dataclass(frozen=True)
class Splits:
    """Training, validation and test rows; without validation rows these are part of the training rows."""

    train: Part
    test: Part
    spread: tuple[float, ...]  # of the targets, in their unit: what one standardised unit is
    validation: Part | None = None

    def __len__(self) -> int:
        return len(self.spread)


def load(name: str, numbers: tuple[int, ...], kind: str, validation: bool) -> Splits:
    """Splits of a table; ``kind`` is "standard" or "gap"."""
    found = [_one(name, number, kind == "gap", VALIDATION if validation else 0.0) for number in numbers]
    train, test = (_stacked([rows[i] for rows, _ in found]) for i in range(2))
    held = _stacked([rows[2] for rows, _ in found]) if validation else None
    return Splits(train, test, tuple(spread for _, spread in found), held)


Rows = tuple[Tensor, Tensor]


def _one(name: str, number: int, in_gap: bool, validation: float) -> tuple[tuple[Rows, Rows, Rows], float]:
    """Training, test and validation rows of one split, and the spread of its targets."""
    if name.startswith("synthetic"):
        return _synthetic(name, number, in_gap, validation)
    data = zoo.load(f"uci/{name}", seed=number, split=number, gap=in_gap, validation=validation, progress=False)
    assert data.train is not None and data.test is not None and data.target_std is not None
    held = data.validation or data.test
    return (data.train.tensors(), data.test.tensors(), held.tensors()), data.target_std


def _synthetic(name: str, number: int, in_gap: bool, validation: float) -> tuple[tuple[Rows, Rows, Rows], float]:
    """A table of four features, without a file; each name has its own noise."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SYNTHETIC, 4, generator=generator)
    noise = 0.1 * float(name.removeprefix("synthetic-"))
    y = x[:, :1].sin() + 0.5 * x[:, 1:2] * x[:, 2:3] + noise * torch.randn(SYNTHETIC, 1, generator=generator)
    if in_gap:
        train, test = (torch.from_numpy(rows) for rows in gap(x[:, number].numpy()))
    else:
        order = torch.randperm(SYNTHETIC, generator=torch.Generator().manual_seed(number))
        train, test = order[SYNTHETIC // 10 :], order[: SYNTHETIC // 10]
    train = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(number))]
    count = round(validation * len(train))
    held, train = train[:count], train[count:]
    means, stds = (x[train].mean(0), y[train].mean(0)), (x[train].std(0), y[train].std(0))
    x, y = (x - means[0]) / stds[0], (y - means[1]) / stds[1]
    return ((x[train], y[train]), (x[test], y[test]), (x[held], y[held])), float(stds[1])


def _stacked(rows: list[Rows]) -> Part:
    sizes = tuple(len(y) for _, y in rows)
    x, y = (torch.zeros(len(rows), max(sizes), *each.shape[1:]) for each in rows[0])
    for k, (own_x, own_y) in enumerate(rows):
        x[k, : sizes[k]], y[k, : sizes[k]] = own_x, own_y
    return Part(x, y, sizes)
