"""Uncertainty maps and tokens of the inputs shown: grids as pictures, colours of tokens."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.errors import need
from whence.numerals import number
from whence.report.page import theme
from whence.report.record.common import Grid
from whence.report.record.dense import DenseMaps, Token
from whence.report.record.sections import ShownInput

STEPS = 101  # of a colour scale
NAMED = 8  # classes in the key of a map
LEAST = 0.01  # of the largest uncertainty: a part that is smaller everywhere has no map
UNKNOWN = (154, 160, 168)
WRONG = (190, 40, 20)
ERRORS = (("#be2814", "wrong"), ("transparent", "right"))


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
    epistemic: float | None  # None if it is nowhere known
    wrong: float
    token: float
    classes: tuple[int, ...]  # that are predicted or true anywhere

    @classmethod
    def of(cls, inputs: Iterable[ShownInput]) -> Scales:
        shown = list(inputs)
        maps = [one.maps for one in shown if one.maps is not None]
        tokens = [token.uncertainty or 0.0 for one in shown for token in one.tokens or ()]
        grids = [grid for one in maps for grid in (one.predicted, one.truth) if grid is not None]
        predicted = {int(v) for grid in grids for line in grid for v in line if v is not None}
        total = _largest(one.total for one in maps)
        parts = [one.epistemic for one in maps if one.epistemic is not None]
        return cls(
            total,
            _largest(parts) if parts else None,
            _largest(one.wrong for one in maps if one.wrong is not None),
            max(tokens, default=0.0) or 1.0,
            tuple(sorted(predicted)) if any(one.kind == "classes" for one in maps) else (),
        )

    least_part = LEAST

    @property
    def has_parts(self) -> bool:
        return self.epistemic is not None

    @property
    def shows_parts(self) -> bool:
        """Whether the part from the weights is large enough anywhere for a map."""
        return self.epistemic is not None and self.epistemic >= LEAST * self.total


def _largest(grids: Iterable[Grid]) -> float:
    return max((v for grid in grids for line in grid for v in line if v is not None), default=0.0) or 1.0


def pictures(found: DenseMaps, scales: Scales) -> list[Picture]:
    """Predicted and true, total uncertainty, its epistemic part, errors."""
    made = [_predicted(found, scales)]
    if found.truth is not None:
        made.append(_classes(found, found.truth, scales, "true", "Map of the true classes"))
    labels = found.kind == "classes"
    name = "entropy (nats)" if labels else "predicted standard deviation"
    made.append(_scaled(name, f"Map of the {name}", found.total, scales.total, not labels))
    if found.epistemic is not None and scales.epistemic is not None and scales.shows_parts:
        words = "from weights (nats)" if labels else "from weights"
        made.append(_scaled(words, "Map of the part from weights", found.epistemic, scales.epistemic, not labels))
    if found.wrong is not None and labels:
        made.append(_marked(f"{found.mistakes:,} of {found.pixels:,} pixels are wrong", found.wrong))
    elif found.wrong is not None:
        made.append(_scaled("absolute error", "Map of the errors", found.wrong, scales.wrong))
    return made


def _predicted(found: DenseMaps, scales: Scales) -> Picture:
    values = _array(found.predicted)
    if found.kind == "numbers":
        low, high = (float(end(values)) for end in (np.nanmin, np.nanmax))
        picture = picture_of(_coloured((values - low) / ((high - low) or 1.0)))
        return Picture(f"predicted, {number(low)} to {number(high)}", picture, "Map of the predicted values")
    return _classes(found, found.predicted, scales, "predicted", "Map of the predicted classes")


def _classes(found: DenseMaps, grid: Grid, scales: Scales, label: str, alt: str) -> Picture:
    """Classes in the same colours on all maps; grey where they are unknown."""
    values, order = _array(grid), list(scales.classes)
    colours = theme.class_colours(max(len(order), 2))
    table = {c: _rgb(colour) for c, colour in zip(order, colours, strict=False)}
    known = np.nan_to_num(values, nan=-1).astype(int).tolist()
    levels = np.array([[table.get(v, UNKNOWN) for v in line] for line in known], dtype=np.uint8)
    mine = [c for c in order if (values == c).any()]
    names = found.names or tuple(map(str, range(max(order) + 1)))
    key = tuple((_hex(table[c]), names[c]) for c in mine[:NAMED])
    return Picture(label, picture_of(levels), alt, None, key, max(0, len(mine) - NAMED))


def _scaled(label: str, alt: str, grid: Grid, high: float, root: bool = False) -> Picture:
    """``root``: of variances, as standard deviations."""
    values, most = _array(grid), high
    if root:
        values, most = np.sqrt(np.clip(values, 0, None)), math.sqrt(high)
    return Picture(label, picture_of(_coloured(values / most)), alt, most)


def _marked(label: str, grid: Grid) -> Picture:
    """Where answers are wrong: red; the page shows through where they are right."""
    parts = _array(grid)
    unknown = np.isnan(parts)
    levels = np.empty((*parts.shape, 4), dtype=np.uint8)
    levels[..., :3] = np.where(unknown[..., None], UNKNOWN, WRONG)
    levels[..., 3] = np.where(unknown, 255, (255 * np.clip(parts, 0, 1)).round())
    return Picture(label, picture_of(levels), "Map of the errors", None, ERRORS)


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


def picture_of(levels: Any) -> str:
    """Levels [h, w, 3 or 4] as PNG data."""
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
