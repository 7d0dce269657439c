"""Which detector of novel inputs an audit recommends, with and without out-of-distribution data."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import whence
from tests.auditing.cases import Given, classification, regression
from whence.auditing.detection import _is_of
from whence.auditing.detector_choice import (
    BY_LAYER,
    DETECTORS,
    IN_WORDS,
    _false_alarms,
    compared,
    limits,
    outcome_of,
    recommended,
)
from whence.errors import Notice
from whence.report.record.common import Estimate
from whence.report.record.sections import Detector
from whence.where.detectors import table_of

SECTIONS = ["novelty"]


def audited(given: Given, **changes: Any) -> whence.Audit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        data = {**given.data(), **changes}
        return whence.audit(given.model, data.pop("train", given.train), **data, sections=SECTIONS, progress=False)


@pytest.fixture(scope="module")
def given() -> Given:
    return classification()


def test_without_novel_data_the_combination_is_recommended_with_a_reason(given: Given) -> None:
    found = audited(given, ood=None).results.novelty
    assert found is not None and found.detectors is None and found.choice is not None
    choice = found.choice
    assert choice.recommended == choice.usual == "combined" and choice.label == DETECTORS["combined"]
    assert (choice.best, choice.difference, choice.outcome) == (None, None, None)
    assert "Without out-of-distribution data" in choice.words[0] and "Mahalanobis" in choice.words[0]
    assert len(choice.limits) == 2 and "not error" in " ".join(choice.limits)
    test = found.sets[1]
    assert test.flagged_with_entropy is not None and test.flagged_combined is not None
    assert 0 <= test.flagged_with_entropy <= 0.06 and 0 <= test.flagged_combined <= 0.06


def test_without_training_data_fewer_detectors_are_combined(given: Given) -> None:
    posterior = whence.laplace(given.model, given.train, likelihood="classification", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        found = whence.audit(
            posterior, validation=given.validation, test=given.test, sections=SECTIONS, progress=False
        ).results.novelty
    assert found is not None and found.choice is not None and found.choice.usual == "combined"
    assert "energy" in found.choice.words[0] and "Mahalanobis" not in found.choice.words[0]


def test_regression_combines_novelty_with_distances() -> None:
    found = audited(regression()).results.novelty
    assert found is not None and found.choice is not None and found.choice.usual == "combined"
    names = {row.name for row in found.detectors or ()}
    assert "combined" in names and "novelty_entropy" not in names and found.sets[1].flagged_with_entropy is None


def test_the_combination_is_that_of_the_verb(given: Given) -> None:
    audit = audited(given)
    found = audit.results.novelty
    detector = whence.combined_detector(audit.posterior, given.validation, train=given.train)
    inside, outside = detector(given.test[0]), detector(given.ood)
    scores = torch.cat([inside.score, outside.score])
    by_hand = whence.metrics.auroc(scores, torch.arange(len(scores)) >= len(inside))
    assert found is not None
    row = next(row for row in found.detectors or () if row.name == "combined")
    assert row.auroc.value == pytest.approx(float(by_hand), abs=2e-3)
    assert found.sets[2].flagged_combined == pytest.approx(float(outside.flag(0.01).double().mean()), abs=0.02)


def test_with_novel_data_the_winner_and_the_difference_are_named(given: Given) -> None:
    found = audited(given).results.novelty
    assert found is not None and found.detectors is not None and found.choice is not None
    choice, rows = found.choice, {row.name: row for row in found.detectors}
    assert choice.best == found.detectors[0].name and choice.lead is not None and choice.difference is not None
    other = next(row for row in found.detectors if row.name not in BY_LAYER)
    assert choice.best_other == other.name
    wanted = (rows["combined"].auroc.value or 0) - (other.auroc.value or 0)
    assert choice.difference.value == pytest.approx(wanted, abs=1e-6)
    assert IN_WORDS[found.detectors[0].name] in choice.words[0] and "60 out-of-distribution and" in choice.words[0]
    assert choice.words[-1].startswith("Recommended")


def ranked(shifts: dict[str, float], size: int = 400) -> tuple[list[Detector], dict[str, dict[str, Tensor]]]:
    """Detectors with scores N(0, 1) inside and N(shift, 1) outside, with a common part."""
    g = torch.Generator().manual_seed(3)
    common = torch.randn(2, size, generator=g, dtype=torch.float64)
    scores: dict[str, dict[str, Tensor]] = {"test": {}, "ood": {}}
    for name, shift in {**shifts, "variance": 0.0}.items():
        own = torch.randn(2, size, generator=g, dtype=torch.float64)
        scores["test"][name], scores["ood"][name] = 0.9 * common + 0.44 * own + torch.tensor([[0.0], [shift]])
    table = table_of([scores["test"], scores["ood"]])
    rows = [Detector(r.detector, DETECTORS[r.detector], Estimate.of(r.auroc), Estimate.of(r.fpr95)) for r in table.rows]  # type: ignore[arg-type]
    return rows, scores


@pytest.mark.parametrize(
    ("shifts", "outcome", "recommended"),
    [
        ({"combined": 2.0, "energy": 1.0}, "better", "combined"),
        ({"combined": 1.0, "energy": 2.0}, "worse", "energy"),
        ({"combined": 2.0, "energy": 2.02}, "tied", "combined"),
    ],
)
def test_a_simpler_detector_that_wins_is_recommended_and_a_tie_is_called_a_tie(
    shifts: dict[str, float], outcome: str, recommended: str
) -> None:
    rows, scores = ranked(shifts)
    choice = compared("combined", rows, scores, True)
    assert (choice.outcome, choice.recommended, choice.usual) == (outcome, recommended, "combined")
    assert choice.difference is not None and choice.difference.low is not None
    words = " ".join(choice.words)
    assert ("without a significant difference" in words) == (outcome == "tied")
    assert words.count("95% interval") == 1, "each difference is given once"
    if outcome == "worse":
        assert "the energy detects best" in words and "Recommended for inputs like these: the energy." in words
    assert outcome_of(whence.metrics.Estimate(0.1, -0.1, 0.3)) == "tied"


def test_nothing_is_recommended_where_even_the_best_is_poor() -> None:
    rows, scores = ranked({"combined": 0.30, "energy": 0.32})
    best = rows[0].auroc
    assert best.high is not None and (best.low or 0.0) > 0.5 and best.high < 0.75
    words = compared("combined", rows, scores, True).words
    assert words[0].startswith("No detector is good enough") and f"AUROC of {best.value:.3f}" in words[0]
    assert "better than chance" in words[0] and not any("Recommended" in one for one in words)
    assert "Recommended" in compared("combined", rows, scores, True, poor=0.52).words[-1]


def test_fewer_false_alarms_of_another_detector_are_told() -> None:
    rows, _ = ranked({"combined": 2.0, "energy": 2.0})
    own = next(row for row in rows if row.name == "combined")
    assert _false_alarms(own, rows) == ""
    worse = replace(own, fpr95=Estimate(0.9, 0.85, 0.95, 0.95, 800))
    others = [row for row in rows if row is not own]
    assert "it also flags 90% of the test inputs, the energy" in _false_alarms(worse, [worse, *others])


def test_measurements_on_images_are_cited_and_not_told_of_tables() -> None:
    scores = {"combined": torch.zeros(1), "mahalanobis_layers": torch.zeros(1), "novelty": torch.zeros(1)}
    pictures, table = (recommended("combined", scores, images) for images in (True, False))
    for said in (pictures.words[-1], pictures.limits[0]):
        assert "docs/detectors.md of whence" in said
    assert "was 0.062 lower on average and 0.455 at worst" in pictures.words[-1]
    assert not any("image networks" in one for one in (*table.words, *table.limits))
    assert limits("combined", scores, False, "no features.")[-1].endswith("were not tried: no features.")
    assert "on novel inputs of other kinds was not measured" in limits("combined", scores, False)[0]
    assert "detectors work was not measured" in limits("combined", scores, False, tried=False)[0]


def test_a_reference_of_other_inputs_is_recognised(given: Given) -> None:
    posterior = whence.laplace(given.model, given.train, likelihood="classification", progress=False)
    x = given.validation[0]
    reference = whence.reference_of(posterior, x)
    assert _is_of(posterior, reference, x, len(x))
    assert not _is_of(posterior, reference, x.flip(0), len(x)) and not _is_of(posterior, reference, x[1:], len(x) - 1)
    assert not _is_of(posterior, None, x, len(x))
