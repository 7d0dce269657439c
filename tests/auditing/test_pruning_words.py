"""The sentence about pruning agrees with its curve."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import whence
from tests.auditing.cases import binary
from whence.auditing.data import spaced
from whence.auditing.pruning_words import most_frequent, pruning_words
from whence.extras.pruning.curve import PruneRow

FRACTIONS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


def curve(by: str, accuracies: list[float]) -> list[PruneRow]:
    return [
        PruneRow(by, f, f, round(1000 * (1 - f)), a, None, 1 - a, a - accuracies[0], a - 0.02, a + 0.02, 400)
        for f, a in zip(FRACTIONS, accuracies, strict=True)
    ]


def test_a_curve_that_collapses_and_recovers_counts_up_to_its_collapse() -> None:
    rows = curve("snr", [0.9, 0.9, 0.4, 0.9, 0.9, 0.2]) + curve("random", [0.9, 0.6, 0.5, 0.4, 0.3, 0.2])
    words = pruning_words(rows, chance=0.3)
    assert words.startswith(
        "Ranked by signal to noise, 10% of the weights (without biases) can be removed with a measured loss of at most "
        "one percentage point of accuracy; at random, not even the smallest fraction that was tried."
    )
    assert "A fraction counts only if all smaller ones stay within that limit too." in words
    assert "With 30% removed it falls by 50.0 percentage points." in words
    assert "recovers are not counted" in words
    assert "90%" not in words.replace("90.0%", "")


def test_the_change_has_its_interval_and_number_of_examples() -> None:
    rows = curve("snr", [0.9, 0.9, 0.895, 0.5, 0.3, 0.2])
    rows[2] = PruneRow("snr", 0.3, 0.3, 700, 0.895, None, 0.1, -0.005, -0.02, 0.01, 400)
    words = pruning_words(rows, chance=0.3)
    assert "30% of the weights (without biases) can be removed" in words
    wanted = "falls by 0.5 percentage points (95% interval of the change −2.0 to 1.0 percentage points, n = 400)."
    assert f"With 30% removed the accuracy {wanted}" in words
    rows[2] = PruneRow("snr", 0.3, 0.3, 700, 0.895, None, 0.1, -0.005, -0.02, -0.0004, 400)
    wanted = "falls by 0.5 percentage points (95% interval 0.04 to 2.00 percentage points, n = 400)."
    words = pruning_words(rows, chance=0.3)
    assert f"With 30% removed the accuracy {wanted} The interval does not rule out a loss of more than one" in words
    assert "recovers" not in words


def test_a_curve_that_collapses_at_once_prunes_nothing() -> None:
    words = pruning_words(curve("snr", [0.9, 0.5, 0.5, 0.4, 0.3, 0.9]), chance=0.3)
    assert words.startswith("By no criterion can 10% of the weights, the smallest fraction that was tried, be removed")
    assert "falls by 40.0 percentage points" in words


def test_a_network_no_better_than_guessing_shows_nothing() -> None:
    words = pruning_words(curve("snr", [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]), chance=0.5)
    assert "does not show that pruning costs nothing" in words
    assert "can be pruned" not in words


@pytest.mark.parametrize(("accuracy", "words"), [(0.4, "less than"), (0.5, "as many as"), (0.505, "only 0.5 percent")])
def test_a_network_beside_the_most_frequent_answer(accuracy: float, words: str) -> None:
    assert f"{words}" in pruning_words(curve("snr", [accuracy] * 6), chance=0.5)


def test_the_baseline_is_of_the_inputs_that_are_pruned_for() -> None:
    given = binary()
    inputs, targets = given.test
    audit = whence.audit(
        given.model, given.train, likelihood="binary", test=given.test, sections=["quality", "pruning"],
        profiled=50, progress=False, classes=["no", "yes"],
    )  # fmt: skip
    pruning = audit.results.pruning
    assert pruning is not None and pruning.guess is not None and pruning.rows[0].examples == 50
    some = targets.flatten()[spaced(len(inputs), 50)]
    share = max(float(some.mean()), 1 - float(some.mean()))
    assert pruning.guess.accuracy == pytest.approx(share)
    assert pruning.guess.name == ("yes" if some.mean() > 0.5 else "no")


def test_most_frequent() -> None:
    assert most_frequent(torch.tensor([0, 1, 1, -100])) == (1, pytest.approx(2 / 3))
    assert most_frequent(None) is None


def test_changes_are_paired_differences() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 5)
    labels, numbers = (x[:, 0] > 0).long(), x[:, :1] + 0.1 * torch.randn(60, 1)
    for net, y, likelihood, name in (
        (nn.Linear(5, 2), labels, "classification", "accuracy"),
        (nn.Linear(5, 1), numbers, "regression", "rmse"),
        (nn.Linear(5, 1), labels[:, None].float(), "binary", "accuracy"),
    ):
        posterior = whence.laplace(net, (x, y), likelihood=likelihood)  # type: ignore[call-overload]
        rows = whence.prune_curve(posterior, (x, y), fractions=[0.0, 0.4, 0.8], by="magnitude", progress=False).rows
        for row in rows:
            assert row.change == pytest.approx(getattr(row, name) - getattr(rows[0], name), abs=1e-6)
            assert row.change_low <= row.change <= row.change_high
            assert row.examples == 60
        assert rows[0].change == 0


def test_what_is_unidentified_is_not_said_to_be_prunable() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    posterior = whence.laplace(nn.Linear(3, 2), (x, (x[:, 0] > 0).long()), likelihood="classification")
    audit = whence.audit(posterior, test=(x, (x[:, 0] > 0).long()), progress=False)
    assert audit.results.answers is not None
    assert not [answer for answer in audit.results.answers if "could be pruned" in answer.words]
