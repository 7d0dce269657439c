"""What changed between two audits: nothing between an audit and itself, and changes judged by intervals that hold."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from scipy import stats

import whence
from tests.auditing.cases import Given, classification
from tests.metrics.populations import binomial_limits
from whence.auditing.difference import change, proportion
from whence.auditing.paired import PairedScores
from whence.errors import BadOption
from whence.report.record.common import Estimate
from whence.report.record.scores import InputScores, ScoresOf


@pytest.fixture(scope="module")
def pair() -> tuple[Given, whence.Audit, whence.Audit]:
    """The same data; the second network answers at random."""
    given = classification()
    other = copy.deepcopy(given.model)
    with torch.no_grad():
        for p in other.parameters():
            p.copy_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    sections = ["quality", "deferral", "layers", "novelty"]
    options: dict[str, Any] = {**given.data(), "sections": sections, "progress": False}
    return given, *(whence.audit(model, given.train, **options) for model in (given.model, other))


def test_an_audit_does_not_differ_from_itself(pair: Any, tmp_path: Path) -> None:
    _, first, _ = pair
    path = first.json(tmp_path / "audit.json")
    for found in (whence.diff(first, first), whence.diff(path, str(path)), whence.diff(first, path)):
        assert not found and found.results.is_empty and found.results.facts == ()
        assert found.results.words == ("Nothing differs except dates and times.",)
        assert found.results.same_weights == "same" and found.results.same_test == "same"
        assert {row.judgement for row in found.results.values} == {"unchanged"}


def test_a_second_run_differs_only_in_its_times(pair: Any) -> None:
    given, first, _ = pair
    sections = ["quality", "deferral", "layers", "novelty"]
    again = whence.audit(given.model, given.train, **given.data(), sections=sections, progress=False)
    assert first.results.trace != again.results.trace and not whence.diff(first, again)


def test_a_worse_network_is_found(pair: Any, tmp_path: Path) -> None:
    _, first, second = pair
    found = whence.diff(first, second)
    record = found.results
    assert found and record.same_weights == "different" and record.same_test == "same"
    worse = {(row.name, row.of): row for row in record.metrics}
    row = worse["accuracy", "trained network"]
    assert row.judgement == "worse" and row.is_significant and row.change is not None and row.change.value is not None
    assert row.change.value == pytest.approx(row.new.value - row.old.value, rel=1e-5)
    back = {(row.name, row.of): row for row in whence.diff(second, first).results.metrics}
    other = back["accuracy", "trained network"]
    assert other.judgement == "better" and other.change.low == pytest.approx(-row.change.high, rel=1e-4)
    assert any("Worse by more than chance: Accuracy" in words for words in record.words), record.words
    paired = {(row.name, row.of): row for row in record.metrics if row.paired}
    assert {"accuracy", "nll", "brier"} == {name for name, _ in paired}
    assert "compared input by input" in record.how
    for row in paired.values():
        apart = change(row.old, row.new)
        assert row.change is not None and apart is not None and row.change.value == pytest.approx(apart.value, abs=1e-3)
    without = whence.diff(replace(first, results=replace(first.results, scores=None)), second).results
    assert not any(row.paired for row in without.metrics) and "not paired" in without.how
    wide = {(row.name, row.of): row.change for row in without.metrics}
    assert sum(length(row.change) for row in paired.values()) < sum(length(wide[key]) for key in paired)
    assert [fact.name for fact in record.facts if fact.group == "network"] == ["weights (SHA-256)"]
    assert [fact for fact in record.facts if fact.group == "data"] == []
    jsonschema.validate(found.record, whence.auditing.schema("diff"))
    assert whence.Diff.read(found.json(tmp_path / "diff.json")).results == record
    page = found.html(tmp_path / "diff.html").read_text()
    assert "What changed between two audits" in page and "yes, worse" in page


def test_other_test_data_settings_and_versions_are_named(pair: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given, first, _ = pair
    data = {**given.data(), "test": given.validation}
    sections = ["quality", "layers"]
    other = whence.audit(given.model, given.train, **data, sections=sections, structure="diag", seed=3, progress=False)
    changed = other.results
    record = whence.diff(first, other).results
    assert record.same_weights == "same" and record.same_test == "different"
    assert "unpaired" in record.how
    facts = {fact.name: (fact.old, fact.new) for fact in record.facts}
    assert facts["structure"] == ("kron", "diag") and facts["structure="] == (None, "'diag'")
    assert facts["test"] == ("120 inputs", "130 inputs") and "test (SHA-256)" in facts and "seed" in facts
    assert all(row.judgement == "not in the new audit" for row in (*record.deferral, *record.novelty) if row.old)
    assert changed.deferral is None
    whence.diff(first, other).show()
    assert "test (SHA-256)" in capsys.readouterr().out


def test_records_without_digests(pair: Any, tmp_path: Path) -> None:
    _, first, second = pair
    data = second.record
    del data["trace"], data["scores"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(data))
    record = whence.diff(path, first).results
    assert record.same_weights == "unknown" and record.same_test == "unknown" and "not known" in record.how
    with pytest.raises(BadOption, match=r"old= is a dict; pass a whence\.Audit"):
        whence.diff(data, first)


# Intervals


def length(found: Estimate | None) -> float:
    assert found is not None and found.low is not None and found.high is not None
    return found.high - found.low


def scores(columns: dict[str, list[float]], ids: list[str], counts: tuple[int, ...] | None = None) -> InputScores:
    found = ScoresOf(**{name: tuple(values) for name, values in columns.items()})
    return InputScores(tuple(ids), counts, found, found)


def test_inputs_are_paired_by_their_contents() -> None:
    """In another order, and with an input that occurs twice; pixels count as often as there are."""
    old = scores({"nll": [1.0, 2.0, 3.0, 4.0]}, ["a", "b", "b", "c"])
    new = scores({"nll": [4.5, 1.5, 2.5, 3.5]}, ["c", "a", "b", "b"])
    pairs = PairedScores.of(old, new)
    assert pairs is not None and pairs.order.tolist() == [3, 0, 1, 2]
    found = pairs.change("nll", "bayesian")
    assert found is not None and found.value == pytest.approx(0.5) and (found.low, found.high) == (0.5, 0.5)
    assert pairs.change("crps", "bayesian") is None and pairs.change("nll", "recalibrated") is None
    assert PairedScores.of(old, scores({"nll": [1.0]}, ["a"])) is None and PairedScores.of(None, new) is None
    many = [scores({"accuracy": values}, ["a", "b"], (10, 30)) for values in ([0.5, 1.0], [0.9, 0.9])]
    weighted = PairedScores.of(*many)
    assert weighted is not None
    assert weighted.change("accuracy", "plain").value == pytest.approx((10 * 0.4 - 30 * 0.1) / 40)
    assert PairedScores.of(many[0], scores({"accuracy": [0.9, 0.9]}, ["a", "b"], (10, 20))) is None


@pytest.mark.parametrize("metric", ["accuracy", "nll", "rmse"])
def test_paired_intervals_cover_the_true_change(metric: str) -> None:
    """Two networks whose scores share what makes an input hard."""
    generator = torch.Generator().manual_seed(7)
    sets, count, held = 300, 150, 0
    true = {"accuracy": 0.1, "nll": 0.2, "rmse": math.sqrt(1.5) - 1}[metric]
    ids = [str(i) for i in range(count)]
    for _ in range(sets):
        hard = torch.rand(count, generator=generator, dtype=torch.float64)
        if metric == "accuracy":
            first, second = ((hard < p).double() for p in (0.7, 0.8))
        elif metric == "nll":
            first = -hard.log()
            second = first + 0.2 + 0.3 * torch.randn(count, generator=generator, dtype=torch.float64)
        else:
            first = torch.randn(count, generator=generator, dtype=torch.float64).square()
            second = first + torch.rand(count, generator=generator, dtype=torch.float64)
        pairs = PairedScores.of(*(scores({metric: column.tolist()}, ids) for column in (first, second)))
        assert pairs is not None
        found = pairs.change(metric, "bayesian")
        assert found is not None and found.low is not None and found.high is not None
        held += found.low <= true <= found.high
    assert sets - held <= binomial_limits(sets, 0.06)[1]


def test_shares_and_the_difference_against_slow_twins() -> None:
    for count, hits in ((20, 0), (35, 7), (500, 499)):
        found = proportion(hits / count, count)
        low, high = stats.binomtest(hits, count).proportion_ci(0.95, method="exact")
        assert found is not None and (found.low, found.high) == pytest.approx((low, high), abs=1e-6)
    assert proportion(None, 10) is None and proportion(0.5, 0) is None
    old, new = Estimate(0.3, 0.2, 0.45, 0.95, 50), Estimate(0.5, 0.42, 0.6, 0.95, 40)
    found = change(old, new)
    # Newcombe 1998, method 10: d − √((p₂ − l₂)² + (u₁ − p₁)²), d + √((u₂ − p₂)² + (p₁ − l₁)²)
    assert found is not None and found.value == pytest.approx(0.2) and found.count == 40
    assert found.low == pytest.approx(0.2 - math.sqrt(0.08**2 + 0.15**2), rel=1e-5)
    assert found.high == pytest.approx(0.2 + math.sqrt(0.1**2 + 0.1**2), rel=1e-5)
    bare = change(Estimate(0.3, None, None, 0.95, 50), new)
    assert bare is not None and bare.value == pytest.approx(0.2) and bare.low is None
    assert change(None, new) is None


@pytest.mark.parametrize(("first", "second", "count"), [(0.1, 0.1, 200), (0.05, 0.2, 120), (0.5, 0.6, 80)])
def test_the_interval_of_a_change_covers_it(first: float, second: float, count: int) -> None:
    """Independent test sets; 95% intervals should hold in about 95% of them."""
    generator = torch.Generator().manual_seed(5)
    draws = [torch.rand(2000, count, generator=generator) < rate for rate in (first, second)]
    held = 0
    for old, new in zip(*(drawn.double().mean(1).tolist() for drawn in draws), strict=True):
        found = change(proportion(old, count), proportion(new, count))
        assert found is not None and found.low is not None and found.high is not None
        held += found.low <= second - first <= found.high
    assert 0.94 <= held / 2000 <= 0.975


def test_on_the_same_inputs_false_alarms_are_rarer_than_5_in_100() -> None:
    """Two networks with the same error rate that err mostly on the same inputs: the unpaired interval is wide."""
    generator = torch.Generator().manual_seed(6)
    count, alarms = 300, 0
    for _ in range(1000):
        hard = torch.rand(count, generator=generator) < 0.12
        rates = [(hard & (torch.rand(count, generator=generator) < 0.8)).double().mean().item() for _ in ("old", "new")]
        found = change(*(proportion(rate, count) for rate in rates))
        assert found is not None and found.low is not None and found.high is not None
        alarms += not found.low <= 0 <= found.high
    assert alarms <= 25
