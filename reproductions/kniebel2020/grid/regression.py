"""What explains the place of the uncertainty: a regression over all networks, with a bootstrap by cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from reproductions.claims import Interval
from reproductions.kniebel2020.grid.numbers import KNOWN, Cells, deeper
from reproductions.kniebel2020.stability import CONDITIONS, Condition, Get, Stable
from reproductions.store import Values

RESAMPLES = 1000
NUMBERS = ("depth", "width", "data size", "batch norm", "weight decay", "training length")
RIDGE = 1e-6  # factors that a resample does not vary are set to 0
SMALLEST_DECAY = 1e-5


@dataclass(frozen=True)
class Regression:
    """Coefficients by predictor, with their intervals over resampled cells; and R²."""

    coefficients: dict[str, Interval]
    determined: Interval
    networks: int
    cells: int


def predictors(name: str, network: Values) -> dict[str, float]:
    """Logarithms to base 2 of numbers; so a coefficient is what a doubling does."""
    cell = KNOWN[name]
    settings = cell.settings
    kinds = [layer["kind"] for layer in network["network"]["layers"]]
    return {
        "depth": math.log2(network["network"]["depth"]),
        "width": math.log2(network["network"]["width"]),
        "data size": math.log2(cell.train),
        "batch norm": float(any("BatchNorm" in kind for kind in kinds)),
        "weight decay": math.log2(max(settings["weight_decay"], SMALLEST_DECAY)),
        "training length": math.log2(settings["epochs"]),
    }


def regress(cells: Cells, get: Get, condition: Condition, seed: int = 0, resamples: int = RESAMPLES) -> Regression:
    """The figure of every network on the numbers and on the data set."""
    cells = deeper(cells)
    sets = sorted({KNOWN[name].data for name in cells})[1:]  # the first one is the base
    rows = {name: [_row(name, network, sets) for network in networks] for name, networks in cells.items()}
    values = {name: [get(network, condition) for network in networks] for name, networks in cells.items()}
    names = list(cells)
    whole = _fit(names, rows, values)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(names), (resamples, len(names)), generator=generator).tolist()
    found = torch.stack([_fit([names[i] for i in which], rows, values) for which in drawn])
    low, high = (torch.quantile(found, q, 0) for q in (0.025, 0.975))
    both = (*NUMBERS, *(f"data set: {s}" for s in sets), "R²")
    every = {n: Interval(*map(float, v)) for n, *v in zip(both, whole, low, high, strict=True)}
    return Regression(every, every.pop("R²"), sum(map(len, values.values())), len(names))


def _row(name: str, network: Values, sets: Sequence[str]) -> list[float]:
    found = predictors(name, network)
    return [*(found[n] for n in NUMBERS), *(float(KNOWN[name].data == s) for s in sets)]


def _fit(names: Sequence[str], rows: dict[str, list[list[float]]], values: dict[str, list[float]]) -> Tensor:
    """Coefficients and R², [K + 1]."""
    x = torch.tensor([row for name in names for row in rows[name]], dtype=torch.float64)
    y = torch.tensor([value for name in names for value in values[name]], dtype=torch.float64)
    x, y = x - x.mean(0), y - y.mean()
    beta = torch.linalg.solve(x.T @ x + RIDGE * len(x) * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)
    left = (y - x @ beta).square().sum() / y.square().sum().clamp(min=1e-300)
    return torch.cat([beta, (1 - left).reshape(1)])


def everywhere(cells: Cells, get: Get) -> dict[str, Stable]:
    """Every predictor under all conditions."""
    found = {condition: regress(cells, get, condition).coefficients for condition in CONDITIONS}
    names = next(iter(found.values()))
    return {name: Stable({condition: found[condition][name] for condition in CONDITIONS}) for name in names}


def mean_of(networks: Sequence[Values], get: Get, condition: Condition) -> float:
    return fmean(get(network, condition) for network in networks)
