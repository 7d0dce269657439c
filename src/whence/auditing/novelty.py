"""Novelty by layer, in and out of distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

from whence.auditing.context import LABELS, Context
from whence.auditing.detection import detection, flag_level
from whence.errors import NotDefined
from whence.metrics import Estimate as Measured
from whence.metrics.proportions import share_of
from whence.numerals import p_value, percent
from whence.report.record.sections import Histogram, LayerQuantiles, Novelty, NoveltyOfSet
from whence.where.novelty import Novelty as Found
from whence.where.novelty import novelty_given
from whence.where.p_values import Combine, conformal, p_value_among, reference_scores
from whence.where.with_entropy import plain_entropy

UNUSUAL = 0.05  # p-value of a layer in which an input is unusual
NAMED = 3  # layers in a sentence
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 20


def novelty(context: Context) -> Novelty:
    """Quantiles of the unexplained part, p-values, and AUROCs if there is out-of-distribution data."""
    context.posterior.as_laplace("novelty")
    reference = context.reference
    if reference is None:
        raise NotDefined("no validation data were given, relative to which novelty is measured.")
    context.need("test")
    level = flag_level(reference.size)
    sets = {name: found for name in ("test", "ood") if (found := _found(context, name)) is not None}
    layers = _quantiles(reference.names, reference.unexplained, None)
    described = [NoveltyOfSet("reference", "Validation data", reference.size, None, layers, None)]
    detected = detection(context, sets, level)
    for name, found in sets.items():
        described.append(replace(_set(name, found, level), flagged_combined=detected.flagged.get(name)))  # type: ignore[arg-type]
    words = tuple(_words(sets, level, reference.size, detected.flagged.get("ood")))
    return Novelty(reference.size, reference.names, level, tuple(described), detected.rows, words, detected.choice)


def _found(context: Context, name: str) -> Found | None:
    """The novelty of the profiled inputs of a set, with the entropy of the plain network."""
    if not context.has(name):
        return None
    seen, reference = context.examined(name), context.reference
    if seen.unexplained is None or reference is None:
        return None
    entropy = plain_entropy(context.posterior.likelihood, seen.own.outputs)
    return novelty_given(reference, seen.unexplained, Combine.GAUSS, entropy)


def _quantiles(names: tuple[str, ...], unexplained: Tensor, flagged: Tensor | None) -> tuple[LayerQuantiles, ...]:
    columns = torch.quantile(unexplained, torch.tensor(QUANTILES, dtype=torch.float64), dim=0).tolist()  # [5, B]
    parts = [None] * len(names) if flagged is None else flagged.tolist()
    return tuple(map(LayerQuantiles, names, *columns, parts))


def _set(key: Literal["test", "ood"], found: Found, level: float) -> NoveltyOfSet:
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)
    counts = torch.histogram(found.p_value.double().cpu().clamp(0, 1), edges).hist
    layers = _quantiles(found.names, found.unexplained, (found.p_values <= level).double().mean(0))
    band = _chance(len(found), found.reference.size) if key == "test" else (None, None)
    histogram = Histogram(tuple(edges.tolist()), tuple(int(count) for count in counts), *band)
    both = None if found.with_entropy is None else float(found.with_entropy.flag(level).double().mean())
    return NoveltyOfSet(key, LABELS[key], len(found), _flagged(found, level), layers, histogram, both)


def _flagged(found: Found, level: float) -> float:
    return float((found.p_value <= level).double().mean())


def _chance(inputs: int, reference: int) -> tuple[float, float]:
    """The band that contains all bars of inputs like the reference with 95% probability, by the normal distribution.

    P-values of different inputs depend on each other through the reference, which adds to the variance of a bar.
    """
    part = 1 / BINS
    reach = NormalDist().inv_cdf(1 - 0.025 / BINS) * math.sqrt(part * (1 - part) * (1 / inputs + 1 / reference))
    return max(0.0, part - reach), part + reach


def _words(sets: dict[str, Found], level: float, size: int, combined: float | None) -> Iterator[str]:
    """``combined`` is the share of out-of-distribution inputs that all detectors together flag.

    P-values from ``size`` reference inputs are multiples of 1 / (size + 1).
    """
    inside, expected = sets["test"], math.floor(level * (size + 1) + 1e-9) / (size + 1)
    flagged = _share(inside.p_value <= level)
    yield (
        f"At p ≤ {p_value(level)}, novelty over all layers flags {percent(flagged)} of {len(inside):,} test inputs "
        f"(95% interval {percent(flagged.low)} to {percent(flagged.high)}); {percent(expected)} would be flagged if "
        f"they were like the {size:,} reference inputs."
    )
    if 2 / (size + 1) > level:
        yield (
            f"With {size:,} reference inputs the smallest possible p-value is {p_value(1 / (size + 1))}, so an input "
            "is flagged only if it is more unusual than all of them."
        )
    yield from _false_alarms(inside, level, expected)
    if "ood" in sets:
        found = sets["ood"]
        also = "" if combined is None else f"; the combination of detectors flags {percent(combined)}"
        own = percent(_flagged(found, level))
        yield f"Of {len(found):,} out-of-distribution inputs novelty over all layers flags {own}{also}."
        yield from _less_than_a_layer(found, level)
        yield from _most_novel_layer(found, found.p_value <= level)


def _share(which: Tensor, level: float = 0.95) -> Measured:
    found = share_of("flagged", int(which.sum()), len(which), level)
    assert found is not None
    return found


def _false_alarms(inside: Found, level: float, expected: float) -> Iterator[str]:
    """Layers that flag significantly more test inputs than chance does; the intervals hold for all layers together."""
    together = 1 - 0.05 / len(inside.names)
    found = [_share(column <= level, together) for column in inside.p_values.T]
    above = [(name, one) for name, one in zip(inside.names, found, strict=True) if one.low > expected]
    if not above:
        return
    above.sort(key=lambda pair: -float(pair[1]))
    named = ", ".join(
        f"`{name}` ({percent(one)}, interval {percent(one.low)} to {percent(one.high)})" for name, one in above[:NAMED]
    )
    more = f" and {len(above) - NAMED} more layers" if len(above) > NAMED else ""
    layers = f"Layers {named}{more} flag" if len(above) > 1 else f"Layer {named} flags"
    yield (
        f"{layers} more test inputs than the {percent(expected)} expected of inputs like the reference (intervals that "
        f"hold for all {len(found)} layers together, for these reference inputs). Either the test inputs differ from "
        "the reference there, or the reference inputs are too few to show how extreme ordinary inputs can be; then "
        "some of the other inputs that are flagged are false alarms too."
    )


def _less_than_a_layer(found: Found, level: float) -> Iterator[str]:
    """Why novelty over all layers may flag less than one layer does."""
    alone = (found.p_values <= level).double().mean(0)
    most, whole, layers = int(alone.argmax()), _flagged(found, level), len(found.names)
    if layers < 2 or float(alone[most]) <= whole or _share(found.p_value <= level).high >= float(alone[most]):
        return
    known = found.reference.unexplained
    own, _ = reference_scores(known, known[:0], Combine.GAUSS)
    highest = _in_several(conformal(known, known)[p_value_among(own, own) <= level])
    these = _in_several(found.p_values[found.p_values[:, most] <= level])
    start = (
        f"Layer `{found.names[most]}` alone flags more ({percent(float(alone[most]))}): over all {layers} layers the "
        "threshold is stricter, so that no more ordinary inputs are flagged than by one layer."
    )
    if highest <= these:
        yield start
        return
    yield (
        f"{start} Of the most unusual reference inputs, {percent(highest, 0)} are unusual (p ≤ {UNUSUAL}) in at least "
        f"two layers; of the out-of-distribution inputs that layer `{found.names[most]}` flags, {percent(these, 0)} "
        "are. An input that is unusual in one layer only must be further out there to be flagged over all layers."
    )


def _in_several(p_values: Tensor) -> float:
    """The share of inputs that are unusual in two layers or more."""
    return float(((p_values <= UNUSUAL).sum(1) >= 2).double().mean()) if len(p_values) else 0.0


def _most_novel_layer(found: Found, flagged: Tensor) -> Iterator[str]:
    """In which layers flagged inputs differ most."""
    by_layer = found.p_values[flagged]
    if not len(by_layer):
        return
    single = (by_layer == by_layer.amin(1, keepdim=True)).sum(1) == 1
    start = f"Of the {len(by_layer):,} out-of-distribution inputs that novelty over all layers flags, "
    tied = len(by_layer) - int(single.sum())
    equally = "differ equally in several layers, which have the smallest p-value that the reference inputs allow"
    if tied == len(by_layer):
        yield f"{start}all {equally}."
        return
    at, counts = by_layer[single].argmin(1).unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True).tolist()
    parts = [f"{int(counts[i]):,} {_differs(int(counts[i]))} most in layer `{found.names[int(at[i])]}`" for i in order]
    parts = parts[:1] + [part.replace(" differs most", "").replace(" differ most", "") for part in parts[1:NAMED]]
    others = int(counts.sum()) - sum(int(counts[i]) for i in order[:NAMED])
    parts += [f"{others:,} in other layers"] if others else []
    parts += [f"{tied:,} {equally.replace('differ', _differs(tied), 1)}"] if tied else []
    yield f"{start}{'; '.join(parts)}."


def _differs(count: int) -> str:
    return "differs" if count == 1 else "differ"
