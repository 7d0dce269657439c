"""Everything that decides a number of the toy regression."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from reproductions.ritter2018.toy.names import DIAGONAL_FISHER, METHODS, PAPER


@dataclass(frozen=True)
class Config:
    """Inputs and targets are divided by ``x_scale`` and ``y_scale``; the prior is in these units."""

    seeds: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {"relu": tuple(range(10)), "tanh": tuple(range(5))}
    )  # of data, starts, draws and chains, by activation; claims are judged with the first
    methods: tuple[str, ...] = METHODS
    hidden: int = 7  # units of each of two layers
    points: int = 20  # for training, and as many for validation
    test: int = 1000
    noise: float = 3.0
    x_scale: float = 4 / math.sqrt(3)  # standard deviation of U(−4, 4)
    y_scale: float = math.sqrt(4**6 / 7 + 9)  # standard deviation of the targets
    prior_precision: float = 1.0
    starts: int = 10  # of training; the most probable weights found are kept
    steps: int = 5000  # of Adam, from each start
    lr: float = 1e-2  # falls to 0 as a cosine
    iterations: int = 1000  # of L-BFGS, from the best
    reach: float = 6.0
    grid: int = 41  # inputs from −reach to reach, for distances
    fine: int = 121  # for curves
    edge: float = 4.0  # inputs up to here are among the data
    draws: int = 10_000  # of weights, for means and standard deviations; of HMC all
    distance_draws: int = 1000  # for distances and likelihoods
    tuning_draws: int = 200
    long: dict[str, Any] = field(
        default_factory=lambda: {"chains": 25, "num_samples": 2000, "warmup": 400, "steps": 128, "target_accept": 0.9}
    )  # HMC for the first seed that claims are judged with
    short: dict[str, Any] = field(
        default_factory=lambda: {"chains": 16, "num_samples": 500, "warmup": 300, "steps": 256, "target_accept": 0.9}
    )  # for all others, and for a second run on the first, started from the prior

    @property
    def first(self) -> tuple[str, int]:
        return next((activation, seeds[0]) for activation, seeds in self.seeds.items())


QUICK = Config(
    seeds={"relu": (0, 1), "tanh": (0, 1)}, methods=(*PAPER, DIAGONAL_FISHER), starts=2, steps=100, lr=3e-2,
    iterations=30, test=50, grid=7, fine=13, draws=60, distance_draws=30, tuning_draws=4,
    long={"chains": 4, "num_samples": 30, "warmup": 30, "steps": 8, "target_accept": 0.8},
    short={"chains": 4, "num_samples": 20, "warmup": 30, "steps": 8, "target_accept": 0.8},
)  # fmt: skip


def config(quick: bool) -> Config:
    return QUICK if quick else Config()
