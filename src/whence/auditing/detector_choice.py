"""Which detector of novel inputs is recommended, in words: how it was chosen, how it compares, what it misses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from whence.metrics import Estimate as Measured
from whence.metrics import auroc_difference
from whence.numerals import area, minus, percent
from whence.report.record.common import Estimate
from whence.report.record.sections import Detector, DetectorChoice
from whence.report.record.verdict import VerdictRules
from whence.where.combined import PARTS

DETECTORS = {
    "combined": "combination of detectors",
    "novelty_entropy": "novelty by layer with entropy",
    "novelty": "novelty by layer",
    "entropy": "entropy",
    "plain_entropy": "entropy, plain network",
    "mutual_information": "mutual information",
    "variance": "predictive variance",
    "max_probability": "maximum probability",
    "energy": "energy",
    "mahalanobis": "Mahalanobis, last features",
    "mahalanobis_layers": "Mahalanobis, all layers",
    "neighbours": "nearest neighbours, last features",
}
IN_WORDS = {
    "combined": "the combination of detectors",
    "novelty_entropy": "novelty by layer with entropy",
    "novelty": "novelty by layer",
    "entropy": "the entropy of the Bayesian network",
    "plain_entropy": "the entropy of the plain network",
    "mutual_information": "the mutual information",
    "variance": "the predictive variance",
    "max_probability": "the maximum probability",
    "energy": "the energy",
    "mahalanobis": "the Mahalanobis distance of the last features",
    "mahalanobis_layers": "the Mahalanobis distance over all layers",
    "neighbours": "the distance to the nearest neighbours",
}
BY_LAYER = ("combined", "novelty_entropy", "novelty")  # use novelty by layer; the first there is, is the usual one
Scores = Mapping[str, Tensor]  # by detector, [N] each


@dataclass(frozen=True)
class Experience:
    """What reproductions/own/detectors measured for a detector; a test compares these numbers with its results."""

    behind: float  # AUROC by which it is behind the best single detector of each case, on average
    worst: float  # and at worst
    gain: tuple[float, float, float]  # by how much less than BEST_SINGLE, with its 95% interval over cases
    unseen: tuple[float, float]  # least and largest AUROC over networks for unseen classes of the same kind
    grey: float  # AUROC for photographs turned grey
    inverted: float


CASES, NETWORKS = 18, 4  # pairs of a network and a novel set
SOURCE = "docs/detectors.md of whence"
APART = "Apart from its uncertainty, detectors of the plain network (energy, distances between features)"
BEST_SINGLE = ("nearest neighbours", 0.062, 0.455)  # if it is always taken: behind, and at worst
MEASURED = {
    "combined": Experience(0.025, 0.097, (0.037, -0.009, 0.082), (0.54, 0.92), 0.63, 0.66),
    "combined without training data": Experience(0.031, 0.086, (0.031, -0.02, 0.081), (0.54, 0.92), 0.64, 0.65),
    "novelty_entropy": Experience(0.034, 0.101, (0.028, -0.028, 0.083), (0.54, 0.9), 0.61, 0.63),
    "novelty": Experience(0.075, 0.283, (-0.013, -0.082, 0.056), (0.6, 0.85), 0.51, 0.6),
}


def label_of(name: str) -> str:
    return DETECTORS.get(name, name)


def _called(name: str) -> str:
    """A detector in a sentence."""
    return IN_WORDS.get(name, name)


def recommended(usual: str, scores: Scores, images: bool, missing: str = "") -> DetectorChoice:
    """Without out-of-distribution data: the usual detector, and why; ``missing``: why there are no plain detectors."""
    *first, last = [_called(name) for name in PARTS if name in scores] or [""]
    about = {
        "combined": f"the combination of {', '.join(first)} and {last}",
        "novelty_entropy": "novelty by layer combined with the entropy of the plain network",
        "novelty": "novelty by layer, since no other part of the combination applies",
    }[usual]
    words = (
        f"Without out-of-distribution data the recommended detector is {about}. Which single detector is best depends "
        "on what is novel, and validation data do not tell.",
        *([_measured(usual, scores)] if images else []),
    )
    return DetectorChoice(usual, label_of(usual), usual, words, limits(usual, scores, images, missing, tried=False))


def _measured(usual: str, scores: Scores) -> str:
    """Why it is the usual one, where inputs are images."""
    found = experience(usual, scores)
    single, behind, worst = BEST_SINGLE
    gain, low, high = found.gain
    clear = "significant" if low > 0 or high < 0 else "not significant"
    return (
        f"This was measured on {NETWORKS} image networks, with {CASES} pairs of a network and a novel set ({SOURCE}). "
        "Each detector was compared with the best single one of each pair, seen afterwards. The AUROC of the "
        f"recommended detector was {found.behind:.3f} lower on average and {found.worst:.3f} at worst. "
        f"{single.capitalize()}, the best single detector on average, was {behind:.3f} lower on average and "
        f"{worst:.3f} at worst. "
        + minus(f"The two averages differ by {gain:.3f} (95% interval {low:.3f} to {high:.3f}), which is {clear}.")
    )


def experience(usual: str, scores: Scores) -> Experience:
    """Measured numbers of a detector with the parts that it has here."""
    whole = usual != "combined" or "mahalanobis_layers" in scores
    return MEASURED[usual if whole else "combined without training data"]


def limits(usual: str, scores: Scores, images: bool, missing: str = "", tried: bool = True) -> tuple[str, ...]:
    """What is not detected, from the same measurements where inputs are images, and which detectors there are not.

    ``tried``: whether there were novel inputs.
    """
    found = experience(usual, scores)
    low, high = found.unseen
    words = f"How well detectors work{' on novel inputs of other kinds' if tried else ''} was not measured."
    if images:
        words = (
            f"In other image networks {_called(usual)} had an AUROC of {low:.2f} to {high:.2f} for unseen classes of "
            f"the same kind, {found.grey:.2f} for photographs turned grey and {found.inverted:.2f} for inverted ones "
            f"({SOURCE})."
        )
    return (
        f"Not everything novel is detected. {words}",
        "Novelty is not error: to find wrong predictions on familiar inputs, use the uncertainty of the prediction.",
        *([f"{APART} were not tried: {missing}"] if missing else []),
    )


def compared(
    usual: str,
    rows: Sequence[Detector],
    scores: Mapping[str, Scores],
    images: bool,
    poor: float = VerdictRules.novelty_poor,
    missing: str = "",
) -> DetectorChoice:
    """Which detector has the largest AUROC, by how much, and how the usual one compares with the best of the others.

    ``poor``: the AUROC below which none is recommended.
    """
    others = [row for row in rows if row.name not in BY_LAYER]
    best, mine = rows[0], next(row for row in rows if row.name == usual)
    lead = _difference(best.name, rows[1].name, scores) if len(rows) > 1 else None
    counts = (len(scores["test"][usual]), len(scores["ood"][usual]))
    perfect = [row.name for row in rows if row.auroc.value == 1.0]
    ranked = len(perfect) < 2
    words = [] if lead is None else [_won(best, rows[1], lead, counts) if ranked else _tied(perfect, usual, counts)]
    said = [{row.name for row in rows[:2]}]  # pairs whose difference is in the words
    against, outcome = None, None
    if others:
        against = _difference(usual, others[0].name, scores)
        outcome = outcome_of(against)
        if {usual, others[0].name} not in said and not {usual, others[0].name} <= {*perfect}:
            words.append(_usual(mine, others[0], against, outcome))
            said.append({usual, others[0].name})
    ahead = None if best.name == usual else _difference(best.name, usual, scores)
    chosen = best if ahead is not None and outcome_of(ahead) == "better" else mine
    if none := _is_poor(best, poor):
        words.insert(0, _none_good(best))
    elif ranked or usual not in perfect:
        words.append(_advice(best, chosen, mine, ahead, {best.name, usual} in said) + _false_alarms(chosen, rows))
    known = limits(usual, scores["test"], images, missing)
    return DetectorChoice(
        None if none else chosen.name,
        label_of(chosen.name),
        usual,
        tuple(words),
        known,
        best.name,
        Estimate.of(lead),
        others[0].name if others else None,
        Estimate.of(against),
        outcome,
    )


def _is_poor(best: Detector, poor: float) -> bool:
    """Whether even the best is poor by its interval, as the verdict judges the usual one."""
    return (best.auroc.value or 0.0) < poor and (best.auroc.high is None or best.auroc.high < poor)


def _none_good(best: Detector) -> str:
    chance = "" if (best.auroc.low or 0.0) <= 0.5 else ", better than chance but not by enough to rely on it"
    return (
        f"No detector is good enough for these inputs, so none is recommended: the best, {_called(best.name)}, has an "
        f"AUROC of {area(best.auroc.value, 3)}{chance}."
    )


def _difference(first: str, second: str, scores: Mapping[str, Scores]) -> Measured:
    """AUROC of one detector minus that of another on the same inputs."""
    one, other = (torch.cat([scores[name][d] for name in ("test", "ood")]) for d in (first, second))
    novel = torch.arange(len(one)) >= len(scores["test"][first])
    return auroc_difference(one, other, novel)


def outcome_of(difference: Measured) -> Literal["better", "worse", "tied"]:
    """By the interval."""
    if difference.low <= 0 <= difference.high:
        return "tied"
    return "better" if difference > 0 else "worse"


def _size(found: Measured) -> str:
    """A difference and its interval, turned so that the difference is positive."""
    low, high = (found.low, found.high) if found >= 0 else (-found.high, -found.low)
    return minus(f"{abs(found):.3f} (95% interval {low:.3f} to {high:.3f})")


def _tried(counts: tuple[int, int]) -> str:
    return f"With {counts[1]:,} out-of-distribution and {counts[0]:,} test inputs"


def _tied(perfect: Sequence[str], usual: str, counts: tuple[int, int]) -> str:
    """Where several detectors make no mistake."""
    start = f"{_tried(counts)}, {len(perfect)} detectors separate the two sets completely (AUROC 1)"
    if usual in perfect:
        return f"{start}, so the default, {_called(usual)}, is kept and recommended."
    return f"{start}, so these data cannot rank these detectors."


def _won(best: Detector, second: Detector, lead: Measured, counts: tuple[int, int]) -> str:
    start = f"{_tried(counts)}, {_called(best.name)}"
    if outcome_of(lead) == "tied":
        return (
            f"{start} (AUROC {area(best.auroc.value, 3)}) and {_called(second.name)} ({area(second.auroc.value, 3)}) "
            f"detect best, without a significant difference: {_size(lead)}."
        )
    return f"{start} detects best (AUROC {area(best.auroc.value, 3)}), {_size(lead)} above {_called(second.name)}."


def _usual(mine: Detector, other: Detector, against: Measured, outcome: str) -> str:
    start = f"The usual recommendation, {_called(mine.name)}, has an AUROC of {area(mine.auroc.value, 3)}"
    best = f"the best detector that does not use novelty by layer ({_called(other.name)})"
    if outcome == "tied":
        return f"{start}, without a significant difference from {best}: {_size(against)}."
    side = "above" if outcome == "better" else "below"
    return f"{start}, {_size(against)} {side} {best}."


def _advice(best: Detector, chosen: Detector, usual: Detector, ahead: Measured | None, said: bool) -> str:
    """What to use; ``ahead``: AUROC of the best detector minus that of the usual one, if it is another; ``said``:
    whether that is in the words before."""
    if ahead is None:
        return f"Recommended: {_called(usual.name)}."
    size = "" if said else _size(ahead)
    if chosen is usual:
        found = f" ({size})" if size else ""
        return f"Recommended: {_called(usual.name)}, since {_called(best.name)} is not significantly better{found}."
    above = f", {size} above {_called(usual.name)}" if size else ""
    return (
        f"Recommended for inputs like these: {_called(chosen.name)}{above}. For novel inputs of other kinds, of which "
        f"nothing is known, the recommendation stays {_called(usual.name)}."
    )


def _false_alarms(chosen: Detector, rows: Sequence[Detector]) -> str:
    """Which detector has clearly fewer false alarms than the recommended one where 95% of the novel are flagged."""
    own, least = chosen.fpr95, min(rows, key=lambda row: row.fpr95.value if row.fpr95.value is not None else 1.0)
    if own.value is None or own.low is None or least.fpr95.high is None or least.fpr95.high >= own.low:
        return ""
    return (
        f" Where 95% of the novel inputs are flagged, it also flags {percent(own.value)} of the test inputs, "
        f"{_called(least.name)} {percent(least.fpr95.value)}."
    )
