"""By how much deferral changes the error: a paired difference of the answered inputs from all."""

from __future__ import annotations

import math

import pytest
import torch

from whence.auditing.answered import Answers, quantile_index
from whence.auditing.deferral import coverage_words
from whence.auditing.steps import NumberAnswers
from whence.metrics.proportions import coverage_by_chance
from whence.report.record.audit import Chosen, Deferral, DeferralRule, ExpectedShare, Reached
from whence.report.record.common import Estimate


def ranked(count: int, labels: int, seed: int, use: float) -> Answers:
    """Inputs whose share of wrong labels grows with their uncertainty by ``use``."""
    gen = torch.Generator().manual_seed(seed)
    uncertainty = torch.rand(count, generator=gen, dtype=torch.float64)
    rate = (0.06 + use * (uncertainty - 0.5)).clamp(0, 1)
    wrong = torch.binomial(torch.full((count,), float(labels), dtype=torch.float64), rate, generator=gen)
    return Answers(uncertainty, wrong, torch.full((count,), float(labels), dtype=torch.float64))


@pytest.mark.parametrize("labels", [1, 50])
def test_the_change_is_the_difference_of_two_error_rates(labels: int) -> None:
    answers = ranked(200, labels, 0, 0.1)
    kept = answers.uncertainty <= 0.8
    change, some, every = answers.change(kept), answers.error(kept), answers.error(torch.ones_like(kept))
    assert change is not None and some is not None and every is not None
    assert float(change) == pytest.approx(float(some) - float(every))
    assert change.low < float(change) < change.high


def test_the_interval_is_that_of_a_loop_over_resampled_inputs() -> None:
    answers = ranked(80, 20, 1, 0.1)
    kept, gen = answers.uncertainty <= 0.8, torch.Generator().manual_seed(5)
    drawn = []
    for _ in range(2000):
        at = torch.randint(80, (80,), generator=gen)
        some = at[kept[at]]
        drawn.append(float(answers.wrong[some].sum() / answers.labels[some].sum() - answers.wrong[at].mean() / 20))
    change = answers.change(kept)
    assert change is not None
    low, high = torch.tensor(drawn).quantile(torch.tensor([0.025, 0.975])).tolist()
    assert change.low == pytest.approx(low, abs=0.2 * (high - low))
    assert change.high == pytest.approx(high, abs=0.2 * (high - low))


def test_a_fall_is_found_where_the_two_intervals_overlap() -> None:
    """Errors of the answered are part of those of all, so that the two vary together."""
    found = 0
    for seed in range(20):
        answers = ranked(100, 50, seed, 0.1)
        kept = answers.uncertainty <= 0.8
        change, some, every = answers.change(kept), answers.error(kept), answers.error(torch.ones_like(kept))
        assert change is not None and some is not None and every is not None
        found += change.high < 0 and some.high > float(every)
    assert found >= 4


def rule(target: float, share: tuple[float, float, float], expected: ExpectedShare) -> DeferralRule:
    reached = Reached(Estimate(*share, 0.95, 200), None, None)
    return DeferralRule("coverage", target, None, 0.2, "some", Chosen(target, 0.05), reached, expected)


def test_rules_that_miss_their_aim_are_explained_by_chance_or_by_different_data() -> None:
    """The expected range is that of thresholds that are drawn again and again."""
    low, high = coverage_by_chance(quantile_index(100, 0.9) + 1, 100, 200)
    gen = torch.Generator().manual_seed(0)
    held, test = torch.rand(4000, 100, generator=gen), torch.rand(4000, 200, generator=gen)
    drawn = (test <= held.sort(1).values[:, quantile_index(100, 0.9) : quantile_index(100, 0.9) + 1]).double().mean(1)
    assert 0.95 <= float(((drawn >= low) & (drawn <= high)).double().mean()) < 0.98
    expected = ExpectedShare(low, high, 100)
    rows = (
        rule(0.9, (0.91, 0.86, 0.94), expected),
        rule(0.9, (0.85, 0.80, 0.893), expected),
        rule(0.9, (0.7, 0.63, 0.76), expected),
    )
    words = [*coverage_words(Deferral("entropy", "entropy", "error rate", rows, None, ()))]
    assert len(words) == 2
    assert words[0] == (
        "Of the test inputs, the rule for 90% answers 85.0% (95% interval 80.0% to 89.3%): the interval excludes the "
        "aim. Thresholds that are chosen on 100 validation inputs can differ that much by chance."
    )
    assert words[1].startswith(
        "The rule for 90% answers 70.0% (95% interval 63.0% to 76.0%) of the test inputs. By chance"
    )
    assert words[1].endswith("the test inputs seem more uncertain than the validation inputs.")
    two = (rows[1], rule(0.8, (0.74, 0.67, 0.79), ExpectedShare(0.69, 0.88, 100)))
    (both,) = coverage_words(Deferral("entropy", "entropy", "error rate", two, None, ()))
    start = (
        "Of the test inputs, the rule for 90% answers 85.0% (95% interval 80.0% to 89.3%) and the rule for 80% answers"
    )
    assert both.startswith(f"{start} 74.0% (")
    assert "the intervals exclude the aim" in both


def test_uncertainty_that_says_nothing_is_rarely_significant() -> None:
    signs = []
    for seed in range(100):
        answers = ranked(100, 50, seed, 0.0)
        change = answers.change(answers.uncertainty <= 0.8)
        assert change is not None
        signs.append(change.low > 0 or change.high < 0)
    assert sum(signs) <= 12  # of 100 at 5%


def test_root_mean_squared_errors() -> None:
    gen = torch.Generator().manual_seed(0)
    answers = NumberAnswers(torch.rand(60, generator=gen).double(), torch.rand(60, generator=gen).double())
    kept = answers.uncertainty <= 0.5
    change = answers.change(kept)
    assert change is not None
    assert float(change) == pytest.approx(math.sqrt(answers.squared[kept].mean()) - math.sqrt(answers.squared.mean()))


def test_no_change_without_both_kinds() -> None:
    answers = ranked(20, 1, 0, 0.1)
    numbers = NumberAnswers(answers.uncertainty, answers.wrong)
    for threshold in (-1.0, 2.0):
        assert answers.change(answers.uncertainty <= threshold) is None
        assert numbers.change(answers.uncertainty <= threshold) is None
