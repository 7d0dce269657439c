"""Uncertainties as they are shown: standard deviations where the record has variances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from whence.numerals import alike, number
from whence.report.record.audit import Deferral, Uncertainties
from whence.report.record.common import Numbers, PlainAndBayesian
from whence.report.record.comparison import UncertaintyOfMethods

VARIANCE = "variance"
LEAST = 0.0001  # nats that are written out
DENSE = ("pixels", "tokens", "positions")


@dataclass(frozen=True)
class Shown:
    """Values of both sets, in the unit of ``label``."""

    label: str
    test: Any
    ood: Any
    log: bool  # whether they span so many orders of magnitude that an axis has to be logarithmic


def shown(found: Uncertainties | UncertaintyOfMethods, unit: str | None, elements: str | None) -> Shown:
    label = label_of(found.name, found.label, unit, elements)
    if found.name != VARIANCE:
        return Shown(label, found.test, found.ood, False)
    inside, outside = (_roots(values) for values in (found.test, found.ood))
    return Shown(label, inside, outside, _spans([inside, outside]))


def label_of(measure: str, label: str, unit: str | None, elements: str | None) -> str:
    """The label of the record, of standard deviations if its values are variances."""
    if measure != VARIANCE:
        return label
    of = f", root mean square over the {elements} of an input" if elements in DENSE else ""
    return f"predicted standard deviation{of}{f' ({unit})' if unit else ''}"


def threshold_label(found: Deferral, unit: str | None, elements: str | None) -> str:
    return label_of(found.measure, found.label, unit, elements)


def threshold(value: float | None, root: bool, digits: int = 4, rooted: bool = False) -> str:
    """An uncertainty, or the root of a variance; ``rooted``: the value is that root already."""
    if value is None:
        return number(None)
    shown = math.sqrt(max(value, 0.0)) if root and not rooted else value
    small = 0 < abs(shown) < LEAST and not root  # a part may be below 0 by rounding
    return f"<{LEAST}" if small else number(shown, digits)


def quartiles(values: Numbers, root: bool) -> list[str]:
    """The quartiles of sorted values, with the same decimals; smaller ones by themselves."""
    some = [values[(len(values) * part) // 4] for part in (1, 2, 3)]
    shown = zip(some, alike(some), strict=True)
    return [text if not value or text.strip("−0.") else threshold(value, root, 2, True) for value, text in shown]


def _roots(values: Any) -> Any:
    if isinstance(values, PlainAndBayesian):
        return PlainAndBayesian(_root(values.plain), _root(values.bayesian))
    return None if values is None else tuple(map(_root, values))


def _root(values: Numbers) -> Numbers:
    return tuple(None if v is None else math.sqrt(max(v, 0.0)) for v in values)


def _spans(sets: list[Any], times: float = 20.0) -> bool:
    """Whether the largest value is more than ``times`` the smallest."""
    parts = [(s.plain, s.bayesian) if isinstance(s, PlainAndBayesian) else s for s in sets if s is not None]
    every = [v for part in parts for values in part for v in values if v is not None and v > 0]
    return bool(every) and max(every) > times * min(every)
