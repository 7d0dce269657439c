"""Which networks are looked into, and with how much data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from reproductions.ritter2018 import mnist
from reproductions.ritter2018.wrn.config import Config as Wrn
from reproductions.ritter2018.wrn.config import config as wrn_config


@dataclass(frozen=True)
class Config:
    """The MNIST networks of ``ood`` and the wide residual networks of ``wrn``, one by one."""

    mnist: mnist.Setup = field(default_factory=mnist.Setup)
    wrn: Wrn = field(default_factory=lambda: wrn_config(False))
    tau: float = 1.0  # of the relative prior, the same for all networks and seeds
    taus: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0)  # that are shown beside it
    examples: int = 10_000  # of test and novel inputs
    profiled: int = 1_000  # inputs behind shares and answers
    wrn_examples: int = 1_000
    wrn_profiled: int = 200


def config(quick: bool) -> Config:
    if not quick:
        return Config()
    small = replace(wrn_config(True), dropouts=(0.0,))
    return Config(mnist.QUICK, small, examples=100, profiled=30, wrn_examples=100, wrn_profiled=10)


def units(config: Config) -> list[str]:
    """``network/seed``."""
    found = [f"mnist/{seed}" for seed in config.mnist.seeds]
    return found + [f"wrn{'-dropout' if p else ''}/{seed}" for seed in config.wrn.seeds for p in config.wrn.dropouts]
