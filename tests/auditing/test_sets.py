"""The section on conformal sets and intervals: numbers recomputed by hand, words only where significant."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.auditing.cases import ALL, Given, classification, trained
from tests.auditing.conftest import made
from whence.errors import BadOption, Notice
from whence.numerals import alike
from whence.report.record.convert import from_json, to_json

F64 = torch.float64


def audited(given: Given, **options: Any) -> whence.Audit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.audit(
            given.model,
            given.train,
            **given.data(),
            **{"sections": ["quality", "conformal"], "progress": False, "inputs": 0, **options},
        )


def quantile(scores: Tensor, level: float) -> float:
    rank = math.ceil((len(scores) + 1) * level - 1e-9)
    return float(scores.sort().values[rank - 1])


def test_sets_of_classes_are_recomputed_by_hand() -> None:
    given, audit = made("classification")
    section = audit.results.conformal
    assert section is not None and section.kind == "sets" and [row.level for row in section.rows] == [0.9, 0.95]
    (x, y), (new, truth) = given.validation, given.test
    held, test = (audit.posterior.predict(one).probs.to(F64) for one in (x, new))
    for row in section.rows:
        limit = quantile(1 - held[torch.arange(len(y)), y], row.level)
        sets = 1 - test <= limit + 1e-9
        own = sets[torch.arange(len(truth)), truth]
        assert row.validation == len(y) and row.thresholds[0] == pytest.approx(limit, rel=1e-4)
        assert row.coverage.value == pytest.approx(float(own.double().mean()), abs=1e-5)
        assert row.coverage.low is not None and row.coverage.high is not None
        sizes, right = sets.sum(1).to(F64), test.argmax(1) == truth
        assert row.sets is not None
        assert row.sets.size.value == pytest.approx(float(sizes.mean()), abs=1e-5)
        assert row.sets.singletons == pytest.approx(float((sizes == 1).double().mean()), abs=1e-5)
        assert row.sets.empty == pytest.approx(float((sizes == 0).double().mean()), abs=1e-5)
        assert row.sets.size_right == pytest.approx(float(sizes[right].mean()), abs=1e-5)
        for part, c in zip(row.sets.parts or (), range(3), strict=True):
            assert part.coverage.value == pytest.approx(float(own[truth == c].double().mean()), abs=1e-5)
            assert part.coverage.count == int((truth == c).sum())


def test_intervals_stand_beside_those_of_the_posterior() -> None:
    given, audit = made("regression")
    section = audit.results.conformal
    assert section is not None and section.kind == "intervals"
    (x, y), (new, truth) = given.validation, given.test
    held, test = (audit.posterior.predict(one) for one in (x, new))
    for row in section.rows:
        limit = quantile(((y - held.mean).abs() / held.std).double().flatten(), row.level)
        reach = limit * test.std
        assert row.intervals is not None and row.intervals.width is not None
        assert row.coverage.value == pytest.approx(
            float(((truth - test.mean).abs() <= reach).double().mean()), abs=1e-5
        )
        assert row.intervals.width.value == pytest.approx(float(2 * reach.mean()), rel=1e-4)
        low, high = test.interval(row.level)
        assert row.intervals.bayesian_width.value == pytest.approx(float((high - low).mean()), rel=1e-4)
        inside = ((low <= truth) & (truth <= high)).double().mean()
        assert row.intervals.bayesian_coverage.value == pytest.approx(float(inside), abs=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_every_task_has_the_section_and_its_file_opens(name: str) -> None:
    _, audit = made(name)
    section = audit.results.conformal
    assert section is not None
    assert from_json(type(audit.results), json.loads(json.dumps(to_json(audit.results)))) == audit.results
    shared = audit.results.data.overlap is not None and bool(audit.results.data.overlap.validation)
    assert ("coverage is not guaranteed here" in section.guarantee) == shared
    said = section.limits if shared else section.guarantee
    assert "contains the true answer with a probability of at least approximately 90% or 95%" in said
    assert "The prior was tuned on the same validation data" in section.limits
    assert ("position drawn at random" in said) == (name == "dense")
    for row in section.rows:
        assert (row.sets is None) == (section.kind == "intervals") and (row.intervals is None) == (row.sets is not None)
        assert (row.chance_low is None) == (name in ("dense", "several") or shared), "shared inputs break the guarantee"


def test_levels_can_be_chosen_and_too_few_inputs_say_so() -> None:
    given = classification()
    x, y = given.validation
    small = Given(given.model, given.train, (x[:30], y[:30]), given.test, None, given.likelihood)
    section = audited(small, levels=[0.8, 0.99]).results.conformal
    assert section is not None and [row.level for row in section.rows] == [0.8, 0.99]
    last = section.rows[1]
    assert last.thresholds == (None,) and last.coverage.value == 1 and last.sets is not None
    assert last.sets.size.value == 3 and (last.chance_low, last.chance_high) == (1, 1)
    assert any("need at least 99 validation inputs; there are 30" in line for line in section.words)
    for levels in ([], [1.5], 0.9, [0.0]):
        with pytest.raises(BadOption, match="levels"):
            audited(small, levels=levels)


def shifted(count: int, seed: int, shift: float) -> tuple[Tensor, Tensor]:
    """Three classes, the last of which moves by ``shift``."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    y = torch.randint(3, (count,), generator=g)
    x = centres[y] + 0.9 * torch.randn(count, 2, generator=g)
    return x + shift * (y == 2).unsqueeze(1) * torch.tensor([2.0, 1.5]), y


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_class_and_a_broken_assumption_are_named_only_if_significant(shift: float) -> None:
    torch.manual_seed(0)
    train, validation = shifted(300, 0, 0.0), shifted(400, 1, 0.0)
    model = trained(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3)), *train, nn.functional.cross_entropy)
    given = Given(model, train, validation, shifted(600, 2, shift), None, "classification")
    section = audited(given, classes=["a", "b", "third"]).results.conformal
    assert section is not None
    text = " ".join(section.words)
    assert ("For `third` they contain the true answer for only" in text) == bool(shift)
    assert ("may not come from the same source" in text) == bool(shift)
    assert ("that is expected in 95 of 100 cases" in text) == (not shift)


