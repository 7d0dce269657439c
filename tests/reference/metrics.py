"""Scores of predictions by their definitions: loops over elements in Python floats.

Index legend: N elements, C classes, B bins, S draws. Every twin takes flat lists; `weights` has one number per element.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

Numbers = Sequence[float]
Rows = Sequence[Numbers]

NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(20)


def weighted_mean(values: Numbers, weights: Numbers) -> float:
    return math.fsum(w * v for v, w in zip(values, weights, strict=True)) / math.fsum(weights)


# ---------------------------------------------------------------- labels


def top(row: Numbers) -> int:
    """The most probable class."""
    return max(range(len(row)), key=lambda c: row[c])


def hits(rows: Rows, labels: Sequence[int]) -> list[float]:
    return [1.0 if top(row) == y else 0.0 for row, y in zip(rows, labels, strict=True)]


def accuracy(rows: Rows, labels: Sequence[int], weights: Numbers) -> float:
    return weighted_mean(hits(rows, labels), weights)


def nll(rows: Rows, labels: Sequence[int], weights: Numbers) -> float:
    return weighted_mean([-math.log(row[y]) for row, y in zip(rows, labels, strict=True)], weights)


def brier(rows: Rows, labels: Sequence[int], weights: Numbers) -> float:
    """Brier 1950: Σ_c (p_c - 1[y = c])², between 0 and 2."""
    scores = []
    for row, y in zip(rows, labels, strict=True):
        scores.append(sum((p - (1.0 if c == y else 0.0)) ** 2 for c, p in enumerate(row)))
    return weighted_mean(scores, weights)


def brier_binary(p: Numbers, labels: Sequence[int], weights: Numbers) -> float:
    """(p - y)², between 0 and 1."""
    return weighted_mean([(q - y) ** 2 for q, y in zip(p, labels, strict=True)], weights)


# ---------------------------------------------------------------- calibration


def width_bins(values: Numbers, bins: int) -> list[int]:
    """Bin b holds (b / B, (b + 1) / B]; 0 goes to the first."""
    return [next(b for b in range(bins) if v <= (b + 1) / bins) for v in values]


def mass_bins(values: Numbers, bins: int) -> list[int]:
    """Equal counts of sorted values; only for values without ties whose number B divides."""
    assert len(set(values)) == len(values) and len(values) % bins == 0
    ordered = sorted(values)
    return [ordered.index(v) * bins // len(values) for v in values]


def gaps(values: Numbers, outcomes: Numbers, weights: Numbers, index: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Of each bin with any weight: its share of the weight, and its mean outcome less its mean value."""
    found = {}
    for b in sorted(set(index)):
        inside = [n for n, i in enumerate(index) if i == b and weights[n] > 0]
        if inside:
            w = [weights[n] for n in inside]
            gap = weighted_mean([outcomes[n] for n in inside], w) - weighted_mean([values[n] for n in inside], w)
            found[b] = (math.fsum(w) / math.fsum(weights), gap)
    return found


def binned_error(values: Numbers, outcomes: Numbers, weights: Numbers, index: Sequence[int], norm: str) -> float:
    found = gaps(values, outcomes, weights, index).values()
    if norm == "l1":
        return sum(share * abs(gap) for share, gap in found)
    if norm == "l2":
        return math.sqrt(sum(share * gap**2 for share, gap in found))
    return max(abs(gap) for _, gap in found)


def bin_index(values: Numbers, bins: int, binning: str) -> list[int]:
    return width_bins(values, bins) if binning == "width" else mass_bins(values, bins)


def ece(rows: Rows, labels: Sequence[int], weights: Numbers, bins: int, binning: str, norm: str) -> float:
    """Guo 2017 for norm="l1"; norm="max" is the maximum calibration error."""
    confidence = [max(row) for row in rows]
    return binned_error(confidence, hits(rows, labels), weights, bin_index(confidence, bins, binning), norm)


def classwise_ece(rows: Rows, labels: Sequence[int], weights: Numbers, bins: int, binning: str) -> float:
    """Kull 2019: the mean over classes of the binned error of p_c against 1[y = c]."""
    errors = []
    for c in range(len(rows[0])):
        p = [row[c] for row in rows]
        outcome = [1.0 if y == c else 0.0 for y in labels]
        errors.append(binned_error(p, outcome, weights, bin_index(p, bins, binning), "l1"))
    return sum(errors) / len(errors)


# ---------------------------------------------------------------- detection


