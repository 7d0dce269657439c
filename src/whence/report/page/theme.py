"""Colours, and the two plotly templates, light and dark. Charts use no colour that depends on the theme."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from whence.errors import need
from whence.report.figures.canvas import MAP, PALETTE, SIGNED

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK = {"light": "#1d2430", "dark": "#e6e9ee"}
SOFT = {"light": "#dde1e8", "dark": "#343b47"}
PAPER = {"light": "#ffffff", "dark": "#14171c"}
# Okabe and Ito's colours, ordered by contrast on each background
COLOURS = {
    "light": ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#1d2430"],
    "dark": ["#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#e6e9ee"],
}
MISSING = "#9aa0a8"
# Of layers and classes: Okabe and Ito's, and a violet and a brown that people who are colour-blind can tell from them
DISTINCT = (*(colour for colour in PALETTE if colour != "#000000"), "#6030EE", "#775555")


def templates() -> dict[str, Any]:
    """Both themes as plotly templates, for JSON."""
    return {name: _template(name) for name in ("light", "dark")}


def _template(name: str) -> dict[str, Any]:
    objects = need("plotly.graph_objects", "report")
    axis = {
        "gridcolor": SOFT[name], "linecolor": SOFT[name], "zerolinecolor": SOFT[name], "zeroline": False,
        "fixedrange": True, "automargin": True, "ticks": "", "title": {"standoff": 10, "font": {"size": 13}},
    }  # fmt: skip
    layout = {
        "font": {"family": FONT, "size": 13, "color": INK[name]}, "colorway": COLOURS[name],
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "xaxis": axis, "yaxis": axis,
        "margin": {"l": 10, "r": 26, "t": 10, "b": 10}, "dragmode": False, "hoverlabel": _hover(name),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
    }  # fmt: skip
    line = {"marker": {"line": {"color": PAPER[name], "width": 0.7}}}
    template = objects.layout.Template(layout=layout, data={"icicle": [line], "bar": [line]})
    return dict(template.to_plotly_json())


def _hover(name: str) -> dict[str, Any]:
    return {"bgcolor": PAPER[name], "bordercolor": INK[name], "font": {"color": INK[name]}, "align": "left"}


def scale(signed: bool = False, steps: int = 11) -> list[str]:
    """A colour scale in steps, as hexadecimal colours."""
    colours = need("plotly.colors", "report")
    places = [i / (steps - 1) for i in range(steps)]
    sampled = colours.sample_colorscale(SIGNED if signed else MAP.capitalize(), places, colortype="tuple")
    return ["#" + "".join(f"{round(255 * part):02x}" for part in one) for one in sampled]


def cells(values: Iterable[float], limit: float | None = None) -> list[list[str]]:
    """Colour and ink of each value, on a scale from 0 to 1 or from -limit to limit; clipped beyond it."""
    made = [cell(colour) for colour in scale(limit is not None, 101)]
    parts = (value if limit is None else 0.5 + 0.5 * value / limit for value in values)
    return [made[round(100 * min(max(part, 0.0), 1.0))] for part in parts]


def cell(colour: str) -> list[str]:
    """A colour, and black or white text for readability on it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return [colour, "#000000" if luminance > 0.179 else "#ffffff"]


def class_colours(count: int) -> list[str]:
    """Distinct colours for a few classes; for many, ordered colours from a map."""
    if count <= len(DISTINCT):
        return list(DISTINCT[:count])
    colours = need("plotly.colors", "report")
    places = [0.12 + 0.83 * i / (count - 1) for i in range(count)]  # its ends are too close to black and white
    return [str(one) for one in colours.sample_colorscale("Viridis", places)]


def ramp(signed: bool) -> str:
    """A colour scale as CSS."""
    return f"linear-gradient(90deg,{','.join(scale(signed))})"
