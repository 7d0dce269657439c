"""Training, validation and test rows, determined by the seed alone and the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whence.engine.randomness import example_uniform
from whence.errors import BadOption

TEST, VALIDATION, FOLDS, TOYS = range(4)  # purposes of random numbers; toys have one for each part


def permutation(size: int, seed: int, purpose: int) -> np.ndarray:
    """A permutation that does not depend on the version of NumPy or torch."""
    return np.argsort(uniform(size, 1, seed, purpose)[:, 0].numpy(), kind="stable")


def uniform(size: int, columns: int, seed: int, purpose: int) -> Tensor:
    """Uniform numbers in (0, 1), (size, columns), different for each seed and purpose."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise BadOption(f"seed={seed!r}: must be a whole number.")
    return example_uniform(int(seed), purpose, torch.arange(size), (size, columns))


@dataclass(frozen=True)
class Rows:
    """The rows of each part."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def count(validation: int | float, size: int, *, drawn: bool = False) -> int:
    """Number of examples for a count or a fraction of ``size``; unbounded if more can be drawn."""
    whole = isinstance(validation, (int, np.integer)) and not isinstance(validation, bool)
    if not whole and not (isinstance(validation, float) and 0 <= validation < 1):
        raise BadOption(f"validation={validation!r}: pass a number of examples, or a fraction below 1.")
    number = int(validation) if whole else round(validation * size)
    if number < 0 or (number >= size and not drawn):
        raise BadOption(
            f"validation={validation!r} is out of bounds: from 0 to fewer than the {size:,} training examples."
        )
    return number


def split_off(rows: np.ndarray, validation: int | float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training rows, and rows drawn for validation; both in order."""
    number = count(validation, len(rows))
    order = permutation(len(rows), seed, VALIDATION)
    return rows[np.sort(order[number:])], rows[np.sort(order[:number])]


def seeded(size: int, test: int, validation: int | float, seed: int) -> Rows:
    """Rows of a set without published parts: ``test`` of them are drawn, then those for validation."""
    order = permutation(size, seed, TEST)
    train, valid = split_off(np.sort(order[test:]), validation, seed)
    return Rows(train, valid, np.sort(order[:test]))


def gap(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows outside and inside the middle third along a column (Foong et al. 2019).

    These are the published gap splits, unless values on the border are equal. Among equal values the published
    choice is arbitrary, and wine's has one row less.
    """
    order = np.argsort(column, kind="stable")
    size = len(order)
    low, high = round(size / 3), round(2 * size / 3)
    return np.sort(np.r_[order[:low], order[high:]]), np.sort(order[low:high])


def stratified(labels: np.ndarray, k: int, seed: int) -> np.ndarray:
    """The fold of each example: classes are distributed evenly, and folds differ by at most one example."""
    if not 2 <= k <= len(labels):
        raise BadOption(f"k={k}: must be from 2 to the number of examples, {len(labels):,}.")
    order = permutation(len(labels), seed, FOLDS)
    by_class = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[by_class] = np.arange(len(labels)) % k
    return fold
