"""Weight maps: for each layer a grid of small heat maps with one colour scale."""

from __future__ import annotations

import math
from typing import Any

from whence.errors import need
from whence.report.figures.canvas import MAP, SIGNED
from whence.report.page.words import drawn, shortened, significant

Record = dict[str, Any]
QUANTITIES = {
    "weight": "trained value of the weight",
    "std": "posterior standard deviation",
    "identified": "identified (0 = by the prior only, 1 = by the data)",
}
MOST = 16  # tiles
GAP = 0.02  # of the width, between tiles
NAME = 24  # pixels, for the name above a tile


def weight_maps(maps: list[Record]) -> list[Record]:
    """Layout and traces of each map, by quantity."""
    return [_one(each) for each in maps]


def _one(each: Record) -> Record:
    tiles = each["tiles"][:MOST]
    known = [key for key in QUANTITIES if tiles and all(tile.get(key) for tile in tiles)]
    shape = max(1, each.get("height") or 1) / max(1, each.get("width") or 1)
    return {
        "layer": each["layer"], "wide": _arranged(tiles, shape, 6, 880), "narrow": _arranged(tiles, shape, 3, 350),
        "data": {key: [_tile(tile, i, key) for i, tile in enumerate(tiles)] for key in known},
        "colours": {key: _colours(tiles, key) for key in known},
    }  # fmt: skip


def _arranged(tiles: list[Record], shape: float, most: int, width: int) -> Record:
    """The layout with at most so many columns, and its height over its width; about twice as wide as high."""
    columns = max(1, min(most, math.ceil(math.sqrt(2 * len(tiles) * shape)), len(tiles)))
    rows = max(1, -(-len(tiles) // columns))
    tall = shape * width / columns
    layout = need("plotly.graph_objects", "report").Layout(_grid(tiles, rows, columns, NAME / (NAME + tall)))
    made = layout.to_plotly_json()
    made.pop("template", None)
    return {"layout": made, "ratio": round(min(rows * (tall + NAME) / width, 2.5), 3)}


def _grid(tiles: list[Record], rows: int, columns: int, name: float) -> Record:
    """Axes that keep pixels square, and the tiles' names above them, which take a part of each row."""
    high, wide = 1 / rows, (1 - GAP * (columns - 1)) / columns
    layout: Record = {"annotations": [], "margin": {"t": 24, "l": 4, "r": 4, "b": 4}}
    for i, tile in enumerate(tiles):
        row, column = divmod(i, columns)
        left, top = column * (wide + GAP), 1 - row * high
        mark = "" if i == 0 else str(i + 1)
        bare = {"visible": False, "constrain": "domain"}
        layout[f"xaxis{mark}"] = {**bare, "domain": _inside(left, left + wide), "anchor": f"y{mark}"}
        layout[f"yaxis{mark}"] = {
            **bare, "domain": _inside(top - high * (1 - name), top), "autorange": "reversed",
            "scaleanchor": f"x{mark}", "constraintoward": "top", "anchor": f"x{mark}",
        }  # fmt: skip
        layout["annotations"].append(
            {"x": 0.5, "xref": f"x{mark} domain", "y": 1, "yref": f"y{mark} domain", "xanchor": "center",
             "yanchor": "bottom", "text": drawn(shortened(str(tile["label"]), 16)), "showarrow": False,
             "font": {"size": 11}}
        )  # fmt: skip
    return layout


def _inside(low: float, high: float) -> list[float]:
    return [round(min(max(low, 0.0), 1.0), 4), round(min(max(high, 0.0), 1.0), 4)]


def _tile(tile: Record, i: int, key: str) -> Record:
    mark = "" if i == 0 else str(i + 1)
    values = [[significant(value, 3) for value in line] for line in tile[key]]
    objects = need("plotly.graph_objects", "report")
    trace = objects.Heatmap(
        z=values, coloraxis="coloraxis", xaxis=f"x{mark}", yaxis=f"y{mark}", name=drawn(tile["label"]),
        hoverongaps=False, hovertemplate="row %{y}, column %{x}: %{z:.3g}",
    )  # fmt: skip
    return dict(trace.to_plotly_json())


def _colours(tiles: list[Record], key: str) -> Record:
    """One scale for all tiles: diverging for weights, from 0 to 1 for identified."""
    flat = [value for tile in tiles for line in tile[key] for value in line if value is not None]
    low, high = min(flat, default=0.0), max(flat, default=1.0)
    if key == "weight":
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    elif key == "identified":
        low, high = min(0.0, low), 1.0
    if not math.isfinite(high - low) or high <= low:
        high = low + 1.0
    bar = {"orientation": "h", "thickness": 10, "y": 0, "yanchor": "top", "ypad": 14, "len": 0.6, "nticks": 5,
           "outlinewidth": 0, "title": {"text": QUANTITIES[key], "side": "top"}}  # fmt: skip
    objects = need("plotly.graph_objects", "report")
    scale = SIGNED if key == "weight" else MAP.capitalize()
    axis = objects.layout.Coloraxis(
        cmin=significant(low), cmax=significant(high), colorscale=_scale(scale), colorbar=bar
    )
    return dict(axis.to_plotly_json())


def _scale(name: str) -> list[list[Any]]:
    colours = need("plotly.colors", "report")
    return [[round(place, 3), colour] for place, colour in colours.get_colorscale(name)]
