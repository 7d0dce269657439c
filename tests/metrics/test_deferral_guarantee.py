"""The rule that says which predictions to hand to a person: its definition and its guarantee."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.covering import covering
from tests.metrics.cases import rng
from tests.metrics.populations import binomial_limits
from tests.reference import metrics as slow
from whence import metrics
from whence.errors import BadData, BadOption, Notice

SETS = 400


def validation(count: int, seed: int, levels: int | None = None) -> tuple[Tensor, Tensor]:
    """Errors are more probable where the uncertainty, uniform in (0, 1), is higher."""
    g = rng(seed)
    u = torch.rand(count, generator=g, dtype=torch.float64)
    if levels is not None:
        u = (u * levels).floor() / levels
    return u, (torch.rand(count, generator=g, dtype=torch.float64) < 0.6 * u).double()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("levels", [None, 20, 4])
@pytest.mark.parametrize("max_error", [0.05, 0.1, 0.2, 0.3])
@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
def test_largest_coverage_within_the_error(seed: int, levels: int | None, max_error: float) -> None:
    u, e = validation(120, seed, levels)
    rule = metrics.defer(u, e, max_error=max_error, resamples=0)
    wanted = slow.largest_coverage(u.tolist(), e.tolist(), max_error)
    kept = u <= wanted
    assert torch.equal(rule(u), kept)
    assert rule.coverage == pytest.approx(float(kept.double().mean()))
    if kept.any():
        assert rule.error == pytest.approx(float(e[kept].mean()))
        assert rule.error <= max_error
    else:
        assert rule.error is None
        assert rule.threshold == -math.inf
    if kept.all():
        assert rule.deferred_error is None
    else:
        assert rule.deferred_error == pytest.approx(float(e[~kept].mean()))


@pytest.mark.parametrize("percent", range(1, 100))
def test_the_error_may_equal_the_bound(percent: int) -> None:
    """100 elements, of which `percent` are wrong, the most uncertain ones."""
    u = torch.arange(100.0)
    e = (torch.arange(100) >= 100 - percent).double()
    rule = metrics.defer(u, e, max_error=percent / 100, resamples=0)
    assert rule.coverage == 1.0
    assert bool(rule(u).all())


def test_losses_between_0_and_1() -> None:
    g = rng(3)
    u, loss = torch.rand(2, 80, generator=g, dtype=torch.float64)
    loss = loss * u
    rule = metrics.defer(u, loss, max_error=0.15, resamples=0)
    wanted = slow.largest_coverage(u.tolist(), loss.tolist(), 0.15)
    assert torch.equal(rule(u), u <= wanted)
    with pytest.raises((BadData, BadOption)):
        metrics.defer(u, loss, max_error=0.15, confidence=0.95)


@pytest.mark.parametrize("coverage", [0.25, 0.5, 0.8, 1.0])
def test_coverage_asked_for(coverage: float) -> None:
    u, e = validation(40, 0)
    rule = metrics.defer(u, e, coverage=coverage, resamples=0)
    assert int(rule(u).sum()) == round(40 * coverage)
    kept = u <= u.sort().values[round(40 * coverage) - 1]
    assert torch.equal(rule(u), kept)
    assert rule.error == pytest.approx(float(e[kept].mean()))


@pytest.mark.parametrize("keywords", [{}, {"max_error": 0.1, "coverage": 0.5}])
def test_exactly_one_target(keywords: dict[str, float]) -> None:
    u, e = validation(40, 0)
    with pytest.raises(BadOption):
        metrics.defer(u, e, **keywords)


def test_a_block_of_ties_is_kept_or_deferred_as_one() -> None:
    u = torch.tensor([0.1, 0.1, 0.2, 0.2, 0.2, 0.2])
    e = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    rule = metrics.defer(u, e, max_error=0.2, resamples=0)
    assert rule(u).tolist() == [True, True, False, False, False, False]
    assert metrics.defer(u, e, max_error=1 / 3, resamples=0)(u).all()


def test_nothing_passes() -> None:
    u = torch.arange(10.0)
    with pytest.warns(Notice):
        rule = metrics.defer(u, torch.ones(10), max_error=0.1, resamples=0)
    assert rule.threshold == -math.inf
    assert rule.coverage == 0
    assert rule.error is None
    assert rule.deferred_error == 1.0
    assert not rule(u).any()


def test_check_on_other_data() -> None:
    u, e = validation(200, 1)
    rule = metrics.defer(u, e, max_error=0.1, resamples=0)
    other_u, other_e = validation(300, 2)
    checked = rule.check(other_u, other_e)
    kept = other_u <= rule.threshold
    assert checked.threshold == rule.threshold
    assert checked.coverage == pytest.approx(float(kept.double().mean()))
    assert checked.error == pytest.approx(float(other_e[kept].mean()))
    assert checked.deferred_error == pytest.approx(float(other_e[~kept].mean()))


# ---------------------------------------------------------------- the guarantee: error rates of the whole population


def rising(u: Tensor) -> Tensor:
    return 0.4 * u


def flat_above(u: Tensor) -> Tensor:
    """Nothing may be kept: every coverage has an error of 0.12."""
    return torch.full_like(u, 0.12)


def flat_at_the_bound(u: Tensor) -> Tensor:
    return torch.full_like(u, 0.1 + 1e-9)


def step(u: Tensor) -> Tensor:
    """No errors among the first tenth, then many."""
    return torch.where(u < 0.1, 0.0, 0.5)


def falling(u: Tensor) -> Tensor:
    """An uncertainty that is worse than none."""
    return 0.3 - 0.2 * u


POPULATIONS: list[tuple[Callable[[Tensor], Tensor], int]] = [
    (rising, 100), (rising, 1000), (flat_above, 300), (flat_at_the_bound, 300), (step, 300), (falling, 300),
]  # fmt: skip


@functools.cache
def population(rate: Callable[[Tensor], Tensor], levels: int | None) -> tuple[Tensor, Tensor]:
    """Uniform uncertainties as they are shown, which rise, and the mean error rate up to each."""
    u = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    shown = u if levels is None else (u * levels).floor() / levels
    return shown, rate(u).cumsum(0) / torch.arange(1, 200_001)


def population_error(rate: Callable[[Tensor], Tensor], threshold: float, levels: int | None) -> float:
    """The mean error rate where uniform uncertainty is at most the threshold."""
    shown, error = population(rate, levels)
    kept = int(torch.searchsorted(shown, threshold, right=True))
    return float(error[kept - 1]) if kept else 0.0


def failures(rate: Callable[[Tensor], Tensor], count: int, confidence: float | None, levels: int | None) -> int:
    """In how many data sets the rule's error in the population exceeds 0.1."""
    exceeded = 0
    for k in range(SETS):
        g = rng(k)
        u = torch.rand(count, generator=g, dtype=torch.float64)
        errors = (torch.rand(count, generator=g, dtype=torch.float64) < rate(u)).double()
        shown = u if levels is None else (u * levels).floor() / levels
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            rule = metrics.defer(shown, errors, max_error=0.1, confidence=confidence, resamples=0)
        exceeded += population_error(rate, rule.threshold, levels) > 0.1
    return exceeded


