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
from whence.report.record.attributions import AttributedInput, Attributions, Part
from whence.report.record.common import Grid, SetName
from whence.report.record.sections import Feature
from whence.where.attribution import Attribution, chosen

STEPS = 10  # on the line from the baseline
OUTPUTS = 100  # beyond which a gradient takes too long
CHECKED = 4  # inputs of the check by randomised weights
ABOUT_THE_NETWORK = 0.5  # rank correlation below which attributions depend on what was learned
MISSED = 0.1  # of the difference in uncertainty


def attributed(context: Context) -> Attributions:
    """Integrated gradients of the total uncertainty, from the mean test input or the embedding 0."""
    _refuse(context)
    found, correlation = [], None
    for name in ("test", "ood"):
        index = [place for which, place in context.most_uncertain if which == name]
        if not index:
            continue
        some = context.need(name).at(torch.tensor(index)).inputs
        values = _attribution(context, some)
        correlation = _randomised(context, some) if correlation is None else correlation
        found += [_entry(context, name, one, values, place) for place, one in enumerate(index)]  # type: ignore[arg-type]
    shown = tuple(one for one in found if one is not None)
    if not shown:
        raise NotDefined("none of the inputs shown is an image, a row of a table or a text.")
    kind = "pixels" if shown[0].map else "columns" if shown[0].columns else "tokens"
    baseline = "an embedding of zeros" if kind == "tokens" else "the mean test input"
    return Attributions(baseline, STEPS, correlation, shown, tuple(_words(shown, kind, baseline, correlation)))


def _refuse(context: Context) -> None:
    shape = context.posterior.output_shape or ()
    if not context.most_uncertain:
        raise NotDefined("no inputs are shown.")
    if len(shape) > 1:
        raise NotDefined("every pixel or token has an uncertainty of its own, which the section on inputs shows.")
    if shape and shape[0] > OUTPUTS:
        raise NotDefined(f"gradients for {shape[0]:,} outputs take too long; posterior.attribute(x) computes them.")


def _attribution(context: Context, some: Inputs) -> Attribution:
    looked_at = chosen(some, None)
    baseline = chosen(context.profiled["test" if context.has("test") else "ood"].inputs, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # what is missed is in the words
        return context.posterior.attribute(
            some,
            of="total",
            steps=STEPS,
            baseline=baseline.double().mean(0) if looked_at.is_floating_point() else None,
            **context.by_draws(),
        )


def _randomised(context: Context, some: Inputs) -> float | None:
    """The rank correlation of a few attributions with those of randomised weights; None if it is not defined."""
    try:
        found = _attribution(context, take(some, slice(0, min(CHECKED, size_of(some)))))
        return float(found.sanity_check(context.seed, cascade=False)["correlation"][-1])
    except NotDefined:
        return None


def _entry(context: Context, name: SetName, index: int, found: Attribution, place: int) -> AttributedInput | None:
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
    return AttributedInput(name, index, at_input, at_baseline, float(values.sum()), **parts)


def _map(values: Tensor) -> Grid:
    """Means of neighbours, so that a picture has at most SIDE × SIDE parts."""
    scale = min(1.0, SIDE / max(values.shape))
    size = (max(1, round(values.shape[0] * scale)), max(1, round(values.shape[1] * scale)))
    small = torch.nn.functional.adaptive_avg_pool2d(values[None], size)[0]
    return tuple(map(tuple, small.tolist()))


def _columns(row: tuple[Feature, ...], values: Tensor) -> tuple[Part, ...]:
    parts = [Part(feature.name, part) for feature, part in zip(row, values.tolist(), strict=False)]
    return tuple(sorted(parts, key=lambda one: -abs(one.value or 0.0)))[:FEATURES]


def _words(shown: tuple[AttributedInput, ...], kind: str, baseline: str, correlation: float | None) -> Iterator[str]:
    yield (
        f"Which {kind} the uncertainty comes from: what each of them adds (+) or takes away (−) on the way from "
        f"{baseline} to the input (integrated gradients)."
    )
    whole = sum(abs((one.uncertainty or 0.0) - (one.at_baseline or 0.0)) for one in shown)
    missed = sum(abs((one.uncertainty or 0.0) - (one.at_baseline or 0.0) - (one.sum or 0.0)) for one in shown)
    if whole and missed > MISSED * whole:
        yield (
            "The parts of an input do not add up exactly to its difference in uncertainty from the start of the way: "
            f"their sum is {percent(missed / whole, 0)} too large or too small on average, because the uncertainty "
            "jumps where units of the network switch on or off."
        )
    if correlation is not None:
        below = correlation < ABOUT_THE_NETWORK
        yield (
            "Check: for a copy of the network with shuffled weights the parts have a rank correlation of "
            f"{minus(f'{correlation:.2f}')} with those shown, {'below' if below else 'not below'} {ABOUT_THE_NETWORK}, "
            f"so they {'depend on' if below else 'may show the inputs rather than'} what the network has learned."
        )
