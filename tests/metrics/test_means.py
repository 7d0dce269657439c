"""Intervals for few inputs, and the comparison of groups: definitions, invariances, and simulated error rates."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.subgroups import claimed, coverage, truth
from tests.metrics.cases import rng
from tests.metrics.populations import binomial_limits
from tests.reference import people as slow
from whence import metrics
from whence.metrics.elements import MetricOptions, elements
from whence.metrics.group_test import group_differences
from whence.metrics.means import mean, share
from whence.metrics.proportions import beta_below, beta_quantile, clustered_share, exact_interval, share_of, t_quantile

SETS = 200


@pytest.mark.parametrize(("hits", "trials"), [(0, 1), (1, 1), (0, 20), (20, 20), (3, 20), (17, 20), (1, 60), (33, 60)])
def test_shares_have_the_interval_of_clopper_and_pearson(hits: int, trials: int) -> None:
    assert exact_interval(hits, trials) == pytest.approx(slow.clopper_pearson(hits, trials), abs=1e-9)


def test_quantiles_undo_probabilities_far_out_and_for_many_trials() -> None:
    for a, b in ((0.5, 0.5), (1, 1), (3.2, 900), (9000, 1001), (1e5, 2e5)):
        for part in (1e-6, 0.025, 0.5, 0.975):
            assert beta_below(beta_quantile(part, a, b), a, b) == pytest.approx(part, rel=1e-6)
    assert t_quantile(0.975, 9) == pytest.approx(2.262157, abs=1e-6)


def test_no_trials_no_share() -> None:
    assert share_of("x", 0, 0) is None
    assert clustered_share("x", torch.zeros(3), torch.zeros(3)) is None


def test_labels_that_repeat_an_input_count_once() -> None:
    """Five copies of the same label are as good as one; five independent ones are nearly as good as five."""
    g = rng(0)
    once = (torch.rand(60, generator=g) < 0.3).double()
    copied = clustered_share("x", 5 * once, torch.full((60,), 5.0))
    alone = share_of("x", int(once.sum()), 60)
    assert copied is not None and alone is not None
    assert float(copied) == pytest.approx(float(alone))
    assert copied.interval == pytest.approx(alone.interval, abs=0.01)
    apart = (torch.rand(400, 5, generator=g) < 0.3).double()
    found, free = clustered_share("x", apart.sum(1), torch.full((400,), 5.0)), share_of("x", int(apart.sum()), 2000)
    assert found is not None and free is not None
    assert found.high - found.low == pytest.approx(free.high - free.low, rel=0.15)


def test_a_mean_of_few_is_the_mean_and_does_not_depend_on_the_order() -> None:
    values = torch.rand(40, generator=rng(1), dtype=torch.float64).log().square()
    members = elements(values.shape, MetricOptions(), values.device)
    found = mean("x", values, members)
    assert float(found) == pytest.approx(float(values.mean())) and found.low < float(found) < found.high
    again = mean("x", values[torch.randperm(40, generator=rng(2))], members)
    assert again.interval == pytest.approx(found.interval, rel=1e-9)
    root = mean("x", values, members, root=True)
    assert float(root) == pytest.approx(math.sqrt(float(found))) and root.high == pytest.approx(math.sqrt(found.high))
    assert mean("x", torch.ones(40), members).interval == (1.0, 1.0)
    most = 1 - 0.025 ** (1 / 40)
    assert mean("x", torch.zeros(40), members, (0.0, 1.0)).high == pytest.approx(most)
    assert mean("x", torch.zeros(40), members, (-1.0, 1.0)).interval == pytest.approx((-most, most))
    assert mean("x", torch.zeros(40), members).interval == (0.0, 0.0)  # without bounds nothing is known


def test_a_perfect_score_may_be_by_chance() -> None:
    """Six inputs of each kind in order: one more could be out of order; no resample shows that."""
    found = metrics.auroc(torch.arange(12.0), torch.arange(12) > 5)
    assert float(found) == 1.0 and found.low == pytest.approx(0.025 ** (1 / 6))
    tied = metrics.auroc_difference(torch.arange(12.0), 2 * torch.arange(12.0), torch.arange(12) > 5)
    assert float(tied) == 0.0 and tied.low == pytest.approx(-tied.high) and tied.high > 0.4
    apart = torch.cat([torch.arange(3.0), torch.arange(3.0) + 0.5, torch.arange(6.0) + 3])
    same = metrics.auroc_difference(apart, apart, torch.arange(12) % 2 > 0)
    assert same.interval == (0.0, 0.0)  # one score beside itself, where it is not perfect


@pytest.mark.parametrize(("count", "seed"), [(100, 10), (250, 1)])
def test_a_calibration_error_is_not_0_where_its_mean_is_significant(count: int, seed: int) -> None:
    """Stated ten points too high: bins alone could not tell the error from 0, the mean over all inputs can."""
    g = rng(seed)
    stated = 0.6 + 0.38 * torch.rand(count, generator=g)
    labels = (torch.rand(count, generator=g) > stated - 0.1).long()
    gap = float(stated.mean() - (labels == 0).double().mean())
    assert gap > 2.5 * math.sqrt(0.2 / count)
    assert metrics.ece(torch.stack([stated, 1 - stated], 1), labels).low > 0


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_of_a_mean_is_that_of_a_loop(level: float) -> None:
    values = torch.randn(50, generator=rng(4), dtype=torch.float64) ** 2
    found = mean("x", values, elements(values.shape, MetricOptions(level=level, resamples=20_000), values.device))
    low, high = slow.studentised(values.tolist(), level, 20_000)
    assert found.low == pytest.approx(low, abs=0.05 * (high - low))
    assert found.high == pytest.approx(high, abs=0.05 * (high - low))


def test_the_elements_of_an_input_are_resampled_together() -> None:
    each = torch.rand(30, generator=rng(3), dtype=torch.float64)
    repeated = each.unsqueeze(1).expand(30, 4)
    members = elements(repeated.shape, MetricOptions(), each.device)
    alone = mean("x", each, elements(each.shape, MetricOptions(), each.device))
    assert mean("x", repeated.reshape(-1), members).interval == pytest.approx(alone.interval, rel=1e-9)
    wrong = (repeated < 0.4).double()
    found = share("x", wrong.reshape(-1), members)
    assert found.count == 120 and found.high - found.low > 0.25  # of 30 inputs, not of 120 labels


@pytest.mark.parametrize("size", [20, 50])
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("accuracy, over-confident", 0.95),
        ("NLL, over-confident", 0.93),
        ("NLL, calibrated", 0.93),
        ("Brier score, over-confident", 0.94),
        ("RMSE", 0.92),
        ("error rate of several labels", 0.94),
    ],
)
def test_intervals_of_groups_contain_the_truth(name: str, size: int, least: float) -> None:
    """benchmarks/subgroups.py has more data sets, and docs/metrics.md its table."""
    missed = SETS - round(SETS * coverage(name, size, SETS))
    assert missed <= binomial_limits(SETS, 1 - least)[1]
    assert math.isfinite(truth(name))


# Comparisons


def test_p_values_are_those_of_all_permutations() -> None:
    values = [0.3, 2.9, 0.1, 1.1, 0.2, 3.4, 0.9]
    groups = [[1, 5], [0, 2, 4]]
    members = torch.zeros(7, 2, dtype=torch.bool)
    for g, group in enumerate(groups):
        members[group, g] = True
    found = group_differences(torch.tensor(values)[:, None], members, permutations=20_000)
    assert found.p[:, 0].tolist() == pytest.approx(slow.exact_p_values(values, groups), abs=0.012)
    rest = [v for n, v in enumerate(values) if n not in groups[0]]
    assert float(found.value[0, 0]) == pytest.approx((2.9 + 3.4) / 2 - sum(rest) / 5)


def test_intervals_and_p_values_agree_and_nothing_depends_on_the_order() -> None:
    g = rng(5)
    members = torch.nn.functional.one_hot(torch.arange(300) % 3).bool()
    values = torch.randn(300, 2, generator=g, dtype=torch.float64)
    values[:, 0] += 0.6 * members[:, 1]
    found = group_differences(values, members)
    outside = (found.value.abs() > found.reach).tolist()
    assert outside == (found.p <= 0.05).tolist() and any(map(any, outside))
    order = torch.randperm(300, generator=g)
    again = group_differences(values[order], members[order])
    assert torch.equal(again.p, found.p)
    assert torch.allclose(again.reach, found.reach)
    scaled = group_differences(values * torch.tensor([100.0, 0.01]), members)
    assert torch.equal(scaled.p, found.p)


def test_what_never_happens_does_not_differ() -> None:
    members = torch.nn.functional.one_hot(torch.arange(60) % 2).bool()
    found = group_differences(torch.zeros(60, 1), members, permutations=50)
    assert bool((found.p == 1).all()) and bool((found.value == 0).all())


@pytest.mark.parametrize("name", ["groups alike: 20, 30, 50, 400", "groups alike: 100, 100"])
def test_groups_that_are_alike_are_rarely_said_to_differ(name: str) -> None:
    assert claimed(name, SETS, permutations=200) * SETS <= binomial_limits(SETS, 0.05)[1]


def test_groups_that_differ_are_found() -> None:
    assert claimed("error rate 15% in 100, 5% in 400", 60, permutations=200) > 0.5


def test_deferral_of_labels_resamples_inputs() -> None:
    """The rule of several labels of each input: one label repeated gives the interval of one."""
    u = torch.rand(200, generator=rng(7), dtype=torch.float64)
    wrong = (torch.rand(200, generator=rng(8), dtype=torch.float64) < 0.5 * u).double()
    many_u, many_wrong = u.unsqueeze(1).expand(200, 6), wrong.unsqueeze(1).expand(200, 6)
    one = metrics.defer(u, wrong, coverage=0.8)
    many = metrics.defer(many_u, many_wrong, coverage=0.8)
    assert many.threshold == one.threshold and one.error is not None and many.error is not None
    assert float(many.error) == pytest.approx(float(one.error))
    assert many.error.interval == pytest.approx(one.error.interval, abs=0.02)