def auroc(scores: Numbers, positive: Sequence[int], weights: Numbers) -> float:
    """P(score of a positive > score of a negative) + P(equal) / 2, over all pairs."""
    won, total = 0.0, 0.0
    for a, b in itertools.product(range(len(scores)), repeat=2):
        if positive[a] and not positive[b]:
            w = weights[a] * weights[b]
            won += w * (1.0 if scores[a] > scores[b] else 0.5 if scores[a] == scores[b] else 0.0)
            total += w
    return won / total


def at_or_above(threshold: float, scores: Numbers, chosen: Sequence[int], weights: Numbers) -> float:
    """The weight of chosen elements with a score of at least the threshold."""
    return math.fsum(w for s, c, w in zip(scores, chosen, weights, strict=True) if c and s >= threshold)


def aupr(scores: Numbers, positive: Sequence[int], weights: Numbers) -> float:
    """Average precision: Σ_k (recall_k - recall_{k-1}) precision_k over the distinct thresholds, from above."""
    everything = [1] * len(scores)
    total = at_or_above(-math.inf, scores, positive, weights)
    area, before = 0.0, 0.0
    for t in sorted(set(scores), reverse=True):
        found, flagged = at_or_above(t, scores, positive, weights), at_or_above(t, scores, everything, weights)
        if flagged > 0:
            area += (found / total - before) * found / flagged
            before = found / total
    return area


def fpr_at(scores: Numbers, positive: Sequence[int], weights: Numbers, tpr: float = 0.95) -> float:
    """The share of negatives at or above the highest threshold that keeps at least tpr of the positives."""
    negative = [0 if p else 1 for p in positive]
    wanted = Fraction(str(tpr))
    for t in sorted(set(scores), reverse=True):
        kept = Fraction(at_or_above(t, scores, positive, weights))
        if kept >= wanted * Fraction(at_or_above(-math.inf, scores, positive, weights)):
            return at_or_above(t, scores, negative, weights) / at_or_above(-math.inf, scores, negative, weights)
    raise AssertionError("the lowest threshold keeps every positive")


# ---------------------------------------------------------------- selective prediction


def aurc_of_order(errors: Numbers, weights: Numbers) -> float:
    """The mean over k of the error among the first k."""
    lost, seen, area = 0.0, 0.0, 0.0
    for e, w in zip(errors, weights, strict=True):
        lost, seen = lost + w * e, seen + w
        area += w * lost / seen if w > 0 else 0.0
    return area / seen


def aurc(uncertainty: Numbers, errors: Numbers, weights: Numbers) -> float:
    """The mean of `aurc_of_order` over all orders that are sorted by uncertainty."""
    blocks = []
    for u in sorted(set(uncertainty)):
        blocks.append(list(itertools.permutations([n for n, v in enumerate(uncertainty) if v == u])))
    areas = []
    for parts in itertools.product(*blocks):
        order = [n for part in parts for n in part]
        areas.append(aurc_of_order([errors[n] for n in order], [weights[n] for n in order]))
    return math.fsum(areas) / len(areas)


def excess_aurc(uncertainty: Numbers, errors: Numbers, weights: Numbers) -> float:
    """AURC less that of the order with all errors last."""
    best = sorted(range(len(errors)), key=lambda n: errors[n])
    return aurc(uncertainty, errors, weights) - aurc_of_order([errors[n] for n in best], [weights[n] for n in best])


def selective_accuracy(uncertainty: Numbers, right: Numbers, weights: Numbers, coverage: float) -> float:
    """Accuracy among the most certain; the block at the border counts by the part that is still wanted."""
    wanted = coverage * math.fsum(weights)
    left, won = wanted, 0.0
    for u in sorted(set(uncertainty)):
        block = [n for n, v in enumerate(uncertainty) if v == u]
        mass = math.fsum(weights[n] for n in block)
        part = min(1.0, left / mass) if mass > 0 else 0.0
        won += part * math.fsum(weights[n] * right[n] for n in block)
        left -= part * mass
        if left <= 0:
            break
    return won / wanted


def largest_coverage(uncertainty: Numbers, errors: Numbers, max_error: float) -> float:
    """The largest observed threshold t with mean(errors where uncertainty <= t) <= max_error; -inf if there is none."""
    best = -math.inf
    for t in sorted(set(uncertainty)):
        kept = [Fraction(e) for u, e in zip(uncertainty, errors, strict=True) if u <= t]
        if sum(kept) / len(kept) <= Fraction(str(max_error)):
            best = t
    return best


# ---------------------------------------------------------------- regression


def normal_cdf(x: float, mean: float, std: float) -> float:
    return 0.5 * math.erfc((mean - x) / (std * math.sqrt(2)))


