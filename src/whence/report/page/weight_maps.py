"""Weight maps: for each layer a grid of small heat maps with one colour scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from whence.errors import need
from whence.report.figures.canvas import MAP, SIGNED
from whence.report.formatting import shortened, significant
from whence.report.page.charts import plain_text
from whence.report.record.sections import Tile, WeightMap

Chart = dict[str, Any]
QUANTITIES = {
    "weight": "trained value of the weight",
    "std": "posterior standard deviation",
    "identified": "identified (0 = only by the prior, 1 = by the data)",
}
OF_MEANS = {  # where a map holds means of neighbouring weights
    "weight": "mean size of neighbouring weights, without sign",
    "std": "mean standard deviation of neighbouring weights",
    "identified": "mean identified of neighbouring weights (0 to 1)",
}
MEANS = " weights as means of neighbours"  # in the note of such a map, after their number
SIZES = "weights as means of their magnitudes"
MOST = 16  # tiles
GAP = 0.02  # of the width, between tiles
NAME = 24  # pixels, for the name above a tile
SCALE = 110  # pixels, for the colour scale below and the margin above
HIGHEST = {"matrix": 600}  # pixels of the whole figure, by kind
OTHERS = 880
LOWEST = 60  # pixels of a matrix with few rows
THIN = 14  # height of a tile in pixels below which one column fewer is used
LETTER = 6.5  # pixels of a name's letter


def weight_map(found: WeightMap) -> Chart:
    """Layout and traces of a layer's map, by quantity."""
    tiles = found.tiles[:MOST]
    shape = max(1, found.height) / max(1, found.width)
    wide, narrow = (_arranged(tiles, shape, found.kind, *room) for room in ((6, 880), (3, 350)))
    return {
        "layer": found.layer, "wide": wide, "narrow": narrow, "names": quantities(found),
        "data": {key: [_tile(tile, i, key) for i, tile in enumerate(tiles)] for key in QUANTITIES},
        "colours": {key: _colours(tiles, key, bool(found.magnitudes)) for key in QUANTITIES},
    }  # fmt: skip


def quantities(found: WeightMap) -> dict[str, str]:
    """What the map can show, in the words of the menu and of the colour scale."""
    return OF_MEANS if found.magnitudes else QUANTITIES


def caption(found: WeightMap) -> str:
    """What the tiles hold, in one or two sentences."""
    count, parts = len(found.tiles), [part for part in found.note.split("; ") if part and part != SIZES]
    of = next((part.removesuffix(MEANS) for part in parts if part.endswith(MEANS)), None)
    rest = "; ".join(part for part in parts if not part.endswith(MEANS))
    maps = f"{count} map{'s' * (count != 1)}"
    size = f"{found.height} × {found.width}"
    if found.magnitudes:
        whole = f"The {of} weights are" if of else "They are"
        words = f"{whole} too many to show each: the map has {size} means of neighbouring ones."
    else:
        words = f"{maps} of {size} weights." if found.kind == "matrix" else f"{maps}."
    return f"{found.parameter}: {words}{f' {rest[0].upper()}{rest[1:]}.' if rest else ''}"


