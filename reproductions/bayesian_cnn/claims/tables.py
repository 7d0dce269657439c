"""Uncertainty against data and against training accuracy; means and variances during training."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

import torch

from reproductions.bayesian_cnn.wording import SLIDES, by_cell, judged, paired, shown, table
from reproductions.claims import Claim, Interval, below, interval, within
from reproductions.store import Values

INITIALISED = "slides, parameter initialization"
BACKGROUND = "slides, aleatoric and epistemic uncertainty"
KINDS = ("epistemic", "aleatoric")
SAME = 0.1  # relative change that counts as none


def ranked(first: list[float], second: list[float]) -> float:
    """Spearman's correlation, ties by their order; 0 where nothing varies."""
    a, b = (torch.tensor(v, dtype=torch.float64).argsort().argsort().double() for v in (first, second))
    if len(a) < 3:
        return 0.0
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def logarithm(what: str) -> Callable[[Values], float]:
    return lambda value: math.log(max(value[what], 1e-12))


def over_seeds(seeds: dict[str, Values], get: Callable[[Values], float]) -> Interval | None:
    return interval([get(v) for v in seeds.values()]) if len(seeds) > 1 else None


def with_accuracy(value: Values) -> float:
    """Correlation of the total uncertainty with the training accuracy, over epochs."""
    course = value["history"]
    total = [a + e for a, e in zip(course["aleatoric"], course["epistemic"], strict=True)]
    return ranked(course["accuracy"], total)


def centre(value: Values) -> float:
    """Largest |median of μ| of a layer relative to half of its 5–95% range, at the end."""
    found = []
    for course in value["history"]["mean"].values():
        low, _, middle, _, high = course[-1]
        found.append(abs(middle) / max((high - low) / 2, 1e-12))
    return max(found)


def widening(value: Values) -> float:
    """Mean over layers of log₂ of the last over the largest median of σ: how much it fell."""
    found = []
    for course in value["history"]["std"].values():
        medians = [row[2] for row in course]
        found.append(float(torch.tensor(medians[-1] / max(medians)).log2()))
    return fmean(found)


def since_start(value: Values) -> float:
    """The same from the first record to the last."""
    ends = [(course[-1][2], course[0][2]) for course in value["history"]["std"].values()]
    return fmean(float(torch.tensor(last / first).log2()) for last, first in ends)


def claims(units: Values) -> list[Claim]:
    cells = by_cell(units, ", ")
    found: list[Claim] = []
    for cell, fractions in cells.items():
        for less, more in pairwise(fractions):
            rises = f"from {less} to {more} of the data (log ratio)"
            changes = {what: paired(fractions[more], fractions[less], logarithm(what)) for what in KINDS}
            words = f"epistemic uncertainty falls {rises}"
            found += judged(words, BACKGROUND, {cell: changes["epistemic"]}, below)
            words = f"aleatoric uncertainty stays {rises}"
            found += judged(words, BACKGROUND, {cell: changes["aleatoric"]}, lambda v: within(v, SAME))
    groups = {f"{cell}, {name}": seeds for cell, fractions in cells.items() for name, seeds in fractions.items()}
    found += judged(
        "uncertainty falls as training accuracy rises (rank correlation over epochs)", SLIDES,
        {g: over_seeds(s, with_accuracy) for g, s in groups.items()}, below, 2,
    )  # fmt: skip
    found += judged(
        "means stay centred at 0 (largest absolute median of a layer, in halves of its 5–95% range, below 0.2)",
        INITIALISED,
        {g: over_seeds(s, centre) for g, s in groups.items()}, lambda v: below(v, 0.2), 2,
    )  # fmt: skip
    found += judged(
        "standard deviations fall during training (log₂ of the last over the first median)", INITIALISED,
        {g: over_seeds(s, since_start) for g, s in groups.items()}, below, 2,
    )  # fmt: skip
    found += judged(
        "standard deviations fall from their largest value (log₂)", INITIALISED,
        {g: over_seeds(s, widening) for g, s in groups.items()}, lambda v: below(v, -0.1), 2,
    )  # fmt: skip
    return found


def tables(units: Values) -> str:
    rows = []
    for cell, fractions in by_cell(units, ", ").items():
        for fraction, seeds in fractions.items():
            some = list(seeds.values())
            columns = [shown([v[key] for v in some], 4) for key in ("aleatoric", "epistemic", "entropy", "accuracy")]
            priors = ", ".join(sorted({f"{v['prior']:g}" for v in some}))
            rows.append([cell, fraction, f"{some[0]['train']:,}", str(some[0]["epochs"]), priors, *columns])
    head = [
        "cell",
        "data",
        "training images",
        "epochs",
        "prior precision",
        "aleatoric",
        "epistemic",
        "total",
        "accuracy",
    ]
    note = (
        "Uncertainties in nats, means over test images. Small fractions are trained for more epochs; the prior is "
        "chosen on validation data for each. Uncertainty is measured on the same images throughout."
    )
    return "\n\n".join(
        [
            "### More data",
            table(head, rows),
            note,
            "![By data](data.png)",
            "### During training",
            "![Courses](courses.png)",
        ]
    )
