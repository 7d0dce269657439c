"""HMC where it can: small tables, the first splits, all training rows.

Decay λ and noise σ are those that validation rows chose for the plain network; the potential is N/σ² times its loss,
so the prior precision is λ N / σ².
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

import whence
from reproductions.linearised.data import Part, load
from reproductions.linearised.stack import module
from reproductions.linearised.uci.config import Config
from reproductions.linearised.uci.networks import Group, errors, held_out
from reproductions.linearised.uci.scores import scored
from reproductions.store import Values
from whence.posteriors.hmc.diagnostics import split_rhat

CHAINS = 4
PATH = 32  # leapfrog steps
MOST = 1e3  # split-R̂ beyond which chains did not move


def hmc_scores(config: Config, name: str) -> Values:
    """Of the first standard splits, and how far the chains agree: split-R̂ of predictions for test inputs."""
    numbers = tuple(range(config.hmc_splits))
    held = load(name, numbers, "standard", validation=True)
    splits = load(name, numbers, "standard", validation=False)
    decays, noises = _plain(config, name, numbers, held.train, held_out(held))
    group = Group(config, name, numbers, splits.train)
    trained = group.members(decays)[0]
    rows, rhats = [], []
    for k in group.places:
        posterior = _sampled(config, module(trained, k), splits.train.of(k), decays[k], noises[k], k)
        x = splits.test.of(k)[0]
        rows.append(scored(posterior.predict, splits.test.of(k), splits.train.of(k)[0], splits.spread[k]))
        rhats.append(min(float(largest_rhat(posterior, x)), MOST))
    scores = {key: [row[key] for row in rows] for key in rows[0]}
    return {"splits": list(numbers), "methods": {"hmc": scores}, "rhat": rhats}


def _plain(
    config: Config, name: str, numbers: tuple[int, ...], rows: Part, validation: Part
) -> tuple[list[float], list[float]]:
    """Decay and noise of each split."""
    found = [errors(weights, validation) for weights in Group(config, name, numbers, rows).by_decay()]
    best = [min(range(len(found)), key=lambda i: found[i][k]) for k in range(len(numbers))]
    return [config.decays[i] for i in best], [found[i][k] for k, i in enumerate(best)]


def _sampled(config: Config, network: torch.nn.Module, train: Any, decay: float, noise: float, seed: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the chains have not reached is reported as split-R̂
        return whence.hmc(
            network, train, likelihood=whence.Gaussian(noise), prior_precision=decay * len(train[0]) / noise**2,
            kernel="hmc", steps=PATH, chains=CHAINS, warmup=config.hmc_warmup, num_samples=config.hmc_draws,
            generator=torch.Generator().manual_seed(seed), progress=False,
        )  # fmt: skip


def largest_rhat(posterior: Any, x: torch.Tensor) -> torch.Tensor:
    """The largest split-R̂ of predictions for test inputs."""
    return split_rhat(posterior.predictions(x).flatten(2)).max()
