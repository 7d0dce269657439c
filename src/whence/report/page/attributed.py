"""What parts of the inputs shown add to their uncertainty: pictures, rows of a table, colours of tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from whence.numerals import decimals, fixed
from whence.report.page import theme
from whence.report.page.dense import Picture, picture_of
from whence.report.record.attributions import MUCH, AttributedInput
from whence.report.record.sections import Feature

STEPS = 101  # of the colour scale
HIGH = 0.99  # quantile of |parts| at the ends of the scale of an image


class Column(NamedTuple):
    """A column of a row: its value, and its part of the uncertainty with a colour."""

    name: str
    value: float | None
    part: float | None
    style: str
    places: int = 2  # decimals of the parts, the same for all columns of an input


def attribution_picture(found: AttributedInput) -> Picture | None:
    """The parts of the pixels of an image; the scale goes from −high to high."""
    if found.map is None or not found.is_shown:
        return None
    values = np.array([[v or 0.0 for v in line] for line in found.map])
    high = float(np.quantile(np.abs(values), HIGH)) or float(np.abs(values).max()) or 1.0
    table = np.array([_rgb(one) for one in theme.scale(True, STEPS)], dtype=np.uint8)
    places = ((np.clip(values / high, -1, 1) + 1) / 2 * (STEPS - 1)).round().astype(int)
    return Picture("added to the uncertainty", picture_of(table[places]), "Map of what pixels add", high)


def attributed_columns(row: tuple[Feature, ...], found: AttributedInput | None) -> list[Column]:
    """The columns of a row, those with the largest parts first; as they are without parts."""
    if found is None or found.columns is None or not found.is_shown:
        return [Column(one.name, one.value, None, "") for one in row]
    values, high = dict(row), max((abs(one.value or 0.0) for one in found.columns), default=0.0) or 1.0
    places = decimals(high)
    return [
        Column(one.name, values.get(one.name), one.value, _style((one.value or 0.0) / high), places)
        for one in found.columns
    ]


def attribution_sum(found: AttributedInput | None, unit: str | None) -> str:
    """The start, the parts and the rest, which add up to the uncertainty of the input."""
    if found is None or found.rest is None or found.uncertainty is None or found.at_baseline is None:
        return ""
    rise = abs(found.uncertainty - found.at_baseline)
    places = decimals(min(rise, abs(found.uncertainty)) or 1.0)
    start, parts, rest, whole = (
        fixed(value, places, signed)
        for value, signed in (
            (found.at_baseline, False), (found.sum, True), (found.rest, True), (found.uncertainty, False)
        )
    )  # fmt: skip
    if not found.is_shown:
        return f"Parts left out: of a rise by {fixed(rise, places)}, they miss {fixed(abs(found.rest), places)}."
    about = "Approximate: start" if found.missed is not None and abs(found.missed) > MUCH else "Start"
    return f"{about} {start}, parts {parts}, rest {rest}, together {whole}{f' {unit}' if unit else ''}."


def token_styles(found: AttributedInput | None, count: int) -> list[str]:
    """Background and ink of each token by its part; empty without parts."""
    if found is None or found.tokens is None or not found.is_shown:
        return [""] * count
    high = max((abs(part or 0.0) for part in found.tokens), default=0.0) or 1.0
    return [_style((part or 0.0) / high) for part in found.tokens] + [""] * (count - len(found.tokens))


def _style(part: float) -> str:
    colour, ink = theme.cells([part], 1.0)[0]
    return f"background:{colour};color:{ink}"


def _rgb(colour: str) -> tuple[Any, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
