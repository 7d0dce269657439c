"""Groups of test inputs: how they are given, what is said about them, and that order and cuts are respected."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import whence
from tests.auditing.cases import ALL
from whence.auditing import schema
from whence.auditing.data import read_examples
from whence.auditing.group_advice import about_groups
from whence.auditing.grouping import Divided, divided, read_groups
from whence.auditing.groups import _words
from whence.errors import BadOption, NotDefined, Notice
from whence.report.record.common import Estimate
from whence.report.record.groups import Group, GroupDifference, Grouping, Groups

QUANTITIES = (("error rate", 0.141, True), ("log loss", 0.298, False), ("share deferred", 0.36, True))
SECTIONS = ["quality", "deferral", "groups"]


@functools.cache
def given(name: str) -> Any:
    return ALL[name]()


@functools.cache
def posterior(name: str) -> Any:
    one = given(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(
            one.model, one.train, likelihood=one.likelihood, validation=one.validation, progress=False
        )


def audited(name: str, groups: Any, test: Any = None, **options: Any) -> whence.Audit:
    one = given(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.audit(
            posterior(name), test=one.test if test is None else test, validation=one.validation, groups=groups,
            sections=SECTIONS, progress=False, **options,
        )  # fmt: skip


def split(values: Any, note: str = "") -> Divided:
    return divided("x", np.asarray(values), note)


def sizes(found: Divided) -> dict[str, int]:
    return dict(zip(found.names, torch.bincount(found.place, minlength=len(found.names)).tolist(), strict=True))


# How groups are given


def test_words_numbers_and_booleans_are_groups() -> None:
    assert sizes(split(["b", "a", "b"])) == {"a": 1, "b": 2}
    assert sizes(split([True, False, True])) == {"false": 1, "true": 2}
    assert sizes(split([10, 2, 2])) == {"2": 2, "10": 1}
    assert sizes(split(np.array([1.5, None, "old", float("nan")], dtype=object))) == {"1.5": 1, "old": 1, "missing": 2}
    assert sizes(split(np.array([1, 2, None], dtype=object))) == {"1": 1, "2": 1, "missing": 1}


def test_many_numbers_are_cut_at_quantiles() -> None:
    found = split(np.arange(100.0))
    assert list(sizes(found).values()) == [25] * 4 and found.names[0] == "up to 24.8" and "quantiles" in found.about
    tied = split(np.array([0.0] * 70 + list(range(1, 31))))
    assert sizes(tied)["up to 0"] == 70, "equal values stay together"
    gone = split(np.array([*np.arange(40.0), np.nan]))
    assert sizes(gone)["missing"] == 1


def test_categories_keep_their_order_and_numbers_in_words_are_sorted_by_size() -> None:
    assert split(["10 to 14", "5 to 9", "5 to 9", "adult"]).names == ("adult", "5 to 9", "10 to 14")
    pandas = pytest.importorskip("pandas")
    ages = ["under 40", "40 to 64", "65 and over"]
    given = pandas.Categorical([ages[i % 3] for i in range(40)], categories=[*ages, "unused"], ordered=True)
    for groups in (given, pandas.DataFrame({"age": given}), {"age": pandas.Series(given)}):
        found = read_groups(groups, examples(40, 100), None)
        assert found is not None and found.of(examples(40, 100))[0].names == tuple(ages)
        assert found.of(examples(40, 100))[0].place.tolist() == [i % 3 for i in range(40)]
    numbers = read_groups(pandas.Categorical([2, 1] * 20, categories=[2, 1]), examples(40, 100), None)
    assert numbers is not None and numbers.of(examples(40, 100))[0].names == ("2", "1")


def test_too_many_words_leave_the_most_frequent_and_the_others() -> None:
    found = split([f"w{i}" for i in range(50)] + ["w7"] * 9)
    assert len(found.names) == 20 and "31 other values" in found.names and sizes(found)["w7"] == 10


def test_one_group_is_no_grouping() -> None:
    with pytest.raises(NotDefined, match="all 3 test inputs are in the same group"):
        split(["a", "a", "a"])


def examples(count: int, most: int, loader: bool = False) -> Any:
    pair = torch.arange(2.0 * count).reshape(count, 2), torch.zeros(count)
    return read_examples(DataLoader(TensorDataset(*pair), batch_size=7) if loader else pair, "test", most)


def test_a_wrong_length_is_refused_with_both_numbers() -> None:
    with pytest.raises(BadOption, match=r"has 9 values for 10 test inputs.*mapping"):
        read_groups(["a"] * 9, examples(10, 100), None)
    with pytest.raises(BadOption, match="has 3 values, but at least 5 test inputs"):
        read_groups(np.zeros(3), examples(10, 5, loader=True), None)
    with pytest.raises(BadOption, match=r"shape \(10, 2\)"):
        read_groups(np.zeros((10, 2)), examples(10, 100), None)
    with pytest.raises(BadOption, match="no test data"):
        read_groups(["a"], None, None)


def test_a_loader_that_shuffles_is_refused() -> None:
    """Its inputs come in another order than the groups; a column comes with them."""
    data = TensorDataset(torch.randn(40, 2), torch.zeros(40))
    loader = DataLoader(data, batch_size=7, shuffle=True)
    with pytest.raises(BadOption, match="the test loader shuffles"):
        read_groups(["a", "b"] * 20, read_examples(loader, "test", 100), None, loader)
    assert read_groups(1, read_examples(loader, "test", 100), None, loader) is not None


@pytest.mark.parametrize("loader", [False, True])
def test_groups_follow_the_inputs_that_were_read(loader: bool) -> None:
    """A loader is read from its beginning, a pair of tensors evenly; labels follow, and the page says which."""
    test = examples(30, 11, loader)
    found = read_groups([i % 3 for i in range(30)], test, None)
    assert found is not None and ("the first ones" if loader else "evenly") in found.note
    for some in (test, test.at(torch.tensor([7, 2, 4]))):
        (of,) = found.of(some)
        wanted = [str(int(i) % 3) for i in some.inputs[:, 0] / 2]
        assert [of.names[place] for place in of.place] == wanted


def test_columns_by_name_and_index() -> None:
    test = examples(40, 100)
    for groups, name in (("weight", "weight"), (1, "weight"), ({"w": "weight"}, "w"), ({"w": 1}, "w")):
        found = read_groups(groups, test, ["age", "weight"])
        assert found is not None and [one.name for one in found.of(test)] == [name]
        assert list(sizes(found.of(test)[0]).values()) == [10] * 4
    assert read_groups(0, test, None).of(test)[0].name == "column 0"  # type: ignore[union-attr]
    with pytest.raises(BadOption, match="pass features="):
        read_groups("weight", test, None)
    with pytest.raises(BadOption, match="columns 0 to 1"):
        read_groups(2, test, None)
    with pytest.raises(BadOption, match="Did you mean 'weight'"):
        read_groups("wieght", test, ["age", "weight"])
    pictures = read_examples(torch.zeros(4, 1, 3, 3), "test", 9)
    with pytest.raises(BadOption, match="not rows of a table"):
        read_groups(0, pictures, None)


def test_a_data_frame_has_a_grouping_for_each_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"sex": ["f", "m"] * 20, "age": range(40)})
    found = read_groups(frame, examples(40, 100), None)
    assert found is not None and [one.name for one in found.of(examples(40, 100))] == ["sex", "age"]
    named = read_groups(frame["sex"].astype("category"), examples(40, 100), None)
    assert named is not None and named.of(examples(40, 100))[0].name == "sex"


# What is said about them


@pytest.mark.parametrize("name", ["classification", "binary", "several", "regression", "counts", "dense"])
def test_all_inputs_as_a_group_have_the_metrics_of_the_audit(name: str) -> None:
    count = len(given(name).test[1])
    audit = audited(name, {"site": ["a"] * (count // 2) + ["b"] * (count - count // 2)})
    jsonschema.Draft202012Validator(schema()).validate(audit.record)
    json.dumps(audit.record, allow_nan=False)
    found, quality = audit.results.groups, audit.results.quality
    assert found is not None and quality is not None
    overall = dict(zip((metric.name for metric in found.metrics), found.overall.metrics, strict=True))
    for metric in quality.metrics:
        if metric.name in overall:
            assert overall[metric.name].value == pytest.approx(metric.bayesian.value, rel=1e-5), metric.name
    assert {"nll"} <= set(overall) and len(overall) >= 4
    assert sum(group.inputs for group in found.groupings[0].groups) == found.overall.inputs == count
    if audit.results.deferral is not None:
        usual = next(row.test for row in audit.results.deferral.rows if row.by_coverage and row.target == 0.8)
        assert found.overall.deferred.value == pytest.approx(1 - usual.coverage.value, rel=1e-5)
        assert found.overall.answered_error.value == pytest.approx(usual.error.value, rel=1e-5)


@pytest.mark.parametrize("name", ["classification", "several", "regression"])
def test_each_group_has_the_metrics_of_its_inputs_alone(name: str) -> None:
    one = given(name)
    mask = one.test[0][:, 0] > 0
    whole = audited(name, {"side": mask}).results.groups
    alone = audited(name, None, (one.test[0][mask], one.test[1][mask])).results.quality
    group = next(g for g in whole.groupings[0].groups if g.name == "true")
    assert group.inputs == int(mask.sum())
    for metric, value in zip(whole.metrics, group.metrics, strict=True):
        wanted = next(m for m in alone.metrics if m.name == metric.name).bayesian
        if value is not None:
            assert value.value == pytest.approx(wanted.value, rel=1e-4), metric.name


@pytest.mark.parametrize("name", ["classification", "several", "regression"])
def test_the_order_of_the_inputs_changes_nothing(name: str) -> None:
    one = given(name)
    groups = np.array(["a", "b", "c"])[np.arange(len(one.test[1])) % 3]
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(1))
    first = audited(name, {"g": groups}).results.groups
    again = audited(name, {"g": groups[order.numpy()]}, tuple(t[order] for t in one.test)).results.groups
    exact = [i for i, metric in enumerate(first.metrics) if metric.name not in ("ece", "auroc", "error_auroc")]
    for a, b in zip(first.groupings[0].groups, again.groupings[0].groups, strict=True):
        assert (a.name, a.inputs, a.deferred) == (b.name, b.inputs, b.deferred)
        for i in exact:
            for end in ("value", "low", "high"):
                assert getattr(a.metrics[i], end) == pytest.approx(getattr(b.metrics[i], end), rel=1e-3), end
        assert [d.p for d in a.differences] == pytest.approx([d.p for d in b.differences], abs=0.02)


def test_a_group_that_is_worse_is_found_and_named_in_the_verdict() -> None:
    one = given("classification")
    x, y = one.test[0].clone(), one.test[1]
    bad = torch.arange(len(y)) % 3 == 0
    x[bad] = torch.randn(int(bad.sum()), 6, generator=torch.Generator().manual_seed(0))
    audit = audited("classification", {"camera": np.where(bad.numpy(), "old", "new")}, (x, y))
    found = audit.results.groups
    assert found is not None and "significant after correction" in found.words[0] and "`camera: " in found.words[1]
    point = next(p for p in audit.results.verdict.points if p.label == "Subgroups")
    assert point.tone == "mixed" and "higher than in the rest" in " ".join(found.words)
    old = next(g for g in found.groupings[0].groups if g.name == "old")
    error = old.differences[0]
    assert error.quantity == "error rate" and error.significant and (error.difference.low or 0) > 0
    assert "error rate" in found.words[1] and "(simultaneous 95% interval" in found.words[1]


def difference(quantity: str, value: float, share: bool) -> GroupDifference:
    return GroupDifference(quantity, Estimate(value, value - 0.063, value + 0.063, 0.95, 50), 0.0005, share)


def test_significant_groups_begin_with_the_error_rate_and_say_what_they_leave_out() -> None:
    rows = tuple(
        Group(name, 50, False, (), None, None, tuple(difference(q, sign * v, s) for q, v, s in QUANTITIES))
        for name, sign in (("old", 1), ("young", -0.9))
    )
    grouping = Grouping("age", "", rows)
    whole = Group("all", 100, False, (), None, None, ())
    found = Groups((), whole, (grouping,), 12, 0.95, 20, "error rate", ())
    words = [*_words(found)]
    assert words[0].startswith("6 of 12 comparisons") and len(words) == 6
    assert words[1] == (
        "`age: old` (n = 50): error rate 14.1 percentage points higher than in the rest (simultaneous 95% interval 7.8 "
        "to 20.4, corrected p = 0.0005)."
    )
    assert words[3] == (
        "`age: old` (n = 50): log loss 0.298 nats higher than in the rest (simultaneous 95% interval 0.235 to 0.361, "
        "corrected p = 0.0005)."
    )
    assert words[5] == "The other 2 are in the table."
    steps = [*about_groups(found)]
    assert "+0.298 nats for `old`" in steps[0].because and "Share deferred" in steps[1].because


def test_small_groups_are_said_to_be_small_and_are_not_compared() -> None:
    count = len(given("classification").test[1])
    labels = ["a"] * 7 + ["b"] * (count - 7)
    found = audited("classification", labels).results.groups
    small, large = found.groupings[0].groups
    assert small.few and not small.differences and not large.differences, "the rest of the large one is small"
    assert found.comparisons == 0 and found.groupings[0].smallest is small
    assert any("`group: a` (n = 7) is too small to compare" in words for words in found.words)
    names = [metric.name for metric in found.metrics]
    assert small.metrics[names.index("accuracy")].low is not None
    assert small.metrics[names.index("nll")].low is None and small.metrics[names.index("ece")] is None


def test_two_classes_have_rates_by_group_and_reasons_for_missing_rankings(tmp_path: Path) -> None:
    one = given("binary")
    x, y = one.test[0], one.test[1].flatten()
    rare = torch.zeros(len(y), dtype=torch.bool)
    rare[(y == 0).nonzero().flatten()[:40]] = True
    rare[(y == 1).nonzero().flatten()[:2]] = True  # 2 of 42
    audit = audited("binary", {"site": np.where(rare.numpy(), "a", "b")}, classes=["no", "yes"])
    found, page = audit.results.groups, audit.html(tmp_path / "audit.html").read_text()
    assert found is not None and found.positive == "yes" and found.permutations == 2000
    assert 'aria-label="Rates of site"' in page and '<small class="word">2 positives</small>' in page
    assert "permuted 2,000 times" in page and "p = 0" not in page
    predicted = posterior("binary").predict(x).labels.flatten()
    for group, mask in zip(found.groupings[0].groups, (rare, ~rare), strict=True):
        assert group.positives == int(y[mask].sum())
        assert group.prevalence is not None and group.prevalence.value == pytest.approx(float(y[mask].mean()), rel=1e-5)
        right = (predicted[mask & (y == 0)] == 0).double().mean()
        assert group.specificity is not None and group.specificity.value == pytest.approx(float(right), rel=1e-5)
    small, large = found.groupings[0].groups
    assert small.sensitivity is None and large.sensitivity is not None
    assert large.sensitivity.value == pytest.approx(float((predicted[~rare & (y == 1)] == 1).double().mean()), rel=1e-5)
    names = [metric.name for metric in found.metrics]
    assert small.metrics[names.index("auroc")] is None and small.why is not None
    assert small.why[names.index("auroc")] == "2 positives"
    assert large.why is not None and large.why[names.index("auroc")] is None
    other = audited("binary", {"site": np.where(rare.numpy(), "a", "b")}, positive=0).results.groups
    assert other is not None and other.groupings[0].groups[0].why is not None
    assert other.groupings[0].groups[0].why[names.index("auroc")] == "2 negatives"
    assert other.groupings[0].groups[0].positives == 40


def test_the_smallest_p_value_is_an_upper_bound_and_prevalences_are_compared() -> None:
    torch.manual_seed(0)
    one = given("binary")
    rare = one.test[1].flatten() == 0
    rare[:6] = ~rare[:6]
    found = audited("binary", {"site": np.where(rare.numpy(), "a", "b")}, classes=["no", "yes"]).results.groups
    assert found is not None
    every = [d for group in found.groupings[0].groups for d in group.differences]
    least = [d for d in every if d.p is not None and d.p < 0.00051]
    assert all(d.p_words == "p ≤ 0.0005" for d in least)
    assert all(d.p_words.startswith("p = 0.") or d.p == 1 for d in every if d not in least)
    said = [line for line in found.words if "The prevalence of `yes` is" in line]
    assert len(said) == any(d.significant and d.quantity in ("error rate", "log loss", "share deferred") for d in every)


def test_without_groups_there_is_no_section_and_no_complaint() -> None:
    audit = audited("classification", None)
    assert audit.results.groups is None
    assert "groups" in [item.what for item in audit.results.run.left_out]  # it was asked for by sections=
    one = given("classification")
    quiet = whence.audit(posterior("classification"), test=one.test, sections=["quality"], progress=False)
    assert "groups" not in [item.what for item in quiet.results.run.left_out]


def test_ignored_labels_do_not_move_the_groups() -> None:
    one = given("classification")
    y = one.test[1].clone()
    y[::4] = -100
    column = audited("classification", 0, (one.test[0], y)).results.groups
    array = audited("classification", {"column 0": one.test[0][:, 0].numpy()}, (one.test[0], y)).results.groups
    assert [g.inputs for g in column.groupings[0].groups] == [g.inputs for g in array.groupings[0].groups]
    assert column.groupings[0].groups[0].metrics == array.groupings[0].groups[0].metrics
