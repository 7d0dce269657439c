"""Which networks are pruned, and how far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from reproductions.kniebel2020.cells import Cell, named
from reproductions.kniebel2020.grid.config import DIGITS


@dataclass(frozen=True)
class Config:
    """Fractions of weights and of units; whole layers one after another."""

    cells: tuple[Cell, ...]
    weights: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
    units: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    random: int = 3  # orders at random
    variational: dict[str, Any] = field(default_factory=lambda: {"epochs": 10, "lr": 1e-3, "lr_std": 1e-2})
    kl_weights: tuple[float, ...] = (1.0, 0.1, 0.01)  # of the divergence from the prior; validation data choose
    without_variational: tuple[str, ...] = ("cifar-wrn16-4",)


NAMES = (
    "iris-mlp-2", "mnist-mlp-2", "mnist-lenet5", "fashion-mlp-2", "fashion-cnn-bn", "kmnist-lenet5",
    "mnist-transformer", "cifar-cnn-bn", "cifar-wrn16-4",
)  # fmt: skip


def config(quick: bool) -> Config:
    if not quick:
        return Config(tuple(replace(named(name), novel=0) for name in NAMES))
    attention = replace(
        DIGITS, name="digits-transformer", network="transformer", training="attention", novel=0,
        options={"patch": 4, "units": 8, "heads": 2, "depth": 1},
    )  # fmt: skip
    few = {"weights": (0.5, 0.9), "units": (0.3, 0.6), "random": 1, "kl_weights": (1.0, 0.1)}
    return Config((replace(DIGITS, novel=0), attention), variational={"epochs": 1}, **few)  # type: ignore[arg-type]


def units(config: Config) -> list[str]:
    """``cell/seed``."""
    return [f"{cell.name}/{seed}" for cell in config.cells for seed in cell.seeds]
