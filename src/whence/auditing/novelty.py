"""Novelty by layer, in and out of distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from whence.auditing.context import LABELS, Context
from whence.auditing.detection import detection, flag_level
from whence.errors import NotDefined
from whence.metrics.proportions import share_of
from whence.numerals import p_value, percent
from whence.report.record.sections import Histogram, LayerQuantiles, Novelty, NoveltyOfSet
from whence.where.novelty import Novelty as Found
from whence.where.novelty import novelty_given
from whence.where.p_values import Combine
from whence.where.with_entropy import plain_entropy

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
    histogram = Histogram(tuple(edges.tolist()), tuple(int(count) for count in counts))
    both = None if found.with_entropy is None else float(found.with_entropy.flag(level).double().mean())
    return NoveltyOfSet(key, LABELS[key], len(found), _flagged(found, level), layers, histogram, both)


def _flagged(found: Found, level: float) -> float:
    return float((found.p_value <= level).double().mean())


def _words(sets: dict[str, Found], level: float, size: int, combined: float | None) -> Iterator[str]:
    """``combined`` is the share of out-of-distribution inputs that all detectors together flag.

    P-values from ``size`` reference inputs are multiples of 1 / (size + 1).
    """
    inside = sets["test"]
    flagged = share_of("flagged", int((inside.p_value <= level).sum()), len(inside))
    assert flagged is not None
    yield (
        f"At p ≤ {p_value(level)}, novelty over all layers flags {percent(flagged)} of {len(inside):,} test inputs "
        f"(95% interval {percent(flagged.low)} to {percent(flagged.high)}); "
        f"{percent(math.floor(level * (size + 1)) / (size + 1))} would be flagged if they were like the {size:,} "
        "reference inputs."
    )
    if "ood" in sets:
        found = sets["ood"]
        also = "" if combined is None else f"; the combination of detectors flags {percent(combined)}"
        yield f"Of {len(found):,} out-of-distribution inputs it flags {percent(_flagged(found, level))}{also}."
        yield from _most_novel_layer(found, found.p_value <= level)


def _most_novel_layer(found: Found, flagged: Tensor) -> Iterator[str]:
    """In which layer flagged inputs differ most, of those that differ most in one."""
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
    most = found.names[int(at[counts.argmax()])]
    also = f"; {percent(tied / len(by_layer), 0)} {equally}" if tied else ""
    yield f"{start}{percent(float(counts.max()) / len(by_layer), 0)} differ most in layer `{most}`{also}."
