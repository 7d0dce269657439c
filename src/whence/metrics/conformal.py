"""Split conformal prediction: sets and intervals that hold the truth with a chosen probability.

A threshold on a score of (input, answer) is taken from validation data; the set of a new input are the answers whose
score is not above it. If validation and new inputs are exchangeable, the set holds the true answer with probability at
least ``level``, averaged over validation sets and inputs (Vovk et al. 2005; Lei et al. 2018, J. Am. Stat. Assoc. 113,
Thm. 2.2). Nothing is guaranteed for one class, one group of inputs, or inputs from elsewhere.

Index legend: N examples, M scored elements, C classes, K outputs or labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from whence.engine.options import Option
from whence.errors import BadData, BadOption, NotDefined, fraction, notice
from whence.metrics.classification import read_labels
from whence.metrics.elements import ArrayLike, Elements, MetricOptions, elements, finite, squeezed, tensor
from whence.metrics.intervals import Estimate
from whence.metrics.means import share
from whence.metrics.proportions import coverage_by_chance, share_of
from whence.numerals import percent
from whence.predictive.predictions import BinaryPrediction, ClassificationPrediction, CountPrediction

ScoreName = Literal["probability", "cumulative", "normalised", "absolute"]


class Score(Option):
    """How unlikely an answer is."""

    PROBABILITY = "probability"  # 1 − its probability (Sadinle et al. 2019, J. Am. Stat. Assoc. 114)
    CUMULATIVE = "cumulative"  # that of all more probable classes (Romano et al. 2020, not randomised)
    NORMALISED = "normalised"  # distance from the mean in standard deviations
    ABSOLUTE = "absolute"  # distance from the mean


class Answer(Option):
    """What is predicted."""

    CLASSES = "classes"
    LABELS = "labels"
    NUMBERS = "numbers"
    COUNTS = "counts"


class Drawn(Option):
    """What the guarantee is drawn from."""

    NOTHING = "nothing"
    ELEMENT = "element"  # of an example: a pixel or token
    GROUP = "group"


OF_LABELS = (Score.PROBABILITY, Score.CUMULATIVE)
OF_NUMBERS = (Score.NORMALISED, Score.ABSOLUTE)


def conformal(
    prediction: Any,
    targets: ArrayLike,
    *,
    level: float = 0.9,
    score: ScoreName | None = None,
    mask: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    ignore_index: int = -100,
    class_dim: int = 1,
) -> Conformal:
    """Thresholds from the prediction of validation inputs and their true answers.

    Args:
        prediction: a prediction of whence; probabilities (N, C), or (N,) of ones, with whole numbers as targets; or
            point predictions with floating-point targets.
        targets: the truth; validation inputs must not have been used in training.
        level: the probability with which sets and intervals hold the truth.
        score: of labels "probability" (the smallest sets on average; some may be empty) or "cumulative" (larger sets,
            never empty, more even coverage of easy and difficult inputs); of numbers "normalised" by the predicted
            standard deviation, or "absolute". By default the first of each, for point predictions "absolute".
        mask, groups, ignore_index, class_dim: as for every metric.

    Several labels or outputs have a threshold each: the guarantee is for each of them, not for all together. The
    elements of one example (pixels, tokens) or group belong together: each example has the same weight, and the
    guarantee is for an element drawn at random from a new example (Lee et al. 2023, arXiv:2306.06342, sec. 3).
    """
    fraction(level, "level", "0.9 gives 90% sets")
    answer = _answer(prediction, tensor(targets, "targets"))
    chosen = _score(score, answer, prediction)
    options = {"mask": mask, "groups": groups}
    if answer in (Answer.CLASSES, Answer.LABELS):
        options |= {"ignore_index": ignore_index, "class_dim": class_dim}
    read = _read(prediction, targets, answer, chosen, options)
    found, counts = [], []
    for column in range(read.columns):
        own = (read.column == column).nonzero().flatten()
        group = None if read.elements.group is None else read.elements.group[own]
        found.append(conformal_quantile(read.scores[own], level, group))
        counts.append(len(own) if group is None else len(group.unique()))
    if math.inf in found:
        notice(
            f"level={level:g} needs at least {inputs_needed(level):,} validation inputs; there are {min(counts):,}. "
            "Sets hold every answer and intervals are infinite: give more validation inputs or a lower level."
        )
    drawn = Drawn.GROUP if groups is not None else Drawn.ELEMENT if read.has_positions else Drawn.NOTHING
    return Conformal(tuple(found), level, min(counts), chosen, answer, class_dim, drawn)


def conformal_quantile(scores: Tensor, level: float, group: Tensor | None = None) -> float:
    """The ⌈(n + 1) level⌉-th smallest of n scores; infinite if there are fewer.

    In groups: where the scores of n groups of equal weight, and one infinite score of the same weight, reach ``level``.
    """
    if group is None:
        rank = quantile_rank(len(scores), level)
        return float(scores.sort().values[rank - 1]) if rank <= len(scores) else math.inf
    ordered, order = scores.sort()
    weights = _within_groups(group)
    reached = weights[order].cumsum(0) / (weights.sum() + 1) >= level - 1e-9
    return float(ordered[int(reached.int().argmax())]) if bool(reached.any()) else math.inf


def _within_groups(group: Tensor) -> Tensor:
    """A weight of 1 for each group, divided among its elements."""
    _, place, sizes = group.unique(return_inverse=True, return_counts=True)
    return 1 / sizes.double()[place]


def quantile_rank(count: int, level: float) -> int:
    """⌈(n + 1) level⌉, where rounding does not add one."""
    return math.ceil((count + 1) * level - 1e-9)


def inputs_needed(level: float) -> int:
    """The smallest number of validation inputs for a finite threshold: n with ⌈(n + 1) level⌉ ≤ n."""
    count = max(1, math.floor(level / (1 - level)) - 1)
    while quantile_rank(count, level) > count:
        count += 1
    return count


@dataclass(frozen=True)
class Conformal:
    """Thresholds of scores, chosen on validation data."""

    thresholds: tuple[float, ...]  # one, or one for each label or output; infinite if there are too few inputs
    level: float
    count: int  # validation inputs behind each threshold
    score: Score
    answer: Answer
    class_dim: int = 1  # of probabilities given as a tensor
    drawn: Drawn = Drawn.NOTHING  # whether the guarantee is for an element drawn from an example or group

    @property
    def threshold(self) -> float:
        """The threshold; the largest one of several."""
        return max(self.thresholds)

    @property
    def guarantee(self) -> str:
        """What is guaranteed under which assumption, in one sentence."""
        return self.guaranteed(percent(self.level))

    def guaranteed(self, level: str, approximately: bool = False) -> str:
        """The same for a level in words; ``approximately``, if something else was tuned on the validation data."""
        what = "set" if self.answer in (Answer.CLASSES, Answer.LABELS) else "interval"
        each = " of each label or output" if len(self.thresholds) > 1 else ""
        where = {
            Drawn.NOTHING: "",
            Drawn.ELEMENT: ", for a position drawn at random from a new input",
            Drawn.GROUP: ", for an input drawn at random from a new group",
        }[self.drawn]
        return (
            f"If new inputs and the {self.count:,} validation inputs come from the same source in the same way "
            f"(exchangeable), the {what}{each} contains the true answer with a probability of at least "
            f"{'approximately ' if approximately else ''}{level}{where}."
        )

    def sets(self, prediction: Any) -> Tensor:
        """Which answers belong to each set, in the shape of the probabilities: (N, C), for binary labels (N, 2), for K
        labels (N, K, 2) with 0 before 1."""
        if self.answer not in (Answer.CLASSES, Answer.LABELS):
            raise NotDefined("a prediction of numbers has intervals, not sets: use interval().")
        probs = tensor(getattr(prediction, "probs", prediction), "probabilities")
        if self.answer is Answer.LABELS:
            both = torch.stack([1 - probs.double(), probs.double()], -1)  # [N, …, 2]
            scores = _class_scores(both, self.score)
            found = scores <= self._limits(probs.shape, probs.device).unsqueeze(-1)
            return found.reshape(len(probs), 2) if probs.shape[1:].numel() == 1 else found
        dim = getattr(prediction, "class_dim", self.class_dim)
        scores = _class_scores(probs.movedim(dim, -1), self.score)
        return (scores <= self.threshold).movedim(-1, dim)

    def interval(self, prediction: Any) -> tuple[Tensor, Tensor]:
        """(low, high) in the shape of the mean; of counts whole numbers."""
        if self.answer not in (Answer.NUMBERS, Answer.COUNTS):
            raise NotDefined("a prediction of labels has sets, not intervals: use sets().")
        centre = _mean(prediction)
        reach = self._limits(centre.shape, centre.device).expand(centre.shape)
        reach = reach * _std(prediction).double() if self.score is Score.NORMALISED else reach
        low, high = centre.double() - reach, centre.double() + reach
        if self.answer is Answer.COUNTS:
            low, high = low.ceil().clamp(min=0), high.floor()
        return low.to(centre.dtype), high.to(centre.dtype)

    def covered(self, prediction: Any, targets: ArrayLike, **options: Any) -> tuple[Tensor, Elements]:
        """Whether the set or interval holds the truth of each scored element, [M], and these elements."""
        options |= {"class_dim": self.class_dim} if self.answer is Answer.CLASSES else {}
        read = _read(prediction, targets, self.answer, self.score, options)
        limits = torch.tensor(self.thresholds, dtype=torch.float64, device=read.scores.device)
        if len(limits) not in (1, read.columns):
            raise BadData(f"there are {len(limits)} thresholds, but {read.columns} labels or outputs.")
        return read.scores <= limits[read.column if len(limits) > 1 else 0], read.elements

    def coverage(
        self, prediction: Any, targets: ArrayLike, *, mask: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> Estimate:
        """The share of other data whose set or interval holds the truth.

        With an exact binomial interval; by a bootstrap of examples if they have several elements.
        """
        held, members = self.covered(prediction, targets, mask=mask, groups=groups)
        return held_share("coverage", held, members)

    def by_chance(self, test: int, level: float = 0.95) -> tuple[float, float]:
        """The range of the coverage of ``test`` inputs if these and the validation inputs are exchangeable; ties of
        scores may give more."""
        return coverage_by_chance(quantile_rank(self.count, self.level), self.count, test, level)

    def _limits(self, shape: torch.Size, device: torch.device) -> Tensor:
        """The threshold of each label or output, to be broadcast to ``shape``."""
        limits = torch.tensor(self.thresholds, dtype=torch.float64, device=device)
        if len(limits) > 1 and limits.shape != shape[1:]:
            raise BadData(f"there are {len(limits)} thresholds, but the prediction has shape {tuple(shape)}.")
        return limits if len(limits) > 1 else limits.reshape(())


def held_share(name: str, held: Tensor, members: Elements) -> Estimate:
    """The share of true elements [M], with an exact interval if these are independent.

    In groups: the mean over groups of the share of each, with the interval of a clustered share.
    """
    if members.group is None:
        found = share_of(name, int(held.sum()), len(held), members.options.level)
        assert found is not None
        return found
    return share(name, held, replace(members, weights=_within_groups(members.group)))


# Reading


@dataclass(frozen=True)
class _Scored:
    """Scores of the true answers."""

    scores: Tensor  # [M] in float64
    column: Tensor  # [M] label or output
    columns: int
    elements: Elements
    has_positions: bool  # whether examples have several elements that share a threshold


def _answer(prediction: Any, targets: Tensor) -> Answer:
    if isinstance(prediction, ClassificationPrediction):
        return Answer.CLASSES
    if isinstance(prediction, BinaryPrediction):
        return Answer.LABELS
    if isinstance(prediction, CountPrediction):
        return Answer.COUNTS
    if not _is_array(prediction):
        return Answer.NUMBERS
    if targets.is_floating_point():
        return Answer.NUMBERS
    same = squeezed(tensor(prediction, "predictions").shape) == squeezed(targets.shape)
    return Answer.LABELS if same else Answer.CLASSES


def _score(given: str | None, answer: Answer, prediction: Any) -> Score:
    allowed = OF_LABELS if answer in (Answer.CLASSES, Answer.LABELS) else OF_NUMBERS
    if given is None:
        return Score.ABSOLUTE if allowed is OF_NUMBERS and _is_array(prediction) else allowed[0]
    chosen = Score.parse(given, "score")
    if chosen not in allowed:
        raise BadOption(f"score={given!r} is not for {answer}; use {' or '.join(map(repr, allowed))}.")
    return chosen


def _read(prediction: Any, targets: ArrayLike, answer: Answer, score: Score, options: dict[str, Any]) -> _Scored:
    if answer in (Answer.CLASSES, Answer.LABELS):
        labels = read_labels("conformal", prediction, targets, options)
        each = _class_scores(labels.probs, score).gather(1, labels.truth.unsqueeze(1)).squeeze(1)
        shape = labels.shape if answer is Answer.LABELS else labels.shape[:1]
        return _scored(each, labels.elements, shape)
    centre, y = _mean(prediction), tensor(targets, "targets")
    if squeezed(centre.shape) != squeezed(y.shape):
        raise BadData(f"predictions have shape {tuple(centre.shape)}, but the targets have {tuple(y.shape)}.")
    members = elements(centre.shape, MetricOptions.read("conformal", options), centre.device)
    y = finite(y.to(centre.device).reshape(-1)[members.keep].double(), "targets")
    each = (y - finite(centre.reshape(-1)[members.keep].double(), "predictions")).abs()
    if score is Score.NORMALISED:
        each = each / _std(prediction).reshape(-1)[members.keep].double()
    return _scored(each, members, centre.shape)


def _scored(scores: Tensor, members: Elements, shape: torch.Size) -> _Scored:
    """``shape`` [N] or [N, K]: K labels or outputs have thresholds of their own; others share one."""
    columns = shape[1] if len(shape) == 2 else 1
    return _Scored(scores, members.keep % columns, columns, members, columns == 1 and members.group is not None)


def _class_scores(probs: Tensor, score: Score) -> Tensor:
    """The score of every class, [..., C] in float64."""
    p = probs.double()
    if score is Score.PROBABILITY:
        return 1 - p
    ordered, order = p.sort(stable=True, dim=-1, descending=True)
    return torch.zeros_like(p).scatter_(-1, order, ordered.cumsum(-1) - ordered)


def _mean(prediction: Any) -> Tensor:
    return tensor(prediction if _is_array(prediction) else prediction.mean, "predictions")


def _is_array(prediction: Any) -> bool:
    return isinstance(prediction, (Tensor, list, tuple)) or hasattr(prediction, "__array__")


def _std(prediction: Any) -> Tensor:
    """The predicted standard deviation; positive."""
    if _is_array(prediction):
        raise BadOption("point predictions have no standard deviation; use score='absolute'.")
    variance = tensor(prediction.variance, "variances")
    if bool((variance <= 0).any()):
        raise BadData(f"the smallest predicted variance is {float(variance.min()):.4g}; use score='absolute'.")
    return variance.double().sqrt()
