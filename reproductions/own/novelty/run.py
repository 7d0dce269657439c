"""Novelty of every novel data set, beside the detectors that are in use; nothing is fitted to novel data."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor

import whence
from reproductions.experiment import Context
from reproductions.own.novelty.config import Config
from reproductions.own.priors.measure import fitted
from reproductions.own.priors.subjects import subjects
from reproductions.store import Results, Values
from whence import metrics

RULES = ("gauss", "fisher", "smallest", "cauchy")
LEVEL = 0.01


def run(config: Config, results: Results, context: Context) -> None:
    for network in config.networks:
        for seed in config.seeds:
            results.unit(f"{network}/{seed}", partial(_measured, config, network, seed, context))


def _measured(config: Config, network: str, seed: int, context: Context) -> Values:
    """AUROC by data set and detector, and how many fresh test inputs are flagged."""
    (subject,) = subjects(config.priors, network, seed, context).values()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = fitted(subject)
        reference = whence.reference_of(posterior, subject.validation[0])
        inside = subject.test[0][: config.inputs]
        within = {rule: whence.novelty(posterior, inside, reference=reference, combine=rule) for rule in RULES}
        found: Values = {"flagged": float((within["gauss"].p_value <= LEVEL).double().mean()), "auroc": {}}
        for name, outside in subject.novel.items():
            outside = outside[: config.inputs]
            beyond = {rule: whence.novelty(posterior, outside, reference=reference, combine=rule) for rule in RULES}
            scores = {f"novelty, {rule}": _auroc(within[rule].score, beyond[rule].score) for rule in RULES}
            single = zip(within["gauss"].unexplained.T, beyond["gauss"].unexplained.T, strict=True)
            scores["best single layer, seen afterwards"] = max(_auroc(a, b) for a, b in single)
            table = whence.compare_detectors(posterior, inside, outside, train=subject.train, reference=reference)
            scores |= {row.detector: float(row.auroc) for row in table.rows if row.detector != "novelty"}
            found["auroc"][name] = scores
    return found


def _auroc(inside: Tensor, outside: Any) -> float:
    scores = torch.cat([inside, outside]).double().cpu()
    return float(metrics.auroc(scores, torch.arange(len(scores)) >= len(inside), resamples=0))
