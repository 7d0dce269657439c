"""Which cells, which methods, and how long each is fitted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from reproductions.kniebel2020.cells import Cell, named
from reproductions.kniebel2020.grid.config import DIGITS, IRIS
from reproductions.kniebel2020.stability import FACTORS

REFERENCE = ("iris-perceptron", "iris-mlp-1")  # with Hamiltonian Monte Carlo


@dataclass(frozen=True)
class Config:
    """``precisions`` are tried for the prior; validation data choose one, the same for every method and weight."""

    cells: tuple[Cell, ...]
    reference: tuple[str, ...] = REFERENCE
    factors: tuple[str, ...] = FACTORS  # on that precision
    precisions: tuple[float, ...] = (0.1, 1.0, 10.0)
    members: int = 5
    dropout: float = 0.1
    draws: int = 100
    compared: int = 500  # test inputs
    drawn: int = 20  # networks behind the disagreement of layers
    variational: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-3, "lr_std": 1e-2, "initial_std": 0.02})
    passes: dict[str, int] = field(default_factory=lambda: {"table": 300, "images": 20})  # of variational inference
    swag: dict[str, Any] = field(default_factory=lambda: {"epochs": 20, "lr": 0.05})
    hmc: dict[str, int] = field(default_factory=lambda: {"chains": 4, "num_samples": 500, "warmup": 500})


def config(quick: bool) -> Config:
    if quick:
        iris = replace(IRIS, name="iris-mlp-1", network="mlp", options={"hidden": (4,)}, novel=0)
        cells = (replace(IRIS, novel=0), iris, replace(DIGITS, novel=0))
        return Config(
            cells, ("iris-perceptron",), ("1",), (1.0,), members=2, draws=8, compared=20, drawn=3,
            passes={"table": 4, "images": 2}, swag={"epochs": 2}, hmc={"chains": 2, "num_samples": 20, "warmup": 20},
        )  # fmt: skip
    names = (*REFERENCE, "iris-mlp-2", "mnist-mlp-2", "mnist-lenet5", "fashion-lenet5", "kmnist-mlp-2")
    return Config(tuple(replace(named(name), novel=0) for name in names))


def units(config: Config) -> list[str]:
    """``cell/seed/factor``."""
    return [f"{cell.name}/{seed}/{factor}" for cell in config.cells for seed in cell.seeds for factor in config.factors]
