"""Which networks, by which methods; lists of choices are tried, and validation data choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reproductions.bayesian_cnn.subjects import CELLS, QUICK, Cell

METHODS = ("plain", "dropout", "bayesian", "described", "zero")
# The prior precision and the weight of the KL.
OURS: tuple[dict[str, Any], ...] = (
    {"prior_precision": 10.0, "kl_weight": 1.0},
    {"prior_precision": 100.0, "kl_weight": 1.0},
    {"prior_precision": 10.0, "kl_weight": 0.1},
)
# As the slides describe it: the learning rate of Adam is not said.
THEIRS: tuple[dict[str, Any], ...] = ({"lr": 1e-3, "lr_std": 1e-3}, {"lr": 4e-3, "lr_std": 4e-3})


@dataclass(frozen=True)
class Config:
    """All methods on all cells; their networks have softplus activations, which the VGG of the zoo lacks."""

    cells: tuple[Cell, ...]
    methods: tuple[str, ...] = METHODS
    without_softplus: tuple[str, ...] = ("cifar-vgg11",)
    dropout: tuple[float, ...] = (0.1, 0.3)
    ours: tuple[dict[str, Any], ...] = OURS
    theirs: tuple[dict[str, Any], ...] = THEIRS
    prior_std: float = 0.1  # σ_p of the described objective
    draws: int = 30  # of a prediction

    def methods_of(self, cell: Cell) -> tuple[str, ...]:
        return tuple(m for m in self.methods if m[:4] not in ("desc", "zero") or cell.name not in self.without_softplus)


def config(quick: bool) -> Config:
    if quick:
        return Config(QUICK, dropout=(0.1,), ours=OURS[:1], theirs=THEIRS[1:], draws=10)
    return Config(tuple(CELLS.values()))


def units(config: Config) -> list[str]:
    """``cell/method/seed``."""
    return [f"{c.name}/{m}/{s}" for c in config.cells for m in config.methods_of(c) for s in c.seeds]
