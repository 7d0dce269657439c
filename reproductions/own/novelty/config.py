"""Which networks; they are those of the comparison of priors."""

from __future__ import annotations

from dataclasses import dataclass, field

from reproductions.own.priors.config import QUICK as QUICK_PRIORS
from reproductions.own.priors.config import Config as Priors


@dataclass(frozen=True)
class Config:
    networks: tuple[str, ...] = ("mlp", "lenet5", "batch-norm", "transformer", "wrn")
    seeds: tuple[int, ...] = (0, 1, 2)
    inputs: int = 2_000  # of each set at most
    priors: Priors = field(default_factory=Priors)


def config(quick: bool) -> Config:
    return Config(("mlp",), (0, 1), 60, QUICK_PRIORS) if quick else Config()


def units(config: Config) -> list[str]:
    """``network/seed``."""
    return [f"{network}/{seed}" for network in config.networks for seed in config.seeds]
