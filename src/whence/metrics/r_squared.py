"""R²: the share of the variance of the targets that predictions explain.

Index legend: N scored elements, G groups that are resampled as one, B resamples, K outputs.
"""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from whence.errors import NotDefined
from whence.metrics.elements import ArrayLike, Common, tensor
from whence.metrics.intervals import Estimate, bootstrap
from whence.metrics.regression import read_numbers


def r2(prediction: Any, targets: ArrayLike, **common: Unpack[Common]) -> Estimate:
    """1 − Σ (y − predicted mean)² / Σ (y − mean of y)²: 1 is perfect, 0 what always predicting the mean of y gives.

    Of several outputs, targets (N, K), the mean over them, as in scikit-learn; all elements of others together.
    """
    found, y, members = read_numbers("r2", prediction, targets, common)
    shape = tensor(targets, "targets").shape
    column = members.keep % shape[1] if len(shape) == 2 else torch.zeros_like(members.keep)
    outputs = int(column.max()) + 1
    inside = torch.nn.functional.one_hot(column, outputs).double()  # [N, K]
    total = inside.T @ members.weights
    used = total > 0
    centre = (inside.T @ (members.weights * y))[used] / total[used]
    inside = inside[:, used]
    away = y - inside @ centre  # against cancellation
    parts = [(found.mean - y).square(), away.square(), away, torch.ones_like(y)]
    sums = members.sums(*[inside[:, k] * part for part in parts for k in range(inside.shape[1])])  # [G, 4 K]

    def statistic(counts: Tensor) -> Tensor:
        left, squares, first, number = (counts @ sums).reshape(len(counts), 4, -1).unbind(1)  # [B, K]
        return (1 - left / (squares - first.square() / number)).mean(1)

    if bool(((inside.T @ (members.weights * away.square())) <= 0).any()):
        raise NotDefined("r2 needs targets that differ: all targets of an output are equal.")
    return bootstrap("r2", statistic, members, (-math.inf, 1.0))