def _arranged(tiles: Sequence[Tile], shape: float, kind: str, most: int, width: int) -> Chart:
    """The layout, its aspect ratio, its largest height in pixels and its rows; about twice as wide as high."""
    highest = HIGHEST.get(kind, OTHERS) - SCALE
    count = max(1, len(tiles))
    columns = min(most, math.ceil(math.sqrt(2 * count * shape)), count)
    columns = count if count <= most and shape >= 0.5 else -(-count // -(-count // columns))  # avoid a nearly empty row
    while columns < min(len(tiles), most + 2) and _height(tiles, shape, columns, width) > highest:
        columns += 1  # a column or two more, instead of smaller tiles
    while columns > 1 and shape * width / columns < THIN and _height(tiles, shape, columns - 1, width) <= highest:
        columns -= 1
    rows = -(-count // columns)
    tall = _height(tiles, shape, columns, width)
    tall = min(max(tall, LOWEST + NAME) if kind == "matrix" else tall, highest)
    letters = max(6, min(16, int(width / columns / LETTER)))
    grid = _grid(tiles, rows, columns, NAME * rows / tall, kind != "matrix", letters)
    made = need("plotly.graph_objects", "report").Layout(grid).to_plotly_json()
    made.pop("template", None)
    return {"layout": made, "ratio": round(tall / width, 3), "most": highest, "more": SCALE, "rows": rows}


def _height(tiles: Sequence[Tile], shape: float, columns: int, width: int) -> float:
    """Height of all tiles with their names, in pixels."""
    return max(1, -(-len(tiles) // columns)) * (shape * width / columns + NAME)


def _grid(tiles: Sequence[Tile], rows: int, columns: int, name: float, square: bool, letters: int) -> Chart:
    """Axes with the tiles' names above them; ``square`` keeps pixels square."""
    high, wide = 1 / rows, (1 - GAP * (columns - 1)) / columns
    layout: Chart = {"annotations": [], "margin": {"t": 24, "l": 4, "r": 4, "b": 4}}
    for i, tile in enumerate(tiles):
        row, column = divmod(i, columns)
        left, top = column * (wide + GAP), 1 - row * high
        mark = "" if i == 0 else str(i + 1)
        bare = {"visible": False, "constrain": "domain"}
        layout[f"xaxis{mark}"] = {**bare, "domain": _inside(left, left + wide), "anchor": f"y{mark}"}
        layout[f"yaxis{mark}"] = {
            **bare, "domain": _inside(top - high * (1 - name), top), "autorange": "reversed",
            "scaleanchor": f"x{mark}" if square else None, "constraintoward": "top", "anchor": f"x{mark}",
        }  # fmt: skip
        layout["annotations"].append(
            {"x": 0.5, "xref": f"x{mark} domain", "y": 1, "yref": f"y{mark} domain", "xanchor": "center",
             "yanchor": "bottom", "text": plain_text(shortened(tile.label, letters)), "showarrow": False,
             "font": {"size": 11}}
        )  # fmt: skip
    return layout


def _inside(low: float, high: float) -> list[float]:
    return [round(min(max(low, 0.0), 1.0), 4), round(min(max(high, 0.0), 1.0), 4)]


def _tile(tile: Tile, i: int, key: str) -> Chart:
    mark = "" if i == 0 else str(i + 1)
    values = [[significant(value, 3) for value in line] for line in getattr(tile, key)]
    objects = need("plotly.graph_objects", "report")
    trace = objects.Heatmap(
        z=values, coloraxis="coloraxis", xaxis=f"x{mark}", yaxis=f"y{mark}", name=plain_text(tile.label),
        hoverongaps=False, hovertemplate="row %{y}, column %{x}: %{z:.3g}",
    )  # fmt: skip
    return dict(trace.to_plotly_json())


def _colours(tiles: Sequence[Tile], key: str, magnitudes: bool = False) -> Chart:
    """One scale for all tiles: diverging for weights, from 0 for their magnitudes, from 0 to 1 for identified."""
    flat = [value for tile in tiles for line in getattr(tile, key) for value in line if value is not None]
    low, high = min(flat, default=0.0), max(flat, default=1.0)
    signed = key == "weight" and not magnitudes
    if signed:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    elif key == "identified":
        low, high = min(0.0, low), 1.0
    elif key == "weight":
        low = 0.0
    if not math.isfinite(high - low) or high <= low:
        high = low + 1.0
    title = (OF_MEANS if magnitudes else QUANTITIES)[key]
    bar = {"orientation": "h", "thickness": 10, "y": 0, "yanchor": "top", "ypad": 14, "len": 0.6, "nticks": 5,
           "outlinewidth": 0, "title": {"text": title, "side": "top", "font": {"size": 12}}}  # fmt: skip
    objects = need("plotly.graph_objects", "report")
    scale = SIGNED if signed else MAP.capitalize()
    axis = objects.layout.Coloraxis(
        cmin=significant(low), cmax=significant(high), colorscale=_scale(scale), colorbar=bar
    )
    return dict(axis.to_plotly_json())


def _scale(name: str) -> list[list[Any]]:
    colours = need("plotly.colors", "report")
    return [[round(place, 3), colour] for place, colour in colours.get_colorscale(name)]
