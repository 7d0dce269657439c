"""What decides a number: networks, seeds, readings of the L2 factor, numbers of binarised copies."""

from __future__ import annotations

from dataclasses import dataclass, field

from reproductions.ritter2018.mnist import LAYERED, METHODS, QUICK, Setup

MEAN, BATCH, PRIOR = "weight decay on the mean loss", "weight decay on the minibatch's sum", "prior precision"
SLOW = "factorised Gaussian with slow standard deviations"


@dataclass(frozen=True)
class Config:
    """Splits follow from the seeds of ``setup``; draws of predictions and resamples from their own."""

    setup: Setup = field(default_factory=Setup)
    l2: float = 1e-2  # the paper's factor
    readings: tuple[str, ...] = (MEAN, BATCH, PRIOR)
    readings_seed: int = 0
    copies: tuple[int, ...] = (0, 1, 10, 100, 1000)  # 0: the grey images; the paper has 1,000
    copies_seed: int = 0
    layered_copies: int = 10  # behind the posterior with a prior for each layer
    divergence: tuple[float, ...] = (
        1.0,
        0.1,
        0.01,
        0.001,
        0.0001,
    )  # weights of the divergence, for the factorised Gaussian
    divergence_seed: int = 0
    slow: dict[str, float] = field(
        default_factory=lambda: {"kl_weight": 1.0, "initial_std": 0.02, "lr_std": 1e-5}
    )  # standard deviations that stay about where they start
    bound_draws: int = 8
    grid: int = 100  # points of a curve
    certain: float = 0.05  # nats; below it a prediction counts as certain
    draws_seed: int = 0
    resamples: int = 200  # of the bootstrap
    check_copies: int = 1
    check_draws: int = 100


def config(quick: bool) -> Config:
    if quick:
        return Config(QUICK, copies=(0, 1, 2), layered_copies=1, grid=50, resamples=50, check_draws=20)
    return Config()


def units(config: Config) -> list[str]:
    """In the order of the run: what is dear and could be missed comes last."""
    found = [f"reading/{name}" for name in config.readings]
    for seed in config.setup.seeds:
        found += [f"{seed}/{name}" for name in (*METHODS, "regularisation", "detectors", "check")]
    found += [f"copies/{count}" for count in config.copies]
    found += [f"{seed}/{LAYERED}" for seed in config.setup.seeds]
    return found + [f"divergence/{weight:g}" for weight in config.divergence] + [SLOW]
