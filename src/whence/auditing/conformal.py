"""Conformal sets and intervals: thresholds from validation data, measured on test data.

Index legend: M scored elements, C answers of an element.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from whence.auditing.answered import answers_of
from whence.auditing.context import Context
from whence.auditing.tasks import Classes, Numbers
from whence.errors import BadOption, NotDefined, Notice, fraction
from whence.metrics import Conformal, conformal, width
from whence.metrics.conformal import Drawn, Score, held_share, inputs_needed
from whence.metrics.elements import Elements
from whence.metrics.means import mean
from whence.metrics.proportions import share_of
from whence.numerals import percent, share_range
from whence.posteriors.laplace.description import VALIDATION_DATA
from whence.report.record.common import Estimate
from whence.report.record.conformal import ConformalRow, ConformalSection, OfIntervals, OfSets, PartCoverage

LEVELS = (0.9, 0.95)
MANY = 100  # no table by class above it
FEW = 5  # test inputs of a class, below which it has no row
ABOUT = {
    Score.PROBABILITY: "The set contains every answer whose probability reaches a threshold.",
    Score.CUMULATIVE: (
        "The set contains the most probable answers, until their probabilities together reach a threshold."
    ),
    Score.NORMALISED: "The interval is the predicted mean plus and minus a multiple of the predicted standard "
    "deviation.",
    Score.ABSOLUTE: "The interval is the predicted mean plus and minus a fixed distance.",
}
LIMITS = "Nothing is guaranteed for {part}a group of inputs, or out of distribution."
TUNED = (
    "The prior was tuned on the same validation data, so the guarantee is approximate: tuning chooses one or two "
    "numbers with them, which cost less than half a percentage point of coverage in simulations (docs/metrics.md of "
    "whence, “Prediction sets and intervals”)."
)
TUNED_TOO = "The prior was tuned on the same validation data too."
HIGHER = 0.99  # a level to ask for where the network alone is right as often as the sets


def conformal_section(context: Context) -> ConformalSection:
    """One row for each level."""
    if not (context.task.has_labels or isinstance(context.task, Numbers)):
        raise NotDefined("the outputs of a custom likelihood are not the predicted targets.")
    held, targets = context.prediction("validation"), context.need_targets("validation")
    context.need_targets("test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # infinite thresholds are said below
        rules = [conformal(held, targets, level=level, score=context.score) for level in context.levels]
    rows = tuple(_row(context, rule) for rule in rules)
    return ConformalSection(
        "sets" if context.task.has_labels else "intervals",
        str(rules[0].score),
        ABOUT[rules[0].score],
        *_guarantee(context, rules[0]),
        rows,
        (*_words(context, rules, rows), *_beside_answers(context, rows)),
    )


def _guarantee(context: Context, rule: Conformal) -> tuple[str, str]:
    """What is guaranteed for these data, and its limits."""
    tuned = context.posterior.summary().tuned_on == VALIDATION_DATA
    words = rule.guaranteed(" or ".join(map(percent, context.levels)) + _as_chosen(context), tuned)
    limits = LIMITS.format(part="one class, for " if context.task.has_labels else "")
    shared = 0 if context.overlap is None else context.overlap.validation or 0
    if not shared:
        return words, f"{limits} {TUNED}" if tuned else limits
    one = shared == 1
    broken = (
        f"The coverage is not guaranteed here: {shared:,} of the {len(context.need('validation')):,} validation inputs "
        f"{'is' if one else 'are'} in the training data, and errors on {'it' if one else 'these'} are usually smaller "
        "than on new inputs."
    )
    later = f"With {'that input' if one else 'these'} left out, this would hold: {words[0].lower()}{words[1:]} {limits}"
    return broken, f"{later} {TUNED_TOO}" if tuned else later


def _beside_answers(context: Context, rows: Sequence[ConformalRow]) -> Iterator[str]:
    """Whether sets of some level add nothing to the most probable answer, which alone is right as often."""
    if not (isinstance(context.task, Classes) or context.two_names):
        return
    labels, targets = (t.reshape(-1).cpu() for t in (context.prediction("test").labels, context.need_targets("test")))
    right = float((labels == targets)[targets >= 0].double().mean())
    low = [row.level for row in rows if (row.level or 1.0) <= right and _at_most_one(row)]
    if low and all(map(_at_most_one, rows)):
        asked = " and ".join(map(percent, low))
        yield (
            f"The most probable answer alone is right for {percent(right)}, and sets at {asked} have one answer or "
            f"none. For sets with more answers, run the audit with `levels=({max(HIGHER, *low):g},)`."
        )


def _at_most_one(row: ConformalRow) -> bool:
    return row.sets is not None and (row.sets.singletons or 0.0) + (row.sets.empty or 0.0) == 1


def _as_chosen(context: Context) -> str:
    return ", according to the level" if len(context.levels) > 1 else ""


def _row(context: Context, rule: Conformal) -> ConformalRow:
    prediction, targets = context.prediction("test"), context.need_targets("test")
    held, members = rule.covered(prediction, targets)
    single = members.group is None and rule.drawn is Drawn.NOTHING
    fitted = context.overlap is not None and bool(context.overlap.validation)  # then nothing is guaranteed
    chance = rule.by_chance(len(held)) if single and not fitted else (None, None)
    found = {"sets": _sets(context, rule, held, members)} if context.task.has_labels else {
        "intervals": _intervals(rule, prediction, targets, members)
    }  # fmt: skip
    return ConformalRow(
        rule.level,
        rule.count,
        tuple(rule.thresholds),
        _estimate(held_share("coverage", held, members)),
        *chance,
        **found,  # type: ignore[arg-type]
    )


def _estimate(found: Any) -> Estimate:
    made = Estimate.of(found)
    assert made is not None
    return made


def _sets(context: Context, rule: Conformal, held: Tensor, members: Elements) -> OfSets:
    prediction, targets = context.prediction("test"), context.need_targets("test")
    sets = rule.sets(prediction)
    sets = sets.movedim(prediction.class_dim, -1) if isinstance(context.task, Classes) else sets
    sizes = sets.reshape(-1, sets.shape[-1])[members.keep].sum(1).double()  # [M]
    truth = targets.reshape(-1).to(members.keep.device)[members.keep]
    right = prediction.labels.reshape(-1)[members.keep] == truth
    return OfSets(
        _estimate(mean("size", sizes, members)),
        float((sizes == 1).double().mean()),
        float((sizes == 0).double().mean()),
        _mean(sizes[right]),
        _mean(sizes[~right]),
        _parts(context, rule, held, sizes, truth, members),
        float((sizes > 1).double().mean()),
    )


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def _parts(
    context: Context, rule: Conformal, held: Tensor, sizes: Tensor, truth: Tensor, members: Elements
) -> tuple[PartCoverage, ...] | None:
    """By true class, or by label where there are several; None for pixels and tokens, which are not independent."""
    if len(rule.thresholds) > 1:
        part, count = members.keep % len(rule.thresholds), len(rule.thresholds)
        names = list(context.classes or (f"label {k}" for k in range(count)))
    else:
        if members.group is not None:
            return None
        part, count = truth.long(), 2 if not isinstance(context.task, Classes) else int(truth.max()) + 1
        names = [context.class_name(c) for c in range(count)]
    shown = [k for k in range(count) if int((part == k).sum()) >= FEW]
    if not shown or count > MANY:
        return None
    level = 1 - 0.05 / len(shown)
    found = []
    for k in shown:
        own = part == k
        coverage = share_of("coverage", int(held[own].sum()), int(own.sum()), level)
        found.append(PartCoverage(names[k], _estimate(coverage), float(sizes[own].mean())))
    return tuple(found)


def _intervals(rule: Conformal, prediction: Any, targets: Tensor, members: Elements) -> OfIntervals:
    y = targets.double().reshape(prediction.mean.shape).to(prediction.mean.device)
    low, high = prediction.interval(rule.level)
    inside = ((low <= y) & (y <= high)).reshape(-1)[members.keep]
    own = None if math.inf in rule.thresholds else width(rule.interval(prediction), targets.reshape(y.shape))
    return OfIntervals(
        Estimate.of(own),
        _estimate(held_share("coverage", inside, members)),
        _estimate(width((low, high), targets.reshape(y.shape))),
    )


def _words(context: Context, rules: Sequence[Conformal], rows: Sequence[ConformalRow]) -> Iterator[str]:
    for rule, row in zip(rules, rows, strict=True):
        what = f"{percent(rule.level)} {'sets' if row.sets else 'intervals'}"
        if math.inf in rule.thresholds:
            yield (
                f"{what[0].upper()}{what[1:]} need at least {inputs_needed(rule.level):,} validation inputs; there are "
                f"{rule.count:,}, so they contain every {'answer' if row.sets else 'value'}."
            )
            continue
        yield _coverage_words(what, row, context)
        worst = _worst(row)
        if worst is not None:
            yield (
                f"For `{worst.name}` they contain the true answer for only {percent(worst.coverage.value)} of "
                f"{worst.coverage.count:,} test inputs (simultaneous 95% interval {percent(worst.coverage.low)} to "
                f"{percent(worst.coverage.high)}): the guarantee is for all inputs together."
            )


def _coverage_words(what: str, row: ConformalRow, context: Context) -> str:
    found, inputs = row.coverage, len(context.need("test"))
    of = (
        f"{found.count:,} {context.elements} of {inputs:,} test inputs"
        if found.count > inputs
        else f"{inputs:,} test inputs"
    )
    truth = "answer" if row.sets else "value"
    words = (
        f"{what[0].upper()}{what[1:]} contain the true {truth} for {percent(found.value)} of {of} (95% interval "
        f"{percent(found.low)} to {percent(found.high)})"
    )
    value, low, high = found.value or 0.0, row.chance_low, row.chance_high
    if low is None or high is None:
        return f"{words}."
    if value < low:
        return (
            f"{words}. In 95 of 100 cases it would be {share_range(value, low, high)}. Test and validation inputs "
            "may not come from the same source; if they do not, the guarantee does not hold for the test data."
        )
    if value > high:
        more = f"{words}. That is more than the {share_range(value, low, high)} expected in 95 of 100 cases"
        return f"{more}: {_why_more(context, found.count)}."
    return f"{words}, within the range that is expected in 95 of 100 cases ({share_range(value, low, high)})."


def _why_more(context: Context, count: int | None) -> str:
    """Ties at the threshold make sets larger; otherwise the validation data were harder."""
    if not isinstance(context.task, Classes) and context.two_names is None:
        return "validation and test inputs may differ, or many scores are equal"
    rates = [
        float(one.wrong.sum() / one.labels.sum()) for one in (answers_of(context, n) for n in ("validation", "test"))
    ]
    found = f"the error rate is {percent(rates[0])} on the validation data and {percent(rates[1])} on the test data"
    if rates[0] > rates[1]:
        return f"the validation inputs seem harder ({found})"
    return f"many scores may be equal, or validation and test inputs differ ({found})"


def _worst(row: ConformalRow) -> PartCoverage | None:
    """The class or label with the lowest coverage, if that is significantly below the level."""
    parts = (row.sets and row.sets.parts) or ()
    below = [part for part in parts if part.coverage.high is not None and part.coverage.high < row.level]
    return min(below, key=lambda part: part.coverage.value or 0.0) if below else None


def check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """Levels between 0 and 1, each once, in their order."""
    if isinstance(levels, (int, float, str)) or not len(levels):
        raise BadOption(f"levels={levels!r} must be a list of numbers between 0 and 1, such as [0.9, 0.95].")
    return tuple(dict.fromkeys(fraction(level, "levels", "0.9 gives 90% sets and intervals") for level in levels))
