"""Uncertainty maps and tokens of the inputs shown: grids as pictures, colours of tokens."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.errors import need
from whence.report.page import theme
from whence.report.record.common import Grid
from whence.report.record.dense import DenseMaps, Token
from whence.report.record.sections import ShownInput

STEPS = 101  # of a colour scale
NAMED = 8  # classes in the key of a map
LEAST = 1e-3  # of the largest uncertainty: below it, a map of its epistemic part would show rounding errors
UNKNOWN = (154, 160, 168)


@dataclass(frozen=True)
class Picture:
    """A map as PNG data with its caption, and the ends of its colour scale."""

    label: str
    source: str
    alt: str
    high: float | None = None  # the scale begins at 0
    key: tuple[tuple[str, str], ...] = ()  # colour and name of classes
    more: int = 0  # classes that are not in the key


@dataclass(frozen=True)
class Scales:
    """The largest values over all inputs shown, so that their colours can be compared."""

    total: float
    epistemic: float
    wrong: float
    token: float
    classes: tuple[int, ...]  # that are predicted anywhere

    @classmethod
    def of(cls, inputs: Iterable[ShownInput]) -> Scales:
        shown = list(inputs)
        maps = [one.maps for one in shown if one.maps is not None]
        tokens = [token.uncertainty or 0.0 for one in shown for token in one.tokens or ()]
        predicted = {int(v) for one in maps for line in one.predicted for v in line if v is not None}
        total = _largest(one.total for one in maps)
        return cls(
            total,
            max(_largest(one.epistemic for one in maps if one.epistemic is not None), LEAST * total),
            _largest(one.wrong for one in maps if one.wrong is not None),
            max(tokens, default=0.0) or 1.0,
            tuple(sorted(predicted)) if any(one.kind == "classes" for one in maps) else (),
        )


def _largest(grids: Iterable[Grid]) -> float:
    return max((v for grid in grids for line in grid for v in line if v is not None), default=0.0) or 1.0


def pictures(found: DenseMaps, scales: Scales) -> list[Picture]:
    """Predicted, total uncertainty, its epistemic part, errors."""
    made = [_predicted(found, scales)]
    name = "entropy (nats)" if found.kind == "classes" else found.measure
    made.append(_scaled("uncertainty", f"Map of the {name}", found.total, scales.total))
    if found.epistemic is not None:
        made.append(_scaled("from weights", "Map of its epistemic part", found.epistemic, scales.epistemic))
    if found.wrong is not None:
        high = 1.0 if found.kind == "classes" else scales.wrong
        label = "errors" if found.mistakes is None else f"errors: {found.mistakes:,} of {found.pixels:,}"
        made.append(_scaled(label, "Map of the errors", found.wrong, high))
    return made


def _predicted(found: DenseMaps, scales: Scales) -> Picture:
    values = _array(found.predicted)
    if found.kind == "numbers":
        low, high = (float(end(values)) for end in (np.nanmin, np.nanmax))
        picture = _png(_coloured((values - low) / ((high - low) or 1.0)))
        return Picture(f"predicted, {low:.3g} to {high:.3g}", picture, "Map of the predicted values")
    order = list(scales.classes)
    colours = theme.layer_colours(max(len(order), 2))
    table = {c: _rgb(colour) for c, colour in zip(order, colours, strict=False)}
    levels = np.array([[table.get(int(v), UNKNOWN) for v in line] for line in values.tolist()], dtype=np.uint8)
    mine = [c for c in order if (values == c).any()]
    names = found.names or tuple(map(str, range(max(order) + 1)))
    key = tuple((_hex(table[c]), names[c]) for c in mine[:NAMED])
    return Picture("predicted", _png(levels), "Map of the predicted classes", None, key, max(0, len(mine) - NAMED))


def _scaled(label: str, alt: str, grid: Grid, high: float) -> Picture:
    return Picture(label, _png(_coloured(_array(grid) / high)), alt, high)


def _array(grid: Grid) -> Any:
    return np.array([[np.nan if v is None else v for v in line] for line in grid], dtype=float)


def _coloured(parts: Any) -> Any:
    """Colours of numbers from 0 to 1; grey for NaN."""
    table = np.array([_rgb(one) for one in theme.scale(False, STEPS)], dtype=np.uint8)
    known = ~np.isnan(parts)
    places = np.clip(np.where(known, parts, 0.0) * (STEPS - 1), 0, STEPS - 1).round().astype(int)
    return np.where(known[..., None], table[places], np.array(UNKNOWN, dtype=np.uint8))


def _rgb(colour: str) -> tuple[int, int, int]:
    if colour.startswith("rgb"):
        red, green, blue = (int(float(part)) for part in colour[colour.index("(") + 1 : -1].split(",")[:3])
        return red, green, blue
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _hex(rgb: Sequence[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in rgb)


def _png(levels: Any) -> str:
    store = io.BytesIO()
    image = need("PIL.Image", "report")
    image.fromarray(np.ascontiguousarray(levels.astype(np.uint8))).save(store, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(store.getvalue()).decode()


def token_style(token: Token, scales: Scales) -> str:
    """Background and ink of a token; empty if it has no uncertainty of its own."""
    if token.uncertainty is None:
        return ""
    colour, ink = theme.cells([token.uncertainty / scales.token])[0]
    return f"background:{colour};color:{ink}"
