"""HMC where it can: small sets, the first seeds, the prior precision that validation rows chose for one network."""

from __future__ import annotations

import warnings

import torch

import whence
from reproductions.linearised.classes.config import Config
from reproductions.linearised.classes.methods import best, plain, scored, split_of, trained
from reproductions.linearised.uci.hmc import CHAINS, MOST, PATH, largest_rhat
from reproductions.store import Values


def hmc_scores(config: Config, name: str) -> Values:
    """Of the first seeds, and how far the chains agree: split-R̂ of predictions for test inputs."""
    rows, rhats, precisions = [], [], []
    for seed in range(config.hmc_seeds):
        split = split_of(config, name, seed)
        networks = {precision: trained(config, split, seed, precision) for precision in config.precisions}
        precision, _ = best([(own, plain(network)) for own, network in networks.items()], split.held)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the chains have not reached is reported as split-R̂
            posterior = whence.hmc(
                networks[precision], split.train, likelihood="classification", prior_precision=precision, kernel="hmc",
                steps=PATH, chains=CHAINS, warmup=config.hmc_warmup, num_samples=config.hmc_draws,
                generator=torch.Generator().manual_seed(seed), progress=False,
            )  # fmt: skip
            rows.append(scored(posterior.predict(split.test[0]), split.test[1]))
        rhats.append(min(float(largest_rhat(posterior, split.test[0])), MOST))
        precisions.append(precision)
    scores = {key: [row[key] for row in rows] for key in rows[0]}
    return {"seeds": list(range(config.hmc_seeds)), "precision": precisions, "scores": scores, "rhat": rhats}
