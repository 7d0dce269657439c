"""Which sets and splits, how networks are trained, which hyperparameters are tried."""

from __future__ import annotations

from dataclasses import dataclass

SETS = ("australian", "banana", "breast-cancer", "glass", "ionosphere", "vehicle", "waveform", "satellite")
HMC = ("australian", "breast-cancer", "glass", "ionosphere", "vehicle")


@dataclass(frozen=True)
class Config:
    """The seed draws the parts, 70% / 15% / 15%, and everything else."""

    sets: tuple[str, ...] = SETS
    seeds: int = 10
    hidden: int = 50
    members: int = 5
    steps: int = 600
    batch: int = 64
    rate: float = 1e-2
    precisions: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)  # δ of −log p(D) + ½ δ ‖θ‖²
    dropouts: tuple[float, ...] = (0.05, 0.2)
    priors: tuple[float, ...] = (1.0, 10.0)  # precisions, of variational inference
    epochs: int = 60  # of variational inference, from the trained weights
    scales: tuple[float, ...] = (0.3, 1.0, 3.0)  # of SWAG's covariance
    collections: int = 20
    draws: int = 50
    rows: int = 100000  # at most, of the training part
    hmc: tuple[str, ...] = HMC
    hmc_seeds: int = 3
    hmc_warmup: int = 300
    hmc_draws: int = 300


QUICK = Config(
    sets=("two-moons",), seeds=2, hidden=8, members=2, steps=40, batch=32, precisions=(0.1, 1.0), dropouts=(0.1,),
    priors=(1.0,), epochs=2, scales=(1.0,), collections=3, draws=8, rows=100,
    hmc=("two-moons",), hmc_seeds=2, hmc_warmup=10, hmc_draws=10,
)  # fmt: skip


def config(quick: bool) -> Config:
    return QUICK if quick else Config()


def units(config: Config) -> list[str]:
    """``set/seed``: the first split of every set, then the second; and ``hmc/set``."""
    splits = [f"{name}/{seed}" for seed in range(config.seeds) for name in config.sets]
    return [*splits, *(f"hmc/{name}" for name in config.hmc)]
