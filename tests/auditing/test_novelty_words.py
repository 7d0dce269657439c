"""What an audit says about novelty over all layers, by layer, and about false alarms."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import binomtest

from whence.auditing import novelty as words
from whence.where.novelty import Novelty, Reference, novelty_given
from whence.where.p_values import conformal

NAMES = ("first", "second", "third")


def reference(size: int = 999) -> Reference:
    """Layers that are unusual together."""
    g = torch.Generator().manual_seed(0)
    common = torch.randn(size, 1, generator=g, dtype=torch.float64)
    own = torch.randn(size, 3, generator=g, dtype=torch.float64)
    return Reference(NAMES, torch.sigmoid(2 * common + 0.7 * own - 4), (1, 1, 1))


def test_why_all_layers_flag_less_than_one() -> None:
    known = reference()
    usual = known.unexplained.median(0).values
    edge = known.unexplained[:, 1].quantile(0.995)
    novel = usual.repeat(50, 1)
    novel[:, 1] = edge
    novel[:, 0] = known.unexplained[:, 0].quantile(0.3)
    found = novelty_given(known, novel)
    found = replace(found, p_value=torch.full((50,), 0.5, dtype=torch.float64))  # of a score that a test sets
    (said,) = words._less_than_a_layer(found, 0.01)
    assert said.startswith("Layer `second` alone flags more (100%): over all 3 layers")
    assert "of the out-of-distribution inputs that layer `second` flags, 0% are" in said
    assert not list(words._less_than_a_layer(replace(found, p_value=torch.full((50,), 0.001)), 0.01))


def test_layers_with_more_false_alarms_than_chance_are_named() -> None:
    known = reference()
    inside = known.unexplained[:200].clone()
    assert not list(words._false_alarms(novelty_given(known, inside), 0.01, 0.01))
    inside[:16, 2] = known.unexplained[:, 2].max() * 1.01
    found = novelty_given(known, inside)
    (said,) = words._false_alarms(found, 0.01, 0.01)
    hits = int((found.p_values[:, 2] <= 0.01).sum())
    interval = binomtest(hits, 200).proportion_ci(1 - 0.05 / 3)
    assert f"Layer `third` ({100 * hits / 200:g}%, interval {100 * interval.low:.1f}% to" in said
    assert "flags more test inputs than the 1% expected" in said and "all 3 layers" in said


def with_p(rows: list[list[float]]) -> Novelty:
    known, p = reference(), torch.tensor(rows, dtype=torch.float64)
    found = novelty_given(known, known.unexplained[: len(rows)])
    return replace(found, p_values=p, p_value=torch.full((len(rows),), 0.001, dtype=torch.float64))


def test_layers_that_differ_most_are_counted() -> None:
    rows = [[0.001, 0.5, 0.5]] * 6 + [[0.5, 0.001, 0.5]] * 3 + [[0.001, 0.001, 0.5]]
    found = with_p(rows)
    (said,) = words._most_novel_layer(found, found.p_value <= 0.01)
    assert said == (
        "Of the 10 out-of-distribution inputs that novelty over all layers flags, 6 differ most in layer `first`; 3 in "
        "layer `second`; 1 differs equally in several layers, which have the smallest p-value that the reference "
        "inputs allow."
    )


def test_few_reference_inputs_flag_only_the_most_unusual() -> None:
    for size, said in ((100, True), (199, False), (999, False)):
        known = reference(size)
        found = novelty_given(known, known.unexplained[:50])
        lines = list(words._words({"test": found}, 0.01, size, None))
        assert any("more unusual than all of them" in line for line in lines) is said
        assert ("smallest possible p-value is 0.0099" in " ".join(lines)) is said


def test_the_band_of_the_p_values_holds_for_all_bars_together() -> None:
    g, inputs, size, hits = torch.Generator().manual_seed(1), 300, 999, 0
    low, high = words._chance(inputs, size)
    assert low < 0.05 < high and high - 0.05 == pytest.approx(0.05 - low)
    for _ in range(400):
        known, new = (torch.randn(n, 1, generator=g, dtype=torch.float64) for n in (size, inputs))
        counts = torch.histc(conformal(known, new)[:, 0], words.BINS, 0, 1) / inputs
        hits += bool(counts.max() > high or counts.min() < low)
    assert hits / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
