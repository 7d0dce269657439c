"""Which networks are Bayesian; lists are choices, of which the FID to validation images takes one."""

from __future__ import annotations

from dataclasses import dataclass

from reproductions.bayesian_cnn.subjects import CELLS, QUICK, Cell

KINDS = ("plain", "noise", "generator", "discriminator", "both")


@dataclass(frozen=True)
class Config:
    """A small DCGAN; ``judge`` is the classifier whose features measure the samples."""

    judge: Cell
    kinds: tuple[str, ...] = KINDS
    seeds: tuple[int, ...] = (0, 1, 2)
    latent: int = 32
    width: int = 32  # filters of the layer next to the images
    steps: int = 6000
    batch: int = 64
    rates: tuple[float, ...] = (2e-4, 5e-4)  # of Adam, for every kind
    kl_weight: float = 1.0
    initial_std: float = 0.02
    prior_precision: float = 100.0
    noise: float = 0.1  # standard deviation relative to a layer's output, of the control
    samples: int = 5000
    compared: int = 2000  # of precision and recall
    draws: int = 20  # of the discriminator
    shown: int = 16  # samples kept of the first seed


def config(quick: bool) -> Config:
    if quick:
        return Config(QUICK[0], seeds=(0, 1), latent=8, width=4, steps=20, batch=32, rates=(5e-4,), samples=100,
                      compared=100, draws=4, shown=4)  # fmt: skip
    return Config(CELLS["fashion-lenet5"])


def units(config: Config) -> list[str]:
    """``kind/seed``."""
    return [f"{kind}/{seed}" for kind in config.kinds for seed in config.seeds]
