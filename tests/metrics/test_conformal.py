"""Conformal sets and intervals: definition, promise, and what is refused."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.metrics.cases import rng
from tests.metrics.populations import binomial_limits
from tests.reference import conformal as slow
from whence import metrics
from whence.errors import BadOption, NotDefined, Notice
from whence.metrics.conformal import conformal_quantile, inputs_needed
from whence.metrics.proportions import coverage_by_chance, exact_interval
from whence.predictive.predictions import (
    BinaryPrediction,
    ClassificationPrediction,
    CountPrediction,
    RegressionPrediction,
)

F64 = torch.float64
LEVELS = [Fraction(1, 2), Fraction(4, 5), Fraction(9, 10), Fraction(19, 20), Fraction(99, 100)]


def classes(count: int, g: torch.Generator, c: int = 4, sharper: float = 1.0) -> tuple[Tensor, Tensor]:
    """Probabilities, and labels of a network whose logits are too large by a factor."""
    logits = 1.5 * torch.randn(count, c, generator=g, dtype=F64)
    y = torch.multinomial(logits.softmax(1), 1, generator=g).squeeze(1)
    return (sharper * logits).softmax(1), y


def limits(trials: int, rate: float) -> tuple[float, float]:
    """Counts within 3.3 standard errors."""
    spread = 3.3 * math.sqrt(trials * rate * (1 - rate))
    return trials * rate - spread, trials * rate + spread


# Definition


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", [1, 2, 8, 9, 10, 18, 19, 20, 98, 99, 100, 137, 999])
def test_the_quantile_is_that_of_exact_arithmetic(level: Fraction, count: int) -> None:
    scores = torch.rand(count, generator=rng(count), dtype=F64)
    assert conformal_quantile(scores, float(level)) == slow.threshold(scores.tolist(), level)


@pytest.mark.parametrize("level", LEVELS)
def test_how_many_inputs_a_level_needs(level: Fraction) -> None:
    assert inputs_needed(float(level)) == slow.inputs_needed(level)
    assert (inputs_needed(0.9), inputs_needed(0.95)) == (9, 19)


@pytest.mark.parametrize(
    ("score", "twin"), [("probability", slow.one_minus_probability), ("cumulative", slow.more_probable)]
)
def test_sets_of_classes_by_definition(score: Any, twin: Any) -> None:
    probs, y = classes(60, rng(0))
    found = metrics.conformal(probs, y, level=0.8, score=score)
    limit = slow.threshold([twin(row, int(t)) for row, t in zip(probs.tolist(), y, strict=True)], Fraction(4, 5))
    assert found.threshold == pytest.approx(limit, abs=1e-12)
    new, truth = classes(40, rng(1))
    wanted = [[twin(row, c) <= limit + 1e-12 for c in range(4)] for row in new.tolist()]
    assert found.sets(new).tolist() == wanted
    held = sum(wanted[i][int(t)] for i, t in enumerate(truth))
    assert found.coverage(new, truth) == pytest.approx(held / 40)
    assert torch.equal(found.sets(ClassificationPrediction(new, new.log())), found.sets(new))


def test_cumulative_sets_are_never_empty() -> None:
    probs, y = classes(500, rng(2))
    assert bool(metrics.conformal(probs, y, level=0.1, score="cumulative").sets(probs).any(1).all())
    assert not bool(metrics.conformal(probs, y, level=0.1).sets(probs).any(1).all())


def test_binary_labels_have_two_answers_and_several_a_threshold_each() -> None:
    g = rng(3)
    p = torch.rand(200, 3, generator=g, dtype=F64)
    y = (torch.rand(200, 3, generator=g, dtype=F64) < p).long()
    found = metrics.conformal(BinaryPrediction(p, p.logit()), y)
    alone = [metrics.conformal(BinaryPrediction(p[:, k : k + 1], p[:, k : k + 1].logit()), y[:, k]) for k in range(3)]
    assert found.thresholds == tuple(one.threshold for one in alone)
    sets = found.sets(p)
    assert sets.shape == (200, 3, 2)
    for k, one in enumerate(alone):
        assert torch.equal(one.sets(p[:, k : k + 1]), sets[:, k])
        limit = one.threshold
        assert torch.equal(sets[:, k, 1], 1 - p[:, k] <= limit) and torch.equal(sets[:, k, 0], p[:, k] <= limit)


def test_intervals_by_definition() -> None:
    g = rng(4)
    mean, std = torch.randn(150, 2, generator=g, dtype=F64), 0.2 + torch.rand(150, 2, generator=g, dtype=F64)
    y = mean + std * torch.randn(150, 2, generator=g, dtype=F64)
    prediction = RegressionPrediction(mean, std.square() / 2, std.square() / 2)
    for score in ("normalised", "absolute"):
        found = metrics.conformal(prediction, y, level=0.95, score=score)
        low, high = found.interval(prediction)
        for k in range(2):
            each = ((y - mean)[:, k].abs() / (std[:, k] if score == "normalised" else 1.0)).tolist()
            limit = slow.threshold(each, Fraction(19, 20))
            assert found.thresholds[k] == pytest.approx(limit)
            reach = limit * (std[:, k] if score == "normalised" else torch.ones(150, dtype=F64))
            torch.testing.assert_close(low[:, k], mean[:, k] - reach)
            torch.testing.assert_close(high[:, k], mean[:, k] + reach)
    assert metrics.conformal(mean, y).score.value == "absolute"


def test_intervals_of_counts_are_whole_numbers_and_lose_none() -> None:
    g = rng(5)
    rates = 3 * torch.rand(1, 300, 1, generator=g, dtype=F64) + 0.2
    y = torch.poisson(rates[0], generator=g)
    prediction = CountPrediction(rates[0], torch.full_like(rates[0], 0.1), rates)
    found = metrics.conformal(prediction, y, level=0.8)
    low, high = found.interval(prediction)
    assert torch.equal(low, low.round()) and torch.equal(high, high.round()) and float(low.min()) == 0
    inside = ((low <= y) & (y <= high)).double().mean()
    assert float(inside) == pytest.approx(float(found.coverage(prediction, y)))
    assert inside >= 0.8


# The promise


@pytest.mark.parametrize("score", ["probability", "cumulative"])
@pytest.mark.parametrize("count", [5, 9, 20, 50, 200])
@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
def test_sets_hold_the_truth_as_often_as_promised(score: Any, count: int) -> None:
    """One new input for each of many validation sets, under an overconfident network."""
    trials, level, g = 2_000, 0.9, rng(count)
    probs, y = classes(trials * (count + 1), g, sharper=2.5)
    probs, y = probs.reshape(trials, count + 1, 4), y.reshape(trials, count + 1)
    held = 0
    for p, t in zip(probs, y, strict=True):
        found = metrics.conformal(p[:-1], t[:-1], level=level, score=score)
        held += bool(found.sets(p[-1:])[0, t[-1]])
    exact = math.ceil((count + 1) * 0.9 - 1e-9) / (count + 1)
    low, high = limits(trials, min(exact, 1.0))
    if exact > 1:  # fewer than 9 inputs: every answer belongs to the set
        assert held == trials
    elif score == "probability":
        assert low <= held <= high
    else:  # ties at 0
        assert held >= low


@pytest.mark.parametrize("score", ["normalised", "absolute"])
@pytest.mark.parametrize("count", [8, 9, 19, 60])
@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
def test_intervals_hold_the_truth_as_often_as_promised(score: Any, count: int) -> None:
    """Skewed noise and a standard deviation that is wrong by a factor that depends on the input."""
    trials, g = 2_000, rng(50 + count)
    x = torch.randn(trials, count + 1, generator=g, dtype=F64)
    noise = torch.randn(trials, count + 1, generator=g, dtype=F64).square() - 1
    y, std = x + (0.3 + x.abs()) * noise, 0.2 + 0.1 * x.abs()
    held = 0
    for c, s, t in zip(x, std, y, strict=True):
        prediction = RegressionPrediction(c.unsqueeze(1), s.square().unsqueeze(1), torch.zeros_like(s).unsqueeze(1))
        found = metrics.conformal(_rows(prediction, slice(0, -1)), t[:-1].unsqueeze(1), score=score)
        low, high = found.interval(_rows(prediction, slice(-1, None)))
        held += bool((low <= t[-1]) & (t[-1] <= high))
    exact = math.ceil((count + 1) * 0.9 - 1e-9) / (count + 1)
    low_count, high_count = limits(trials, min(exact, 1.0))
    assert low_count <= held <= high_count


def _rows(prediction: RegressionPrediction, which: slice) -> RegressionPrediction:
    return RegressionPrediction(prediction.mean[which], prediction.aleatoric[which], prediction.epistemic[which])


@pytest.mark.parametrize("grouped", [False, True])
def test_positions_that_depend_on_each_other(grouped: bool) -> None:
    """The promise is for a position of a new image; images have different numbers of positions."""
    trials, count, pixels, g = 1_500, 19, 6, rng(7)
    held, n, level = 0, count + 1, 0.8
    for _ in range(trials):
        # the difficulty of an image is shared by its pixels; difficult images have more of them
        std = torch.exp(torch.randn(n, 1, generator=g, dtype=F64)).expand(n, pixels)
        y = std * torch.randn(n, pixels, generator=g, dtype=F64)
        keep = torch.arange(pixels) < torch.where(std[:, :1] > 1, pixels, 2)
        if grouped:
            flat, group = y[:-1][keep[:-1]], torch.arange(count).unsqueeze(1).expand(-1, pixels)[keep[:-1]]
            found = metrics.conformal(torch.zeros_like(flat), flat, groups=group, level=level)
        else:
            shaped, mask = y[:-1].reshape(-1, 1, 2, 3), keep[:-1].reshape(-1, 1, 2, 3)
            found = metrics.conformal(torch.zeros_like(shaped), shaped, level=level, mask=mask)
        assert found.count == count
        held += bool(y[-1, 0].abs() <= found.threshold)  # any position: they are exchangeable
    assert held >= limits(trials, level)[0]
    assert held <= limits(trials, level + 1 / n)[1]
    values = [slow.grouped_threshold(y[:-1].abs().tolist(), keep[:-1].tolist(), Fraction(4, 5))]
    assert found.threshold == pytest.approx(values[0])
    assert ("group" if grouped else "position") in found.guarantee


def test_test_coverage_stays_in_the_range_of_chance() -> None:
    trials, n, m, g = 600, 50, 80, rng(9)
    outside = 0
    for _ in range(trials):
        probs, y = classes(n + m, g)
        found = metrics.conformal(probs[:n], y[:n])
        low, high = found.by_chance(m)
        outside += not low - 1e-9 <= float(found.coverage(probs[n:], y[n:])) <= high + 1e-9
    assert outside <= binomial_limits(trials, 0.05)[1]
    assert outside > 0


# Exact distributions


@pytest.mark.parametrize(("k", "n"), [(0, 7), (7, 7), (3, 10), (45, 50), (1, 1)])
def test_clopper_and_pearson(k: int, n: int) -> None:
    low, high = exact_interval(k, n)
    assert low <= k / n <= high
    assert low == 0.0 if k == 0 else 1 - slow.binomial_at_most(k - 1, n, low) == pytest.approx(0.025, rel=1e-6)
    assert high == 1.0 if k == n else slow.binomial_at_most(k, n, high) == pytest.approx(0.025, rel=1e-6)


@pytest.mark.parametrize(("rank", "n", "m"), [(9, 9, 5), (18, 19, 30), (46, 50, 40)])
def test_coverage_by_chance_is_beta_binomial(rank: int, n: int, m: int) -> None:
    mass = [float(slow.beta_binomial(k, m, rank, n + 1 - rank)) for k in range(m + 1)]
    assert sum(mass) == pytest.approx(1)
    low, high = (round(end * m) for end in coverage_by_chance(rank, n, m))
    assert sum(mass[:low]) <= 0.025 < sum(mass[: low + 1])
    assert sum(mass[high + 1 :]) <= 0.025 < sum(mass[high:])


# Refusals


def test_too_few_inputs_say_how_many_are_needed() -> None:
    probs, y = classes(18, rng(11))
    with pytest.warns(Notice, match="needs at least 19 validation inputs; there are 18"):
        found = metrics.conformal(probs, y, level=0.95)
    assert found.threshold == math.inf and bool(found.sets(probs).all())
    assert found.by_chance(10) == (1.0, 1.0)


def test_what_does_not_fit_is_refused() -> None:
    probs, y = classes(30, rng(12))
    with pytest.raises(BadOption, match="score='absolute' is not for classes"):
        metrics.conformal(probs, y, score="absolute")
    with pytest.raises(BadOption, match="level"):
        metrics.conformal(probs, y, level=1.0)
    with pytest.raises(NotDefined, match="sets, not intervals"):
        metrics.conformal(probs, y).interval(probs)
    numbers = torch.zeros(30), torch.randn(30)
    with pytest.raises(NotDefined, match="intervals, not sets"):
        metrics.conformal(*numbers).sets(numbers[0])
    with pytest.raises(BadOption, match="score='absolute'"):
        metrics.conformal(*numbers, score="normalised")


def test_ignored_labels_do_not_count() -> None:
    probs, y = classes(100, rng(13))
    masked = y.clone()
    masked[::4] = -100
    keep = masked >= 0
    assert metrics.conformal(probs, masked) == metrics.conformal(probs[keep], y[keep])
    assert metrics.conformal(probs, y, mask=keep) == metrics.conformal(probs[keep], y[keep])
