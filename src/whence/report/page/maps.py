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
SCALE = 110  # pixels, for the colour scale below and the margin above
HIGHEST = {"matrix": 600}  # pixels of the whole figure, by kind
OTHERS = 880
LOWEST = 60  # pixels of a matrix with few rows
THIN = 14  # pixels of a tile's height, below which one column less is better
LETTER = 6.5  # pixels of a name's letter


def weight_maps(maps: list[Record]) -> list[Record]:
    """Layout and traces of each map, by quantity."""
    return [_one(each) for each in maps]


def _one(each: Record) -> Record:
    tiles = each["tiles"][:MOST]
    known = [key for key in QUANTITIES if tiles and all(tile.get(key) for tile in tiles)]
    shape = max(1, each.get("height") or 1) / max(1, each.get("width") or 1)
    made = [_arranged(tiles, shape, str(each.get("kind")), *room) for room in ((6, 880), (3, 350))]
    return {
        "layer": each["layer"], "wide": made[0], "narrow": made[1],
        "data": {key: [_tile(tile, i, key) for i, tile in enumerate(tiles)] for key in known},
        "colours": {key: _colours(tiles, key) for key in known},
    }  # fmt: skip


def _arranged(tiles: list[Record], shape: float, kind: str, most: int, width: int) -> Record:
    """The layout, its height over its width, and the pixels that it never exceeds; about twice as wide as high."""
    highest = HIGHEST.get(kind, OTHERS) - SCALE
    count = max(1, len(tiles))
    columns = min(most, math.ceil(math.sqrt(2 * count * shape)), count)
    columns = count if count <= most and shape >= 0.5 else -(-count // -(-count // columns))  # no row nearly empty
    while columns < min(len(tiles), most + 2) and _height(tiles, shape, columns, width) > highest:
        columns += 1  # one or two columns more than are wanted, rather than tiles that have to shrink
    while columns > 1 and shape * width / columns < THIN and _height(tiles, shape, columns - 1, width) <= highest:
        columns -= 1
    rows = -(-count // columns)
    tall = _height(tiles, shape, columns, width)
    tall = min(max(tall, LOWEST + NAME) if kind == "matrix" else tall, highest)
    letters = max(6, min(16, int(width / columns / LETTER)))
    grid = _grid(tiles, rows, columns, NAME * rows / tall, kind != "matrix", letters)
    made = need("plotly.graph_objects", "report").Layout(grid).to_plotly_json()
    made.pop("template", None)
    return {"layout": made, "ratio": round(tall / width, 3), "most": highest, "more": SCALE}


def _height(tiles: list[Record], shape: float, columns: int, width: int) -> float:
    """Of all tiles with their names, in pixels, with as many columns."""
    return max(1, -(-len(tiles) // columns)) * (shape * width / columns + NAME)


def _grid(tiles: list[Record], rows: int, columns: int, name: float, square: bool, letters: int) -> Record:
    """Axes, and the tiles' names above them, which take a part of each row; on demand, pixels stay square."""
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
            "scaleanchor": f"x{mark}" if square else None, "constraintoward": "top", "anchor": f"x{mark}",
        }  # fmt: skip
        layout["annotations"].append(
            {"x": 0.5, "xref": f"x{mark} domain", "y": 1, "yref": f"y{mark} domain", "xanchor": "center",
             "yanchor": "bottom", "text": drawn(shortened(str(tile["label"]), letters)), "showarrow": False,
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
