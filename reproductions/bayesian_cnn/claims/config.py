"""Fractions of the training data; every network takes about as many steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reproductions.bayesian_cnn.subjects import CELLS, QUICK, Cell


@dataclass(frozen=True)
class Config:
    """From scratch, plain ELBO; validation data choose the prior. Epochs of a fraction f: those of all data / f, at
    most ``most_epochs``."""

    cells: tuple[Cell, ...]
    fractions: tuple[float, ...] = (0.01, 0.1, 1.0)
    priors: tuple[float, ...] = (10.0, 100.0)
    most_epochs: int = 400
    batch: int = 64
    probe: int = 1000  # test inputs on which uncertainties are measured at the end
    watched: int = 200  # … after each epoch
    draws: int = 50
    initial_std: float = 0.05
    rates: tuple[tuple[str, float], ...] = (("lr", 2e-3), ("lr_std", 1e-2))

    def epochs(self, cell: Cell, fraction: float) -> int:
        return min(round(cell.epochs / fraction), self.most_epochs)


def config(quick: bool) -> Config:
    if quick:
        return Config(QUICK, (0.2, 1.0), (10.0,), most_epochs=6, probe=100, watched=50, draws=10)
    cells = (replace(CELLS["mnist-lenet5"], epochs=8), replace(CELLS["cifar-lenet5"], epochs=20))
    return Config(cells)


def units(config: Config) -> list[str]:
    """``cell, fraction/seed``."""
    return [f"{c.name}, {label(f)}/{s}" for c in config.cells for f in config.fractions for s in c.seeds]


def label(fraction: float) -> str:
    return f"{100 * fraction:g}%"
