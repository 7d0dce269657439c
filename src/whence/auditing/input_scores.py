"""Scores of single test inputs, kept in the record so that two audits of the same data can be compared input by input.

Index legend: N inputs, M scored elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

from whence.auditing.context import Context, Kind
from whence.auditing.scored import elements_of
from whence.engine.content import ExamplesDigest
from whence.errors import WhenceError
from whence.report.record.common import Numbers
from whence.report.record.scores import InputScores, ScoresOf

DIGITS = 4  # of a score
KINDS = {"plain": Kind.PLAIN, "recalibrated": Kind.RECALIBRATED, "bayesian": Kind.BAYESIAN}


def input_scores(context: Context) -> InputScores | None:
    """Of every test input with a truth; None if there are none."""
    examples = context.sets.get("test")
    if examples is None or examples.targets is None:
        return None
    count, counts, found = len(examples), None, {}
    for name, kind in KINDS.items():
        if kind is Kind.RECALIBRATED and context.baseline is None:
            continue
        try:
            elements, metrics, _ = elements_of(context, kind)
        except WhenceError:
            return None
        inner = max(1, examples.targets.numel() // count)
        owner = elements.keep // inner
        counts = torch.bincount(owner, minlength=count)
        series = {key: _by_input(one.values, owner, counts) for key, one in metrics.items()}
        found[name] = ScoresOf(**series)
    digest = ExamplesDigest().add(examples.inputs, examples.targets)
    assert counts is not None and "plain" in found and "bayesian" in found
    several = bool((counts != 1).any())
    return InputScores(
        digest.ids(), tuple(counts.tolist()) if several else None, found["plain"], found["bayesian"],
        found.get("recalibrated"),
    )  # fmt: skip


def _by_input(values: Tensor, owner: Tensor, counts: Tensor) -> Numbers:
    """Means over the elements of each input; None for inputs without any."""
    sums = torch.bincount(owner, values.double(), len(counts))
    means = (sums / counts).tolist()
    return tuple(float(f"{v:.{DIGITS}g}") if n else None for v, n in zip(means, counts.tolist(), strict=True))
