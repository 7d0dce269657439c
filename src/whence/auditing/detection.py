"""Which detector of novel inputs to use: measured where there is out-of-distribution data, recommended where not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from whence.auditing.context import Context
from whence.auditing.data import read_examples
from whence.engine.batches import Inputs, take
from whence.errors import MissingExtra, NotDefined, notice
from whence.metrics import Estimate as Measured
from whence.metrics import auroc_difference
from whence.numerals import area, minus
from whence.posteriors.laplace.posterior import Laplace
from whence.report.record.common import Estimate
from whence.report.record.sections import Detector, DetectorChoice
from whence.where.combined import PARTS, Combined, combine, known_scores
from whence.where.detectors import scores_of_novelty, table_of
from whence.where.novelty import Novelty, Reference, reference_of
from whence.where.novelty_prior import unexplained_by_layer
from whence.where.plain_detectors import PlainDetectors

TRAINED = 5_000  # training inputs for the other detectors
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
SAME = 16  # inputs by which a reference is recognised
Scores = dict[str, Tensor]  # by detector, [N] each


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
BEST_SINGLE = ("nearest neighbours", 0.062, 0.455)  # if it is always taken: behind, and at worst
MEASURED = {
    "combined": Experience(0.025, 0.097, (0.037, -0.009, 0.082), (0.54, 0.92), 0.63, 0.66),
    "combined without training data": Experience(0.031, 0.086, (0.031, -0.02, 0.081), (0.54, 0.92), 0.64, 0.65),
    "novelty_entropy": Experience(0.034, 0.101, (0.028, -0.028, 0.083), (0.54, 0.9), 0.61, 0.63),
    "novelty": Experience(0.075, 0.283, (-0.013, -0.082, 0.056), (0.6, 0.85), 0.51, 0.6),
}


@dataclass(frozen=True)
class Detection:
    """What the section says about detectors."""

    rows: tuple[Detector, ...] | None
    choice: DetectorChoice
    flagged: Mapping[str, float] = field(default_factory=dict)  # by set, by the combination


def detection(context: Context, sets: Mapping[str, Novelty], level: float) -> Detection:
    """Scores of every detector for the profiled inputs; AUROCs and the winner where there is ``ood``."""
    scores = {name: _scores(context, name, found) for name, found in sets.items()}
    together = _with_plain(context, scores)
    flagged = {name: float(found.flag(level).double().mean()) for name, found in together.items()}
    usual = next(name for name in BY_LAYER if name in scores["test"])
    if "ood" not in scores:
        return Detection(None, _recommended(usual, scores["test"], _has_images(context)), flagged)
    table = table_of([scores["test"], scores["ood"]], context.seed)
    rows = [
        Detector(row.detector, _label(row.detector), auroc, fpr95)
        for row in table.rows
        if (auroc := Estimate.of(row.auroc)) and (fpr95 := Estimate.of(row.fpr95))
    ]
    return Detection(tuple(rows), _compared(usual, rows, scores, _has_images(context)), flagged)


def _label(name: str) -> str:
    return DETECTORS.get(name, name)


def _called(name: str) -> str:
    """A detector in a sentence."""
    return IN_WORDS.get(name, name)


def _has_images(context: Context) -> bool:
    """Whether inputs are images, for which there are measurements."""
    inputs = context.need("test").inputs
    return isinstance(inputs, Tensor) and inputs.is_floating_point() and inputs.dim() >= 3


# Scores


def flag_level(size: int) -> float:
    """The p-value up to which an input is flagged: 1%, or the least that ``size`` reference inputs allow, rounded up to
    two digits."""
    least = 1 / (size + 1)
    scale = 10.0 ** (1 - math.floor(math.log10(least)))
    return max(0.01, math.ceil(least * scale) / scale)


def _scores(context: Context, name: str, found: Novelty) -> Scores:
    """What the posterior says about the profiled inputs of a set."""
    scores = scores_of_novelty(found)
    if context.posterior.likelihood.has_labels:
        index = context.profiled_index(name)
        parts = {"entropy": context.uncertainty(name), "mutual_information": context.epistemic(name)}
        scores |= {key: value[index] for key, value in parts.items() if value is not None}
    return scores | {"variance": context.total_variance(name)}


def _with_plain(context: Context, scores: Mapping[str, Scores]) -> dict[str, Combined]:
    """Add the detectors of the plain network to the scores of every set, and all detectors combined, which it returns.

    The combination needs the validation inputs, which other detectors score too.
    """
    plain = plain_of(context)
    if plain is None:
        return {}
    for name, found in scores.items():
        found |= plain.detectors.scores(context.profiled[name].inputs)
    together = {name: plain.combined(found) for name, found in scores.items()}
    for name, both in together.items():
        if both is not None:
            scores[name]["combined"] = both.score
    return {name: both for name, both in together.items() if both is not None}


@dataclass(frozen=True)
class Plain:
    """The detectors of the plain network, and the scores of validation inputs by the parts of the combination."""

    detectors: PlainDetectors
    known: Scores | None

    def combined(self, found: Mapping[str, Tensor]) -> Combined | None:
        """All detectors together, from the scores of some inputs; None with fewer than two."""
        if self.known is None or len([name for name in PARTS if name in self.known]) < 2:
            return None
        return combine(self.known, found)


def plain_of(context: Context) -> Plain | None:
    """Made once for all sections; None, with a Notice, where the network has no such detectors."""
    return context.once("plain detectors", lambda: _made(context))


def _made(context: Context) -> Plain | None:
    posterior = context.posterior.as_laplace("novelty")
    detectors = _plain(context, posterior)
    try:
        detectors.scores(take(context.profiled["test" if context.has("test") else "ood"].inputs, slice(0, 1)))
        return Plain(detectors, _known(context, posterior, detectors))
    except NotDefined as error:
        notice(f"the detectors of the plain network were skipped: {error}")
        return None


def combined_p_values(context: Context, inputs: Inputs, found: Novelty) -> Tensor | None:
    """P-values of the combination of detectors for some inputs [N] whose novelty is known; None without it."""
    plain = plain_of(context)
    if plain is None or plain.known is None:
        return None
    both = plain.combined({"novelty": found.score, **plain.detectors.scores(inputs)})
    return None if both is None else both.p_value


def _plain(context: Context, posterior: Laplace) -> PlainDetectors:
    """With training data, where that is possible."""
    train = None if context.train is None else read_examples(context.train, "train", TRAINED)
    try:
        return PlainDetectors(posterior, None if train is None or train.targets is None else train.pair)
    except MissingExtra as error:
        notice(f"the detectors that need training data were skipped: {error}")
    except NotDefined:  # scores() says why
        pass
    return PlainDetectors(posterior, None)


def _known(context: Context, posterior: Laplace, plain: PlainDetectors) -> Scores | None:
    """Scores of validation inputs, each relative to the others; None if there are no such inputs."""
    if not context.has("validation"):
        return None
    for examples in (context.need("validation"), context.profiled["validation"]):
        if _is_of(posterior, context.reference, examples.inputs, len(examples)):
            assert context.reference is not None
            return known_scores(context.reference, plain.scores(examples.inputs))
    inputs = context.profiled["validation"].inputs
    return known_scores(reference_of(posterior, inputs), plain.scores(inputs))


def _is_of(posterior: Laplace, reference: Reference | None, inputs: Any, count: int) -> bool:
    """Whether the reference was made from these inputs."""
    if reference is None or reference.size != count:
        return False
    few = min(SAME, count)
    some, precision = take(inputs, slice(0, few)), reference.precision_for(posterior)
    found, _ = unexplained_by_layer(posterior, some, precision, reference.probes or "exact")
    return torch.allclose(found, reference.unexplained[:few], rtol=1e-3, atol=1e-6)


# The choice


def _recommended(usual: str, scores: Scores, images: bool) -> DetectorChoice:
    """Without out-of-distribution data: the usual detector, and why."""
    found = experience(usual, scores)
    *first, last = [_called(name) for name in PARTS if name in scores] or [""]
    about = {
        "combined": f"the combination of {', '.join(first)} and {last}",
        "novelty_entropy": "novelty by layer combined with the entropy of the plain network",
        "novelty": "novelty by layer, since no other part of the combination applies",
    }[usual]
    single, behind, worst = BEST_SINGLE
    gain, low, high = found.gain
    clear = "significant" if low > 0 or high < 0 else "not significant"
    words = (
        f"Without out-of-distribution data the recommended detector is {about}. Which single detector is best depends "
        "on what is novel, and validation data do not tell.",
        f"This was measured on {NETWORKS} image networks, with {CASES} pairs of a network and a novel set. Compared "
        f"with the best single detector of each pair, the AUROC of the recommended one was lower by {found.behind:.3f} "
        f"on average and by {found.worst:.3f} at worst. For {single}, the single detector that is best on average, it "
        f"was lower by {behind:.3f} and {worst:.3f}. "
        + minus(f"The two averages differ by {gain:.3f} (95% interval {low:.3f} to {high:.3f}), which is {clear}."),
    )
    return DetectorChoice(usual, _label(usual), usual, words, limits(usual, scores, images))


def experience(usual: str, scores: Scores) -> Experience:
    """Measured numbers of a detector with the parts that it has here."""
    whole = usual != "combined" or "mahalanobis_layers" in scores
    return MEASURED[usual if whole else "combined without training data"]


def limits(usual: str, scores: Scores, images: bool) -> tuple[str, ...]:
    """What is not detected, from the same measurements."""
    found = experience(usual, scores)
    low, high = found.unseen
    unseen = f"an AUROC of {low:.2f} to {high:.2f} for unseen classes of the same kind"
    if images:
        words = (
            f"In other image networks {_called(usual)} had {unseen}, {found.grey:.2f} for photographs turned grey and "
            f"{found.inverted:.2f} for inverted ones."
        )
    else:
        words = (
            f"How well detectors work on inputs of this kind has not been measured; in image networks {_called(usual)} "
            f"had {unseen}."
        )
    return (
        f"Not everything novel is detected. {words}",
        "Novelty is not error: to find wrong predictions on familiar inputs, use the uncertainty of the prediction.",
    )


def _compared(usual: str, rows: Sequence[Detector], scores: Mapping[str, Scores], images: bool) -> DetectorChoice:
    """Which detector has the largest AUROC, by how much, and how the usual one compares with the best of the others."""
    others = [row for row in rows if row.name not in BY_LAYER]
    best = rows[0]
    lead = _difference(best.name, rows[1].name, scores) if len(rows) > 1 else None
    counts = (len(scores["test"][usual]), len(scores["ood"][usual]))
    perfect = [row.name for row in rows if row.auroc.value == 1.0]
    words = [] if lead is None else [_won(best, rows[1], lead, counts, len(perfect))]
    said = [{row.name for row in rows[:2]}]  # pairs whose difference is in the words
    against, outcome = None, None
    if others:
        against = _difference(usual, others[0].name, scores)
        outcome = outcome_of(against)
        if {usual, others[0].name} not in said and not {usual, others[0].name} <= {*perfect}:
            words.append(_usual(usual, rows, others[0], against, outcome))
            said.append({usual, others[0].name})
    ahead = None if best.name == usual else _difference(best.name, usual, scores)
    chosen = best.name if ahead is not None and outcome_of(ahead) == "better" else usual
    words.append(_advice(best.name, chosen, usual, ahead, {best.name, usual} in said or usual in perfect))
    return DetectorChoice(
        chosen, _label(chosen), usual, tuple(words), limits(usual, scores["test"], images), best.name,
        Estimate.of(lead), others[0].name if others else None, Estimate.of(against), outcome,
    )  # fmt: skip


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


def _won(best: Detector, second: Detector, lead: Measured, counts: tuple[int, int], perfect: int) -> str:
    """``perfect``: how many detectors make no mistake."""
    start = f"With {counts[1]:,} out-of-distribution and {counts[0]:,} test inputs"
    if perfect > 1:
        return (
            f"{start}, {perfect} detectors separate the two sets completely (AUROC 1), so these data cannot rank these "
            "detectors."
        )
    if outcome_of(lead) == "tied":
        return (
            f"{start}, {_called(best.name)} (AUROC {area(best.auroc.value, 3)}) and {_called(second.name)} "
            f"({area(second.auroc.value, 3)}) detect best, without a significant difference: {_size(lead)}."
        )
    return (
        f"{start}, {_called(best.name)} detects best (AUROC {area(best.auroc.value, 3)}), {_size(lead)} above "
        f"{_called(second.name)}."
    )


def _usual(usual: str, rows: Sequence[Detector], other: Detector, against: Measured, outcome: str) -> str:
    mine = next(row for row in rows if row.name == usual)
    start = f"The usual recommendation, {_called(mine.name)}, has an AUROC of {area(mine.auroc.value, 3)}"
    best = f"the best detector that does not use novelty by layer ({_called(other.name)})"
    if outcome == "tied":
        return f"{start}, without a significant difference from {best}: {_size(against)}."
    side = "above" if outcome == "better" else "below"
    return f"{start}, {_size(against)} {side} {best}."


def _advice(best: str, chosen: str, usual: str, ahead: Measured | None, said: bool) -> str:
    """What to use; ``ahead``: AUROC of the best detector minus that of the usual one, if it is another; ``said``:
    whether that is in the words before."""
    if ahead is None:
        return f"Recommended: {_called(usual)}."
    if chosen == usual:
        size = "" if said else f" ({_size(ahead)})"
        return f"Recommended: {_called(usual)}, since {_called(best)} is not significantly better{size}."
    size = "" if said else f", {_size(ahead)} above {_called(usual)}"
    return (
        f"Recommended for inputs like these: {_called(chosen)}{size}. For novel inputs of other kinds, of which "
        f"nothing is known, the recommendation stays {_called(usual)}."
    )
