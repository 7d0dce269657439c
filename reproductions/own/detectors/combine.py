"""Combinations of detectors, made from validation inputs alone.

Each score becomes evidence −log p by its place among the validation inputs, with an exponential tail beyond their
upper tenth. A combination of evidence is the score of an input. Nothing is fitted to novel data.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from reproductions.own.detectors.scores import Scores
from whence.where.p_values import Tail, cauchy, conformal, fisher, smallest, unchanged

SINGLE = (
    "novelty", "entropy", "plain_entropy", "mutual_information", "variance", "max_probability", "energy",
    "mahalanobis", "mahalanobis_layers", "neighbours",
)  # fmt: skip
PARTS = {
    "novelty + entropy": ("novelty", "plain_entropy"),
    "novelty + posterior entropy": ("novelty", "entropy"),
    "novelty + mutual information": ("novelty", "mutual_information"),
    "novelty + energy": ("novelty", "energy"),
    "novelty + entropy + energy": ("novelty", "plain_entropy", "energy"),
    "neighbours + entropy": ("neighbours", "plain_entropy"),
    "Mahalanobis + entropy": ("mahalanobis_layers", "plain_entropy"),
    "novelty + entropy + neighbours": ("novelty", "plain_entropy", "neighbours"),
    "novelty + entropy + Mahalanobis": ("novelty", "plain_entropy", "mahalanobis_layers"),
    "all four": ("novelty", "plain_entropy", "energy", "mahalanobis_layers"),
    "all five": ("novelty", "plain_entropy", "energy", "mahalanobis_layers", "neighbours"),
}
TRAINED = ("mahalanobis", "mahalanobis_layers", "neighbours")  # which need training data when they are used


def evidence(known: Tensor, values: Tensor) -> Tensor:
    """−log p of values [N, B] among validation scores [n, B]."""
    return Tail.of(known, unchanged).evidence(values)


def _ranks(known: Tensor, values: Tensor) -> Tensor:
    return -conformal(known, values).sum(1)


def _largest(known: Tensor, values: Tensor) -> Tensor:
    return ((values - known.mean(0)) / known.std(0)).amax(1)


RULES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Fisher": lambda known, values: fisher(evidence(known, values)),
    "smallest p": lambda known, values: smallest(evidence(known, values)),
    "Cauchy": lambda known, values: cauchy(evidence(known, values)),
    "sum of ranks": _ranks,
    "largest standardised": _largest,
}
COMBINATIONS = {f"{parts}, {rule}": PARTS[parts] for parts, rule in product(PARTS, RULES)}
WITHOUT_TRAINING_DATA = tuple(name for name, parts in COMBINATIONS.items() if not set(parts) & set(TRAINED))

OURS = "novelty + entropy, Fisher"  # whence.novelty(...).with_entropy
ALL = "all four, Fisher"  # whence.combined_detector with training data
FEW = "novelty + entropy + energy, Fisher"  # and without
SHOWN = (*SINGLE, OURS, FEW, ALL)


def with_combinations(known: Scores, found: Scores) -> Scores:
    """The scores, and every combination of them relative to validation scores."""
    made = {name: found[name] for name in SINGLE}
    for parts, names in PARTS.items():
        columns = [torch.stack([scores[n] for n in names], 1) for scores in (known, found)]
        made |= {f"{parts}, {rule}": score(*columns) for rule, score in RULES.items()}
    return made