def test_the_score_can_be_chosen() -> None:
    given, audit = made("classification")
    found = audited(given, conformal_score="cumulative").results.conformal
    assert found is not None and found.score == "cumulative" and found.rows[0].sets is not None
    assert found.rows[0].sets.empty == 0 and "until their probabilities together reach" in found.about
    assert found.rows[0].thresholds != audit.results.conformal.rows[0].thresholds
    for score, words in (("normalised", "is not for classification; use 'probability'"), ("prob", "conformal_score")):
        with pytest.raises(BadOption, match=words):
            audited(given, conformal_score=score)


def test_several_labels_have_a_threshold_and_a_row_each() -> None:
    torch.manual_seed(0)

    def make(n: int, seed: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
        return x, (x[:, :3] + 0.5 * x[:, 1:] > 0).float()

    train, validation, test = (make(n, seed) for seed, n in enumerate((200, 150, 140)))
    model = trained(nn.Linear(4, 3), *train, nn.functional.binary_cross_entropy_with_logits)
    section = audited(Given(model, train, validation, test, None, "binary"), classes=["p", "q", "r"]).results.conformal
    assert section is not None and section.rows[0].sets is not None
    assert len(section.rows[0].thresholds) == 3 and "of each label or output" in section.guarantee
    assert [part.name for part in section.rows[0].sets.parts or ()] == ["p", "q", "r"]


def test_page_and_terminal_show_it(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, audit = made("classification")
    page = audit.html(tmp_path / "audit.html").read_text()
    assert "Conformal prediction sets and intervals" in page and "smallest probability of an answer" in page
    section = audit.results.conformal
    assert section is not None
    for row in section.rows:
        (shown,), (score,) = section.thresholds(row), row.thresholds
        assert shown == pytest.approx(1 - score) and f"<td>{alike([shown])[0]}</td>" in page
        assert row.sets is not None and row.sets.several is not None
        assert row.sets.several + (row.sets.singletons or 0) + (row.sets.empty or 0) == pytest.approx(1)
    assert "Nothing is guaranteed for one class" in page and "sets by true class" in page
    audit.show()
    assert "Prediction sets (conformal)" in capsys.readouterr().out
