"""Scores of a prediction, in the unit of the target."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reproductions.store import Values
from whence import metrics

SEEN = 300  # training inputs whose predicted deviation stands beside that of test inputs


def scored(predict: Callable[[Tensor], Any], test: tuple[Tensor, Tensor], seen: Tensor, spread: float) -> Values:
    """Of test rows; ``widening`` is the mean predicted deviation there over that for training inputs."""
    x, y = test
    with torch.no_grad():
        prediction, known = predict(x), predict(seen[:SEEN])
    score = partial(_score, prediction, y)
    return {
        "nll": score(metrics.nll) + math.log(spread), "rmse": score(metrics.rmse) * spread,
        "crps": score(metrics.crps) * spread, "coverage": score(metrics.coverage),
        "widening": float(prediction.std.mean() / known.std.mean()),
    }  # fmt: skip


def _score(prediction: Any, y: Tensor, metric: Callable[..., Any]) -> float:
    return float(metric(prediction, y, resamples=0))
