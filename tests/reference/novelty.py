"""Slow, obvious twins of novelty and of the detectors beside it: one input at a time, in NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np


def p_value(reference: np.ndarray, value: float) -> float:
    """(1 + how many of the reference are as large, but for rounding) / (n + 1)."""
    return (1 + sum(1 for other in reference if other >= value - 1e-6 * abs(value))) / (len(reference) + 1)


RULE = "fisher"  # how novelty and entropy become one score


def log_odds(u: float) -> float:
    return math.log(u / (1 - u))


def evidence(
    others: np.ndarray, value: float, size: int, count: int, scale: Callable[[float], float] = log_odds
) -> float:
    """−log p of a value among others: by rank, or by an exponential tail above all but the ``count`` largest."""
    scaled = sorted((scale(other) for other in others), reverse=True)
    start, own = scaled[count], scale(value)
    if own <= start + 1e-5:
        p = (1 + sum(1 for other in others if other >= value * (1 - 1e-6))) / (size + 1)
        return -math.log(min(p, 1 - 0.5 / (size + 1)))
    mean = max(sum(o - start for o in scaled[:count]) / count, 1e-5)
    return min((own - start) / mean - math.log((count + 1) / (size + 1)), 600.0)


def summed(known: list[np.ndarray], found: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Fisher's sums of several scores: of reference inputs, each without itself, and of others."""
    n = len(known[0])
    count = max(1, int(0.1 * n))

    def score(pairs: list[tuple[np.ndarray, float]]) -> float:
        return fisher(np.array([evidence(others, v, n, count, lambda one: one) for others, v in pairs]))

    own = [score([(np.delete(column, i), column[i]) for column in known]) for i in range(n)]
    return np.array(own), np.array([score(list(zip(known, row, strict=True))) for row in zip(*found, strict=True)])


def with_entropy(
    known_novelty: np.ndarray, known_entropy: np.ndarray, novelty: np.ndarray, entropy: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of inputs, and their p-values among the reference inputs, each scored without itself."""
    own, found = summed([known_novelty, known_entropy], [novelty, entropy])
    return found, np.array([p_value(own, value) for value in found])


def evidences(reference: np.ndarray, values: np.ndarray | None) -> np.ndarray:
    """Of values against the reference, or (None) of each reference input against the others, [N, B]."""
    n, layers = reference.shape
    rows = reference if values is None else values
    found = np.zeros_like(rows)
    for b in range(layers):
        for i, value in enumerate(rows[:, b]):
            others = np.delete(reference[:, b], i) if values is None else reference[:, b]
            found[i, b] = evidence(others, value, n, max(1, int(0.1 * n)))
    return found


def fisher(e: np.ndarray) -> float:
    return 2 * sum(e)


def smallest(e: np.ndarray) -> float:
    return max(e)


def cauchy(e: np.ndarray) -> float:
    return math.log(sum(1 / math.tan(math.pi / 2 * math.exp(-v)) for v in e) / len(e))


def shifted_up(z: np.ndarray, correlation: np.ndarray) -> float:
    """max over θ ≥ 0 of zᵀPz − (z − θ)ᵀP(z − θ): every set of layers that may be shifted is tried."""
    precision = np.linalg.inv(correlation)
    best = 0.0
    for chosen in itertools.product([False, True], repeat=len(z)):
        on = np.array(chosen)
        if not on.any():
            continue
        shift = np.zeros(len(z))
        shift[on] = np.linalg.solve(precision[np.ix_(on, on)], (precision @ z)[on])
        if (shift >= 0).all():
            best = max(best, z @ precision @ z - (z - shift) @ precision @ (z - shift))
    return best


def mahalanobis(train: np.ndarray, labels: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Squared distance from the nearest class mean under the pooled covariance."""
    classes = sorted(set(labels.tolist()))
    means = {c: train[labels == c].mean(0) for c in classes}
    pooled = np.zeros((train.shape[1], train.shape[1]))
    for row, label in zip(train, labels, strict=True):
        off = row - means[label]
        pooled += np.outer(off, off) / len(train)
    precision = np.linalg.pinv(pooled, rcond=1e-10, hermitian=True)
    return np.array([min((row - m) @ precision @ (row - m) for m in means.values()) for row in x])


def kth_distance(train: np.ndarray, x: np.ndarray, k: int) -> np.ndarray:
    """Distance from the k-th nearest, all pairs, rows scaled to length 1."""
    train, x = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (train, x))
    return np.array([sorted(np.linalg.norm(train - row, axis=1))[k - 1] for row in x])


def kolmogorov_smirnov(p: np.ndarray) -> float:
    """Largest distance between the empirical distribution and the uniform one."""
    ordered = np.sort(p)
    n = len(ordered)
    return max((np.arange(1, n + 1) / n - ordered).max(), (ordered - np.arange(n) / n).max())
