"""Which networks are pruned, from which training, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reproductions.bayesian_cnn.subjects import CELLS, QUICK, Cell

SOURCES = ("plain", "l1", "bayesian", "bayesian, l1", "half")
NAMES = ("mnist-lenet5", "fashion-lenet5", "cifar-lenet5", "cifar-alexnet", "cifar-vgg11")


@dataclass(frozen=True)
class Config:
    """Fractions of all weights; of an L1 penalty λ validation data choose the least loss with 90% pruned."""

    cells: tuple[Cell, ...]
    fractions: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
    l1: tuple[float, ...] = (1e-5, 3e-5, 1e-4)
    ours: tuple[dict[str, Any], ...] = ({"prior_precision": 10.0}, {"prior_precision": 10.0, "kl_weight": 0.1})
    judged: float = 0.9
    sources: tuple[str, ...] = SOURCES


def config(quick: bool) -> Config:
    if quick:
        return Config(QUICK, (0.0, 0.5, 0.9), (1e-4,), ({"prior_precision": 10.0},))
    return Config(tuple(CELLS[name] for name in NAMES))


def units(config: Config) -> list[str]:
    """``cell/source/seed``."""
    return [f"{c.name}/{source}/{s}" for c in config.cells for source in config.sources for s in c.seeds]