@pytest.mark.parametrize(("population_of", "levels"), covering(POPULATIONS, [None, 12]))
def test_the_bound_holds_with_the_confidence_asked_for(
    population_of: tuple[Callable[[Tensor], Tensor], int], levels: int | None
) -> None:
    rate, count = population_of
    assert failures(rate, count, 0.95, levels) <= binomial_limits(SETS, 0.05)[1]


def test_other_confidence() -> None:
    assert failures(rising, 300, 0.8, None) <= binomial_limits(SETS, 0.2)[1]


def test_without_confidence_the_bound_is_exceeded_about_half_the_time() -> None:
    assert failures(rising, 300, None, None) > 0.3 * SETS


def test_the_guarantee_costs_coverage_but_not_all_of_it() -> None:
    """Error rate 0.4 u: up to u = 0.5 may be kept."""
    g = rng(0)
    u = torch.rand(5000, generator=g, dtype=torch.float64)
    errors = (torch.rand(5000, generator=g, dtype=torch.float64) < rising(u)).double()
    sure = metrics.defer(u, errors, max_error=0.1, confidence=0.95, resamples=0)
    plain = metrics.defer(u, errors, max_error=0.1, resamples=0)
    assert 0.38 < sure.coverage < plain.coverage < 0.6
    assert sure.error <= 0.1


def clopper_pearson_upper(wrong: int, count: int, confidence: float) -> float:
    """The error rate under which so few wrong have probability 1 - confidence, by bisection."""
    low, high = wrong / count, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        tail = sum(math.comb(count, k) * rate**k * (1 - rate) ** (count - k) for k in range(wrong + 1))
        low, high = (rate, high) if tail > 1 - confidence else (low, rate)
    return high


@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_passes_the_exact_bound(seed: int) -> None:
    u, e = validation(300, seed)
    rule = metrics.defer(u, e, max_error=0.15, confidence=0.9, resamples=0)
    kept = rule(u)
    assert kept.any()
    assert clopper_pearson_upper(int(e[kept].sum()), int(kept.sum()), 0.9) <= 0.15 + 1e-9


@pytest.mark.parametrize("count", [28, 29])
@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
def test_the_fewest_examples_that_can_pass(count: int) -> None:
    """Without any error 0.9^n <= 0.05 asks for 29 examples."""
    rule = metrics.defer(torch.arange(float(count)), torch.zeros(count), max_error=0.1, confidence=0.95, resamples=0)
    assert rule.coverage == (1.0 if count >= 29 else 0.0)
