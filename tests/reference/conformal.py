"""Split conformal prediction and the probability integral transform by their definitions, in Python floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

Numbers = Sequence[float]


def threshold(scores: Numbers, level: Fraction) -> float:
    """The ⌈(n + 1)(1 − α)⌉-th smallest score, in exact arithmetic."""
    rank = math.ceil((len(scores) + 1) * level)
    return sorted(scores)[rank - 1] if rank <= len(scores) else math.inf


def grouped_threshold(scores: Sequence[Numbers], keep: Sequence[Sequence[bool]], level: Fraction) -> float:
    """The smallest q for which Σ over groups of the share of scores up to q, divided by n + 1, reaches the level."""
    groups = [[s for s, k in zip(row, kept, strict=True) if k] for row, kept in zip(scores, keep, strict=True)]
    for q in sorted(s for group in groups for s in group):
        shares = [Fraction(sum(s <= q for s in group), len(group)) for group in groups]
        if sum(shares) / (len(groups) + 1) >= level:
            return q
    return math.inf


def inputs_needed(level: Fraction) -> int:
    n = 1
    while math.ceil((n + 1) * level) > n:
        n += 1
    return n


def one_minus_probability(row: Numbers, c: int) -> float:
    return 1 - row[c]


def more_probable(row: Numbers, c: int) -> float:
    """The probability of all classes before c in the order of decreasing probability; ties by number."""
    order = sorted(range(len(row)), key=lambda k: (-row[k], k))
    return math.fsum(row[k] for k in order[: order.index(c)])


def binomial_at_most(k: int, n: int, p: float) -> float:
    return math.fsum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k + 1))


def beta_binomial(k: int, n: int, a: int, b: int) -> Fraction:
    """P(K = k) for whole a and b."""

    def beta(x: int, y: int) -> Fraction:
        return Fraction(math.factorial(x - 1) * math.factorial(y - 1), math.factorial(x + y - 1))

    return math.comb(n, k) * beta(k + a, n - k + b) / beta(a, b)


def poisson_at_most(k: int, rates: Numbers) -> float:
    """P(Y ≤ k) of a mixture of Poissons."""
    if k < 0:
        return 0.0
    return math.fsum(math.exp(-r) * r**j / math.factorial(j) for r in rates for j in range(k + 1)) / len(rates)


def normal_at_most(y: float, means: Numbers, variances: Numbers) -> float:
    parts = [0.5 * math.erfc((m - y) / math.sqrt(2 * v)) for m, v in zip(means, variances, strict=True)]
    return math.fsum(parts) / len(parts)