def normal_pdf(x: float, mean: float, std: float) -> float:
    return math.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))


def integral(f: Callable[[float], float], low: float, high: float, panels: int = 60) -> float:
    """∫ f, by Gauss-Legendre on equal panels."""
    edges = [low + (high - low) * k / panels for k in range(panels + 1)]
    total = 0.0
    for a, b in itertools.pairwise(edges):
        middle, half = (a + b) / 2, (b - a) / 2
        total += half * sum(w * f(middle + half * x) for x, w in zip(NODES, NODE_WEIGHTS, strict=True))
    return total


def crps_of_cdf(cdf: Callable[[float], float], y: float, low: float, high: float) -> float:
    """∫ (F(x) - 1[x >= y])² dx; F is 0 below `low` and 1 above `high`."""
    below = integral(lambda x: cdf(x) ** 2, min(low, y), y)
    return below + integral(lambda x: (cdf(x) - 1) ** 2, y, max(high, y))


def mixture_cdf(x: float, means: Numbers, stds: Numbers) -> float:
    return sum(normal_cdf(x, m, s) for m, s in zip(means, stds, strict=True)) / len(means)


def mixture_nll(y: float, means: Numbers, stds: Numbers) -> float:
    return -math.log(sum(normal_pdf(y, m, s) for m, s in zip(means, stds, strict=True)) / len(means))


def mixture_crps(y: float, means: Numbers, stds: Numbers) -> float:
    """One component: the CRPS of a normal."""
    reach = 10 * max(stds)
    return crps_of_cdf(lambda x: mixture_cdf(x, means, stds), y, min(means) - reach, max(means) + reach)


def mixture_quantile(level: float, means: Numbers, stds: Numbers) -> float:
    """By bisection."""
    low, high = min(means) - 20 * max(stds), max(means) + 20 * max(stds)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if mixture_cdf(middle, means, stds) < level else (low, middle)
    return (low + high) / 2


def draws_crps(y: float, draws: Numbers, fair: bool) -> float:
    """E|X - y| - E|X - X'| / 2; fair: the second expectation over pairs of different draws."""
    s = len(draws)
    spread = sum(abs(a - b) for a in draws for b in draws)
    return sum(abs(a - y) for a in draws) / s - spread / (2 * (s * (s - 1) if fair else s * s))


def poisson_pmf(k: int, rate: float) -> float:
    return math.exp(k * math.log(rate) - rate - math.lgamma(k + 1))


def poisson_mixture_nll(y: int, rates: Numbers) -> float:
    return -math.log(sum(poisson_pmf(y, r) for r in rates) / len(rates))


def poisson_mixture_crps(y: int, rates: Numbers) -> float:
    """Σ_k (F(k) - 1[k >= y])²: F is constant between counts."""
    total, cdf = 0.0, 0.0
    for k in range(max(y, int(max(rates))) + 200):
        cdf += sum(poisson_pmf(k, r) for r in rates) / len(rates)
        total += (cdf - (1.0 if k >= y else 0.0)) ** 2
    return total


def quantile(values: Numbers, level: float) -> float:
    """Linear interpolation between order statistics."""
    ordered = sorted(values)
    place = level * (len(ordered) - 1)
    k = min(int(place), len(ordered) - 2)
    return ordered[k] + (place - k) * (ordered[k + 1] - ordered[k])


def rmse(guesses: Numbers, targets: Numbers, weights: Numbers) -> float:
    return math.sqrt(weighted_mean([(g - y) ** 2 for g, y in zip(guesses, targets, strict=True)], weights))


def mae(guesses: Numbers, targets: Numbers, weights: Numbers) -> float:
    return weighted_mean([abs(g - y) for g, y in zip(guesses, targets, strict=True)], weights)


def coverage(lows: Numbers, highs: Numbers, targets: Numbers, weights: Numbers) -> float:
    inside = [1.0 if low <= y <= high else 0.0 for low, high, y in zip(lows, highs, targets, strict=True)]
    return weighted_mean(inside, weights)


def width(lows: Numbers, highs: Numbers, weights: Numbers) -> float:
    return weighted_mean([high - low for low, high in zip(lows, highs, strict=True)], weights)


def interval_score(lows: Numbers, highs: Numbers, targets: Numbers, weights: Numbers, of: float) -> float:
    """Gneiting and Raftery 2007: width + 2 / (1 - of) · how far the target lies outside."""
    scores = []
    for low, high, y in zip(lows, highs, targets, strict=True):
        scores.append(high - low + 2 / (1 - of) * (max(low - y, 0.0) + max(y - high, 0.0)))
    return weighted_mean(scores, weights)
