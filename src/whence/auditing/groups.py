"""Groups of test inputs: every metric, deferral, and whether a group differs from the rest by more than chance.

Index legend: N inputs, G groups, Q quantities.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import Context
from whence.auditing.scored import Quantity, Scored, scored
from whence.auditing.scores import METRICS, ranked_errors
from whence.auditing.tasks import Classes
from whence.errors import NotDefined
from whence.metrics import Estimate as Measured
from whence.metrics import auroc, ece, evaluate
from whence.metrics.group_test import PERMUTATIONS, Differences, group_differences
from whence.metrics.proportions import share_of
from whence.numerals import number, percent, points, points_range, with_interval
from whence.report.record.audit import RATE
from whence.report.record.common import Estimate
from whence.report.record.groups import Group, GroupDifference, Grouping, Groups

FEWEST = 20  # inputs of a group, and of the rest, for a comparison
FEWEST_RANKED = 5  # of either kind for an AUROC
LEVEL = 0.95
NAMED = 4  # differences that sentences name
CALIBRATED = "ece"
RANKED = "auroc"
LOG_LOSS, NATS = "log loss", "nats"
OF_PREVALENCE = ("error rate", "log loss", "share deferred")  # quantities that depend on how frequent a class is


def groups(context: Context) -> Groups:
    """Metrics and deferral of every group of every grouping, and the comparisons."""
    if context.groups is None:
        raise NotDefined("no groups= were given.")
    context.need_targets("test")
    every = context.groups.of(context.need("test"))
    found = scored(context)
    masks = [[one.place == g for g in range(len(one.names))] for one in every]
    apart = compare(found, [mask for row in masks for mask in row], context.seed, _mirrored(masks))
    whole = torch.ones(len(context.need("test")), dtype=torch.bool)
    overall = _group(context, found, "all", whole, ())
    kept = [place for place, value in enumerate(overall.metrics) if value is not None]
    groupings, place = [], 0
    for one, row in zip(every, masks, strict=True):
        rows = []
        for name, mask in zip(one.names, row, strict=True):
            group = _group(context, found, name, mask, apart[place])
            rows.append(_with_metrics(group, kept))
            place += 1
        groupings.append(Grouping(one.name, one.about, tuple(rows)))
    made = Groups(
        metrics=tuple(METRICS[i] for i in kept),
        overall=_with_metrics(overall, kept),
        groupings=tuple(groupings),
        comparisons=sum(len(row) for row in apart),
        level=LEVEL,
        permutations=PERMUTATIONS,
        positive=None if context.two_names is None else context.two_names[context.positive],
        fewest=FEWEST,
        error=RATE if context.task.has_labels else "root mean squared error",
        words=(),
    )
    return Groups(**{**vars(made), "words": tuple(_words(made))})


def _with_metrics(group: Group, kept: Sequence[int]) -> Group:
    why = group.why and tuple(group.why[i] for i in kept)
    return replace(group, metrics=tuple(group.metrics[i] for i in kept), why=why)


# One group


def _group(context: Context, found: Scored, name: str, mask: Tensor, differences: tuple[GroupDifference, ...]) -> Group:
    """The metrics in the order of METRICS; of few inputs only shares have intervals."""
    count = int(mask.sum())
    at, few = mask[found.owner].nonzero().flatten(), count < FEWEST
    values: dict[str, Measured | None] = {}
    why: dict[str, str] = {}
    if len(at):
        values = {key: one.over(key, at, found.elements) for key, one in found.metrics.items()}
        if few:
            values = {
                key: _without_interval(value, found.metrics[key]) for key, value in values.items() if value is not None
            }
        elif context.task.has_labels:
            values |= _rankings(context, mask, why)
    shares = _deferral(found, mask, at) if len(at) else (None, None)
    if few:
        why = {metric.name: f"fewer than {FEWEST} inputs" for metric in METRICS if metric.name not in values}
    return Group(
        name,
        count,
        few,
        tuple(Estimate.of(values.get(metric.name)) for metric in METRICS),
        *shares,
        differences,
        why=tuple(why.get(metric.name) for metric in METRICS),
        **_rates(context, mask),
    )


def _rates(context: Context, mask: Tensor) -> dict[str, Any]:
    """Prevalence of the positive class, sensitivity and specificity, where each input has one of two classes."""
    if context.two_names is None:
        return {}
    truth, answers = (
        t.reshape(-1).cpu().long()[mask] == context.positive
        for t in (context.need_targets("test"), context.prediction("test").labels)
    )
    positives, negatives = int(truth.sum()), int((~truth).sum())
    return {
        "positives": positives,
        "prevalence": Estimate.of(share_of("prevalence", positives, len(truth))) if len(truth) else None,
        "sensitivity": _rate("sensitivity", answers[truth]) if positives >= FEWEST_RANKED else None,
        "specificity": _rate("specificity", ~answers[~truth]) if negatives >= FEWEST_RANKED else None,
    }


def _rate(name: str, right: Tensor) -> Estimate | None:
    return Estimate.of(share_of(name, int(right.sum()), len(right)))


def _without_interval(value: Measured, quantity: Quantity) -> Measured:
    return value if quantity.share else Measured(value, math.nan, math.nan, value.level, value.count, name=value.name)


def _rankings(context: Context, mask: Tensor, why: dict[str, str]) -> dict[str, Measured | None]:
    """The calibration error, and AUROCs where there are enough of both kinds; ``why`` takes the reasons where not."""
    prediction, targets, common = context.prediction("test"), context.need_targets("test"), {"seed": context.seed}
    found: dict[str, Measured | None] = {CALIBRATED: ece(prediction, targets, mask=mask, **common)}  # type: ignore[arg-type]
    ranked = ranked_errors(context.task, prediction, targets)
    mine = mask[ranked.owner]
    if lacking := _lacking(ranked.wrong[mine], "wrong answer", "right answer"):
        why["error_auroc"] = lacking
    else:
        owner, uncertainty = ranked.owner[mine], ranked.uncertainty[mine]
        found["error_auroc"] = auroc(uncertainty, ranked.wrong[mine], groups=owner, seed=context.seed)
    if isinstance(context.task, Classes):
        return found
    names = ("positive", "negative") if context.positive else ("negative", "positive")
    if lacking := _lacking(targets[mask] == 1, *names):
        why[RANKED] = lacking
    else:
        found |= evaluate(prediction, targets, metrics=[RANKED], mask=mask, **common)  # type: ignore[arg-type]
    return found


def _lacking(which: Tensor, one: str, other: str) -> str | None:
    """Which of two kinds has too few elements for a ranking, and how many: "2 positives"."""
    ones = int(which.sum())
    count, name = min((ones, one), (which.numel() - ones, other))
    return f"{count} {name}{'' if count == 1 else 's'}" if count < FEWEST_RANKED else None


def _deferral(found: Scored, mask: Tensor, at: Tensor) -> tuple[Estimate | None, Estimate | None]:
    """Share deferred, and the error of what is answered."""
    if found.deferred is None or found.error is None:
        return None, None
    gone, left = found.deferred[at], at[~found.deferred[at]]
    if found.by_answer:
        share: Measured | None = Quantity(gone.double(), share=True).over(
            "deferred", torch.arange(len(at)), found.elements.subset(at)
        )
    else:
        owners = found.owner[at].unique()
        share = share_of("deferred", int(found.by_input(found.deferred, len(mask))[owners].sum()), len(owners))
    error = found.error.over("error", left, found.elements) if len(left) else None
    if error is not None and found.answered is not None and bool(mask.all()):
        error = found.answered  # of all inputs, as in the section on deferral
    if error is not None and len(found.owner[left].unique()) < FEWEST:
        error = _without_interval(error, found.error)
    return Estimate.of(share), Estimate.of(error)


# Comparisons


def _mirrored(masks: Sequence[Sequence[Tensor]]) -> set[int]:
    """The larger of two groups, whose differences are those of the other with the opposite sign."""
    found, place = set(), 0
    for row in masks:
        if len(row) == 2:
            found.add(place + int(row[1].sum() >= row[0].sum()))
        place += len(row)
    return found


def compare(
    found: Scored, masks: Sequence[Tensor], seed: int, without: Container[int] = ()
) -> list[tuple[GroupDifference, ...]]:
    """Every group with the rest; nothing for groups that are too small, or whose rest is, and for those ``without``."""
    values = torch.stack([found.by_input(one.values, len(masks[0])) for one in found.compared.values()], 1)
    known = torch.isfinite(values).all(1)
    sizes = [int((mask & known).sum()) for mask in masks]
    places = [i for i, size in enumerate(sizes) if min(size, int(known.sum()) - size) >= FEWEST and i not in without]
    none: list[tuple[GroupDifference, ...]] = [() for _ in masks]
    if not places:
        return none
    members = torch.stack([masks[i][known] for i in places], 1)
    apart = group_differences(values[known], members, level=LEVEL, seed=seed)
    for row, i in enumerate(places):
        none[i] = tuple(
            _difference(apart, row, q, name, one, sizes[i]) for q, (name, one) in enumerate(found.compared.items())
        )
    return none


def _difference(apart: Differences, row: int, q: int, name: str, quantity: Quantity, count: int) -> GroupDifference:
    value, reach, p = (float(part[row, q]) for part in (apart.value, apart.reach, apart.p))
    share = quantity.share or "accuracy" in name
    return GroupDifference(
        name, Estimate(value, value - reach, value + reach, LEVEL, count), p, share, 1 / (PERMUTATIONS + 1)
    )


# Words


def _words(found: Groups) -> Iterator[str]:
    every = [(one, group) for one in found.groupings for group in one.groups]
    hits = [(place, -abs(d.difference.value or 0.0), one, group, d)
            for one, group in every for place, d in enumerate(group.differences) if d.significant]  # fmt: skip
    if hits:
        count = f"{len(hits):,} of {found.comparisons:,} comparisons of a group with the rest"
        yield f"{count} {'is' if len(hits) == 1 else 'are'} significant after correction for their number."
        for _, _, one, group, d in sorted(hits, key=lambda hit: hit[:2])[:NAMED]:
            yield _difference_words(one, group, d)
        if len(hits) > NAMED:
            yield f"The other {len(hits) - NAMED:,} {'is' if len(hits) == NAMED + 1 else 'are'} in the table."
        yield from (
            f"{words} Error rates and losses differ between such groups even if the network recognises both classes "
            "equally well in each: compare sensitivity and specificity."
            for words in prevalence_words(found)
        )
    elif found.comparisons:
        yield (
            f"None of {found.comparisons:,} comparisons of a group with the rest is significant after correction for "
            "their number. That does not show that the groups are alike."
        )
    compared = [(one, group) for one, group in every if group.differences]
    if compared and not hits:
        one, group = min(compared, key=lambda pair: pair[1].inputs)
        first = group.differences[0]
        reach = (first.difference.high or 0.0) - (first.difference.value or 0.0)
        size = f"{points(reach)} percentage points" if first.is_share else number(reach)
        yield (
            f"In the smallest group that was compared, {_called(one, group)}, a difference in {first.quantity} below "
            f"about {size} would not be noticed."
        )
    few = [(one, group) for one, group in every if group.few]
    for one, group in few[:NAMED]:
        yield f"{_called(one, group)} is too small to compare (fewer than {FEWEST} inputs)."
    if len(few) > NAMED:
        yield f"{len(few) - NAMED:,} more groups are too small to compare."


def prevalence_words(found: Groups, grouping: str | None = None) -> Iterator[str]:
    """Where significant differences can come from another prevalence alone: how far that differs."""
    for one in found.groupings if found.positive is not None else ():
        every = [d for group in one.groups for d in group.differences]
        different = any(d.significant and d.quantity in OF_PREVALENCE for d in every)
        known = {group.name: group.prevalence for group in one.groups if group.prevalence and not group.few}
        if not different or len(known) < 2 or grouping not in (None, one.name):
            continue
        least, most = (pick(known, key=lambda name: known[name].value or 0.0) for pick in (min, max))
        low, high = known[least], known[most]
        if low.high is not None and high.low is not None and low.high < high.low:
            yield (
                f"The prevalence of `{found.positive}` is {percent(low.value, 1)} in `{one.name}: {least}` and "
                f"{percent(high.value, 1)} in `{one.name}: {most}`."
            )


def _called(one: Grouping, group: Group) -> str:
    return f"`{one.name}: {group.name}` (n = {group.inputs:,})"


def _difference_words(one: Grouping, group: Group, d: GroupDifference) -> str:
    """For a person: how much higher or lower than in the rest."""
    low, value, high = d.difference.low or 0.0, d.difference.value or 0.0, d.difference.high or 0.0
    sign = 1 if value >= 0 else -1
    ends = sorted((sign * low, sign * high))
    if d.is_share:
        shown, interval = f"{points(abs(value))} percentage points", points_range(*ends)
    else:
        unit = NATS if d.quantity == LOG_LOSS else ""
        shown, interval = with_interval(abs(value), ends[0], ends[1], unit).split(", 95% interval ")
    more = f"(simultaneous 95% interval {interval}, corrected {d.p_words})"
    return f"{_called(one, group)}: {d.quantity} {shown} {'higher' if sign > 0 else 'lower'} than in the rest {more}."
