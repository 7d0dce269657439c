"""What is measured of a prediction: curves, distances to HMC, errors. All in the unit of y.

Index legend: N inputs of the grid.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reproductions.ritter2018.toy.problem import Problem
from whence import metrics

REGIONS = ("all", "inside", "outside")


def inputs(problem: Problem) -> Tensor:
    """The grid in the unit of x, [N]."""
    return problem.grid.flatten().cpu() * problem.config.x_scale


def by_region(problem: Problem, values: Tensor) -> dict[str, float]:
    """Means over all inputs, over those among the data, and over those beyond."""
    inside = inputs(problem).abs() <= problem.config.edge + 1e-9
    flat = values.detach().cpu().flatten()
    return {"all": float(flat.mean()), "inside": float(flat[inside].mean()), "outside": float(flat[~inside].mean())}


def curve(problem: Problem, prediction: Any) -> dict[str, list[float]]:
    """Mean and standard deviation of the network's output, without the noise."""
    mean, std = prediction.mean, prediction.epistemic.clamp(min=0).sqrt()
    scale = problem.config.y_scale
    return {"mean": _plain(mean * scale), "std": _plain(std * scale)}


def spread(problem: Problem, prediction: Any) -> dict[str, float]:
    """Mean standard deviation of the network's output, by region."""
    return by_region(problem, prediction.epistemic.clamp(min=0).sqrt() * problem.config.y_scale)


def distances(problem: Problem, prediction: Any, truth: Any) -> dict[str, dict[str, float]]:
    """Between distributions of the target, noise included."""
    moved = metrics.wasserstein(prediction, truth, resamples=0).values * problem.config.y_scale
    varied = metrics.total_variation(prediction, truth, resamples=0).values
    return {"wasserstein": by_region(problem, moved), "total_variation": by_region(problem, varied)}


def gaps(problem: Problem, prediction: Any, truth: Any) -> dict[str, dict[str, float]]:
    """Between means, and between standard deviations, of the network's output."""
    means = (prediction.mean - truth.mean).abs()
    stds = (prediction.epistemic.clamp(min=0).sqrt() - truth.epistemic.sqrt()).abs()
    named = {"mean_gap": means, "std_gap": stds}
    return {name: by_region(problem, values * problem.config.y_scale) for name, values in named.items()}


def errors(problem: Problem, on_grid: Any, on_test: Any) -> dict[str, float]:
    """Root mean square of mean − x³ among the data; log likelihood of fresh points."""
    x = inputs(problem)
    off = on_grid.mean.detach().cpu().flatten() * problem.config.y_scale - x**3
    inside = x.abs() <= problem.config.edge + 1e-9
    nll = float(metrics.nll(on_test, problem.test[1], resamples=0))
    return {
        "rmse": float(off[inside].square().mean().sqrt()),
        "test_nll": nll + float(torch.tensor(problem.config.y_scale).log()),
    }


def _plain(values: Tensor) -> list[float]:
    return [float(v) for v in values.detach().cpu().flatten()]
