"""What the rows of scores say about themselves, and which values of a distribution are kept."""

from __future__ import annotations

import pytest
import torch

import whence
from whence.auditing.scores import METRICS, RANKED, described, sorted_values
from whence.auditing.tasks import task_of
from whence.report.record.audit import Data
from whence.report.record.common import SetSize
from whence.report.record.verdict import Overlap

BY_NAME = {metric.name: metric for metric in METRICS}
CLASSES, LABELS, NUMBERS = whence.Categorical(), whence.Bernoulli(), whence.Gaussian()


@pytest.mark.parametrize(
    ("likelihood", "shape", "words"),
    [
        (CLASSES, (9,), "summed over the classes: 0 to 2."),
        (LABELS, (9, 1), "probability of the positive class and the outcome (0 or 1): 0 to 1."),
        (LABELS, (9, 4), "mean over labels: 0 to 1."),
    ],
)
def test_brier_scores_say_their_scale(likelihood: whence.Likelihood, shape: tuple[int, ...], words: str) -> None:
    found = described(BY_NAME["brier"], task_of(likelihood), torch.zeros(shape), "labels")
    assert found.about.endswith(words) and found.name == "brier"


def test_rankings_name_their_score_and_how_many_are_ranked() -> None:
    pixels = torch.zeros(40, 80, 100, dtype=torch.long)
    pixels[0] = -100
    about = described(BY_NAME["error_auroc"], task_of(CLASSES), pixels, "pixels").about
    assert about.endswith(f"Measured on {RANKED:,} of the 312,000 pixels, spread evenly over them.")
    assert "the entropy of the prediction ranks wrong answers" in about
    few = described(BY_NAME["error_auroc"], task_of(CLASSES), pixels[:9], "pixels").about
    assert "Measured on" not in few
    for name in ("ood_auroc", "ood_fpr95"):
        assert "predicted standard deviation" in described(BY_NAME[name], task_of(NUMBERS), pixels, "values").about
    assert not any("UNCERTAINTY" in described(one, task_of(LABELS), pixels, "labels").about for one in METRICS)


@pytest.mark.parametrize("count", [1, 115, 200, 230, 2001])
def test_distributions_keep_their_ends(count: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(0))
    kept = sorted_values(values)
    assert len(kept) == min(count, 200) and list(kept) == sorted(kept)
    assert (kept[0], kept[-1]) == (float(values.min()), float(values.max()))


@pytest.mark.parametrize(
    ("trained", "shared", "words"),
    [
        (0, 0, "230 test inputs"),
        (0, 1, "230 test inputs (1 is also in the validation data)"),
        (12, 3, "230 test inputs (12 are also in the training data, 3 are also in the validation data)"),
    ],
)
def test_test_inputs_that_are_in_other_sets_are_said(trained: int, shared: int, words: str) -> None:
    data = Data(None, SetSize(230, False), SetSize(150, False), None, None, Overlap(650, trained, 0, shared))
    assert data.tested == words
