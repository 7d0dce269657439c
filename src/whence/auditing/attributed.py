"""Which pixels, columns or tokens the uncertainty of the inputs shown comes from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import Context
from whence.auditing.data import token_ids
from whence.auditing.dense import SIDE, TOKENS
from whence.auditing.inputs import FEATURES, features, pixels
from whence.engine.batches import Inputs, size_of, take
from whence.errors import NotDefined, Notice
from whence.numerals import minus, percent
from whence.report.formatting import squared
from whence.report.record.attributions import MUCH, TOO_MUCH, AttributedInput, Attributions, Part
from whence.report.record.common import Grid, SetName
from whence.report.record.sections import Feature
from whence.where.attribution import TINY, Attribution, chosen

STEPS = (10, 40, 160)  # on the line from the baseline: more where the parts do not add up
CLOSE = 0.05  # of the rise of the uncertainty, that parts may miss without more steps
JUMP = 0.25  # relative change of what they miss, below which more steps do not help: the uncertainty jumps
OUTPUTS = 100  # beyond which a gradient takes too long
CHECKED = 4  # inputs of the check by randomised weights
SHUFFLES = 5  # of its weights
VARIANCE = "variance"
SQUARED = " The variance is the square of the predicted standard deviation."
HIGH, NEAR = 0.5, 0.4  # mean rank correlations from which parts may show the inputs alone; the check is weak


def attributed(context: Context) -> Attributions:
    """Integrated gradients of the total uncertainty, from the mean test input or the embedding 0."""
    _refuse(context)
    found: list[AttributedInput | None] = []
    checked: tuple[float, ...] = ()
    for name in ("test", "ood"):
        index = [place for which, place in context.most_uncertain if which == name]
        if not index:
            continue
        some = context.need(name).at(torch.tensor(index)).inputs
        values = _attributions(context, some)
        checked = checked or _shuffled(context, some)
        found += [_entry(context, name, one, *values[place]) for place, one in enumerate(index)]  # type: ignore[arg-type]
    shown = tuple(one for one in found if one is not None)
    if not shown:
        raise NotDefined("none of the inputs shown is an image, a row of a table or a text.")
    kind = next(kind for kind in ("pixels", "columns", "tokens") if _is(shown[0], kind))
    baseline = "an embedding of zeros" if kind == "tokens" else "the mean test input"
    measure, unit = (
        ("entropy", "nats")
        if context.task.has_labels
        else (VARIANCE, context.outputs.unit and squared(context.outputs.unit))
    )
    return Attributions(
        baseline,
        max(one.steps or 0 for one in shown),
        sum(checked) / len(checked) if checked else None,
        shown,
        tuple(_words(shown, kind, baseline, measure, checked)),
        measure,
        unit,
        checked or None,
    )


def _is(one: AttributedInput, kind: str) -> bool:
    return {"pixels": one.map, "columns": one.columns, "tokens": one.tokens}[kind] is not None


def _refuse(context: Context) -> None:
    shape = context.posterior.output_shape or ()
    if not context.most_uncertain:
        raise NotDefined("no inputs are shown.")
    if len(shape) > 1:
        raise NotDefined("every pixel or token has an uncertainty of its own, which the section on inputs shows.")
    if shape and shape[0] > OUTPUTS:
        raise NotDefined(f"gradients for {shape[0]:,} outputs take too long; posterior.attribute(x) computes them.")


def _attributions(context: Context, some: Inputs) -> list[tuple[Attribution, int, int]]:
    """Of each input an attribution, its place there and the steps: more of them while the parts do not add up."""
    first = _attribution(context, some, STEPS[0])
    chosen = [(first, place, STEPS[0]) for place in range(size_of(some))]
    left, missed = list(range(len(chosen))), _missed(first)
    for steps in STEPS[1:]:
        left = [i for i in left if abs(missed[i]) > CLOSE]
        if not left:
            break
        finer = _attribution(context, take(some, torch.tensor(left)), steps)
        now = dict(zip(left, _missed(finer), strict=True))
        for place, i in enumerate(left):
            chosen[i] = (finer, place, steps)
        left = [i for i in left if abs(now[i] - missed[i]) > JUMP * abs(missed[i])]
        missed = [now.get(i, one) for i, one in enumerate(missed)]
    return chosen


def _missed(found: Attribution) -> list[float]:
    """What the parts of each input are too large by, relative to the rise of its uncertainty."""
    assert found.at_baseline is not None
    rise = (found.uncertainty - found.at_baseline).double().abs().clamp(min=TINY)
    missed: list[float] = (found.residual.double() / rise).tolist()
    return missed


def _attribution(context: Context, some: Inputs, steps: int = STEPS[0]) -> Attribution:
    looked_at = chosen(some, None)
    baseline = chosen(context.profiled["test" if context.has("test") else "ood"].inputs, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # what is missed is in the words
        return context.posterior.attribute(
            some,
            of="total",
            steps=steps,
            baseline=baseline.double().mean(0) if looked_at.is_floating_point() else None,
            **context.by_draws(),
        )


def _shuffled(context: Context, some: Inputs) -> tuple[float, ...]:
    """Rank correlations of a few attributions with those of shuffled weights; empty if they are not defined."""
    try:
        found = _attribution(context, take(some, slice(0, min(CHECKED, size_of(some)))))
        seeds = range(context.seed, context.seed + SHUFFLES)
        return tuple(float(found.sanity_check(seed, cascade=False)["correlation"][-1]) for seed in seeds)
    except NotDefined:
        return ()


def _entry(
    context: Context, name: SetName, index: int, found: Attribution, place: int, steps: int
) -> AttributedInput | None:
    inputs, values = context.need(name).inputs, found.values[place].double().cpu()
    parts: dict[str, Any] = {}
    if pixels(inputs, index) is not None:
        parts["map"] = _map(found.map[place].double().cpu() if values.dim() > 2 else values)
    elif (row := features(inputs, index, context.features)) is not None:
        parts["columns"] = _columns(row, values)
    elif token_ids(inputs) is not None and values.dim() == 1:
        counted = context.need(name).counted_positions
        parts["tokens"] = tuple((values if counted is None else values[counted[index].cpu()])[:TOKENS].tolist())
    if not parts:
        return None
    assert found.at_baseline is not None
    at_input, at_baseline = (float(u[place]) for u in (found.uncertainty, found.at_baseline))
    return AttributedInput(name, index, at_input, at_baseline, float(values.sum()), **parts, steps=steps)


def _map(values: Tensor) -> Grid:
    """Means of neighbours, so that a picture has at most SIDE × SIDE parts."""
    scale = min(1.0, SIDE / max(values.shape))
    size = (max(1, round(values.shape[0] * scale)), max(1, round(values.shape[1] * scale)))
    small = torch.nn.functional.adaptive_avg_pool2d(values[None], size)[0]
    return tuple(map(tuple, small.tolist()))


def _columns(row: tuple[Feature, ...], values: Tensor) -> tuple[Part, ...]:
    parts = [Part(feature.name, part) for feature, part in zip(row, values.tolist(), strict=False)]
    return tuple(sorted(parts, key=lambda one: -abs(one.value or 0.0)))[:FEATURES]


def _words(
    shown: tuple[AttributedInput, ...], kind: str, baseline: str, measure: str, checked: tuple[float, ...]
) -> Iterator[str]:
    values = " Values are those given to the network." if any(one.columns for one in shown) else ""
    yield (
        f"Which {kind} the uncertainty comes from: what each of them adds (+) to the {measure} or takes away (−) on "
        f"the way from {baseline} to the input (integrated gradients).{SQUARED if measure is VARIANCE else ''}{values}"
    )
    missed = [abs(one.missed) for one in shown if one.missed is not None]
    if missed:
        yield (
            f"The {measure} at the start, the parts of an input and a rest add up to the {measure} of the input. The "
            f"rest is {percent(sum(missed) / len(missed))} of the rise on average and {percent(max(missed))} at most; "
            f"it stands below each input. It remains where the {measure} jumps on the way, because a unit of the "
            f"network switches on or off. Where it is more than {percent(MUCH)}, the parts are only approximate, and "
            f"where it is more than {percent(TOO_MUCH)}, they are left out."
        )
    if checked:
        yield _check(checked)


def _check(checked: tuple[float, ...]) -> str:
    """What the correlations with attributions of shuffled weights show."""
    low, high = (minus(f"{one:.2f}") for one in (min(checked), max(checked)))
    mean = sum(checked) / len(checked)
    start = (
        f"Check: the parts were computed again for {len(checked)} copies of the network with shuffled weights. Their "
        f"rank correlation with those shown is {minus(f'{mean:.2f}')} on average, {low} to {high} (0: unrelated, 1: in "
        "the same order)."
    )
    if mean >= HIGH:
        return f"{start} That is high: the parts may show the inputs rather than what the network has learned."
    if mean >= NEAR or max(checked) >= HIGH:
        return f"{start} This is only weak evidence that the parts depend on what the network has learned."
    return f"{start} The check found no sign that the parts ignore what the network has learned."
