"""Slow, obvious twins of the tables by class, label and group, and of their intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np


def binomial_at_least(hits: int, trials: int, share: Fraction) -> Fraction:
    return sum(
        (math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(hits, trials + 1)), Fraction(0)
    )


def studentised(values: list[float], level: float, resamples: int) -> tuple[float, float]:
    """Efron & Tibshirani (1993), ch. 12.5: resampled means divided by their standard errors, of at least a fifth of
    the data's."""
    rng = np.random.default_rng(0)
    data = np.array(values)

    def error(sample: np.ndarray) -> float:
        return float(sample.std() / np.sqrt(len(sample) - 1))

    own, t = error(data), []
    for _ in range(resamples):
        sample = data[rng.integers(len(data), size=len(data))]
        t.append((sample.mean() - data.mean()) / max(error(sample), 0.2 * own))
    upper, lower = np.quantile(t, [(1 + level) / 2, (1 - level) / 2])
    return float(data.mean() - upper * own), float(data.mean() - lower * own)


def clopper_pearson(hits: int, trials: int, tail: Fraction = Fraction(1, 40)) -> tuple[float, float]:
    """The shares under which so many, and so few, hits have probability ``tail``; exact sums, by bisection."""

    def crossing(above: Callable[[Fraction], bool]) -> float:
        low, high = Fraction(0), Fraction(1)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if above(middle) else (middle, high)
        return float(low)

    low = 0.0 if hits == 0 else crossing(lambda p: binomial_at_least(hits, trials, p) > tail)
    high = 1.0 if hits == trials else crossing(lambda p: 1 - binomial_at_least(hits + 1, trials, p) < tail)
    return low, high


def confusion(predicted: Sequence[int], truth: Sequence[int], classes: int) -> list[list[int]]:
    counts = [[0] * classes for _ in range(classes)]
    for guess, true in zip(predicted, truth, strict=True):
        counts[true][guess] += 1
    return counts


def argmax(row: Sequence[float]) -> int:
    return max(range(len(row)), key=lambda c: row[c])


def class_row(
    probs: Sequence[Sequence[float]], truth: Sequence[int], deferred: Sequence[bool], c: int
) -> dict[str, float | int]:
    guesses = [argmax(row) for row in probs]
    mine = [n for n, y in enumerate(truth) if y == c]
    said = [n for n, g in enumerate(guesses) if g == c]
    return {
        "count": len(mine),
        "recall": sum(guesses[n] == c for n in mine) / len(mine),
        "precision": sum(truth[n] == c for n in said) / len(said),
        "confidence": sum(max(probs[n]) for n in said) / len(said),
        "deferred": sum(deferred[n] for n in mine) / len(mine),
        "ece": column_ece([row[c] for row in probs], [y == c for y in truth]),
    }


def column_ece(p: Sequence[float], truth: Sequence[bool], bins: int = 15) -> float:
    """Of the probability of one class over all inputs; bins (low, high]."""
    total = 0.0
    for b in range(bins):
        inside = [n for n, v in enumerate(p) if b / bins < v <= (b + 1) / bins or (b == 0 and v == 0)]
        if inside:
            gap = sum(float(truth[n]) - p[n] for n in inside) / len(inside)
            total += len(inside) / len(p) * abs(gap)
    return total


def entropy(p: float) -> float:
    return -sum(q * math.log(q) for q in (p, 1 - p) if q > 0)


def label_deferral(
    held: Sequence[Sequence[float]], test: Sequence[Sequence[float]], truth: Sequence[Sequence[int]], coverage: float
) -> tuple[float, float, float]:
    """Threshold, share answered and error of the answered, where each label of an input is an answer.

    The threshold is the smallest entropy of a validation answer up to which at least ``coverage`` of them lie.
    """
    every = sorted(entropy(p) for row in held for p in row)
    threshold = next(t for t in every if sum(e <= t for e in every) >= coverage * len(every) - 1e-9)
    answered = [(p > 0.5, y == 1) for ps, ys in zip(test, truth, strict=True) for p, y in zip(ps, ys, strict=True)
                if entropy(p) <= threshold]  # fmt: skip
    total = sum(len(row) for row in test)
    return threshold, len(answered) / total, sum(a != b for a, b in answered) / len(answered)


def curve_points(p: Sequence[float], truth: Sequence[bool]) -> list[tuple[float, float, float]]:
    """Recall, precision and false positive rate where p ≥ t, for every observed t from the highest down."""
    found = []
    for t in sorted(set(p), reverse=True):
        said = [y for v, y in zip(p, truth, strict=True) if v >= t]
        found.append((sum(said) / sum(truth), sum(said) / len(said), (len(said) - sum(said)) / (len(p) - sum(truth))))
    return found


def t_statistics(values: Sequence[float], groups: Sequence[Sequence[int]]) -> list[float]:
    """|mean of the group − mean of the rest| over its standard error, with variances not below that of all values."""
    centre = sum(values) / len(values)
    overall = sum((v - centre) ** 2 for v in values) / len(values)
    found = []
    for group in groups:
        parts = [[values[n] for n in group], [v for n, v in enumerate(values) if n not in group]]
        means = [sum(part) / len(part) for part in parts]
        variances = [
            max(overall, sum((v - m) ** 2 for v in part) / (len(part) - 1)) / len(part)
            for part, m in zip(parts, means, strict=True)
        ]
        found.append(abs(means[0] - means[1]) / math.sqrt(sum(variances)))
    return found


def exact_p_values(values: Sequence[float], groups: Sequence[Sequence[int]]) -> list[float]:
    """Share of all permutations whose largest statistic is at least that of each group."""
    seen = t_statistics(values, groups)
    largest = [max(t_statistics(order, groups)) for order in itertools.permutations(values)]
    return [sum(t >= one - 1e-9 for t in largest) / len(largest) for one in seen]
