"""Shared parts of figures: panels, axes, colours, layer names. Independent of posteriors.

Figures are made without pyplot, so that the user's state and backend do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from whence.errors import BadOption, need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008), from the most to the least readable on white, without yellow
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
MAP = "cividis"  # of values
SIGNED = "PuOr"  # of values around zero
GREY = "#666666"
SIZE = (6.0, 4.0)
SMALL, TEXT = 7.0, 9.0  # points
LONGEST = 22  # letters of a name
UNITS = {
    "std": "posterior standard deviation of a weight",
    "identified": "identified (1 − posterior / prior variance)",
    "signal_to_noise": "signal to noise (|weight| / standard deviation)",
    "curvature": "curvature of a weight (diag H / N)",
    "relative_curvature": "relative curvature of a weight (w² diag H / N)",
    "variance_share": "share of output variance",
    "explained": "explained (1 − variance / prior variance)",
}


def single(ax: Axes | None, size: tuple[float, float] = SIZE) -> Axes:
    """The axes to draw into: those given, or those of a new figure."""
    return panels(None, size=size)[1][0][0] if ax is None else ax


def panels(
    ax: Axes | None, rows: int = 1, columns: int = 1, size: tuple[float, float] = SIZE, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A new figure with a grid of panels, or a grid that replaces ``ax``."""
    need("matplotlib", "report")
    figure: Any
    if ax is None:
        figure = need("matplotlib.figure", "report").Figure(figsize=size, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)
        grid = figure.add_gridspec(rows, columns, **_ratios(options))
    else:
        place = ax.get_subplotspec()
        if place is None:
            raise BadOption("this figure has several panels that replace ax: ax must belong to a grid.")
        figure = ax.figure
        ax.set_axis_off()
        grid = place.subgridspec(rows, columns, **_ratios(options))
    return figure, grid.subplots(squeeze=False, **options).tolist()


def _ratios(options: dict[str, Any]) -> dict[str, Any]:
    return {key: options.pop(key) for key in ("width_ratios", "height_ratios") if key in options}


def tidy(ax: Axes, x: str = "", y: str = "", title: str = "", grid: str = "") -> Axes:
    """Set labels and the common style."""
    ax.set_xlabel(x, fontsize=TEXT)
    ax.set_ylabel(y, fontsize=TEXT)
    if title:
        ax.set_title(title, fontsize=TEXT)
    ax.tick_params(which="both", labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    if grid:
        ax.grid(axis=grid, color="#DDDDDD", linewidth=0.6)  # type: ignore[arg-type]
        ax.set_axisbelow(True)
    return ax


def layer_colours(count: int) -> list[Any]:
    """Distinct colours for a few categories; for many, ordered colours from a map."""
    if count <= len(PALETTE):
        return list(PALETTE[:count])
    colour_map = need("matplotlib", "report").colormaps["viridis"]
    return [colour_map(value) for value in np.linspace(0, 0.92, count)]


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """Label the vertical axis with names, the first on top."""
    ax.set_yticks(range(len(names)), [short(name) for name in names], fontsize=SMALL if len(names) > 12 else 8.0)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_ylabel("layer", fontsize=TEXT)


def name_columns(ax: Axes, names: Sequence[Any]) -> None:
    """Label the horizontal axis with names, rotated if they are many or long."""
    shown = [short(str(name)) for name in names]
    upright = sum(map(len, shown)) > 32
    size = SMALL if len(shown) > 12 else 8.0
    ax.set_xticks(range(len(shown)), shown, rotation=90 if upright else 0, fontsize=size if len(shown) < 40 else 6.0)


def short(name: str) -> str:
    """Shorten a long name to its end, which distinguishes layers."""
    return name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]


def grid_height(rows: int, least: float = SIZE[1]) -> float:
    """Height of a figure with ``rows`` named rows, in inches."""
    return max(least, 1.0 + 0.15 * rows)


def legend(ax: Axes, count: int, fresh: bool = True, title: str = "") -> None:
    """Draw the legend outside the axes; ``fresh`` if the figure is new, so that its margin is free."""
    handles, labels = ax.get_legend_handles_labels()
    style: dict[str, Any] = {"frameon": False, "fontsize": SMALL if count > 10 else 8.0, "title": title or None}
    style |= {"title_fontsize": 8.0, "labelspacing": 0.25, "handlelength": 1.4}
    if fresh and ax.figure is not None:
        ax.figure.legend(handles, labels, loc="outside right upper", **style)
    else:
        ax.legend(handles, labels, bbox_to_anchor=(1.01, 1.0), loc="upper left", **style)


def numbers(values: Any) -> np.ndarray:
    """Convert a column to floats, with nan for missing values."""
    if not isinstance(values, Tensor):
        return np.array([np.nan if value is None else float(value) for value in values], dtype=float)
    return np.asarray(torch.as_tensor(values).detach().cpu().double().numpy())


def thinned(values: np.ndarray, most: int) -> np.ndarray:
    """At most ``most`` values, evenly spaced."""
    return values[:: max(1, -(-len(values) // most))]


def ordered(values: Iterable[Any]) -> list[Any]:
    """Distinct values in order of first occurrence."""
    return list(dict.fromkeys(values))


def log_axis(ax: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis, with plain numbers for a short range."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    ax.set(**{f"{which}scale": "log"})
    low, high = sorted(ax.get_xlim() if which == "x" else ax.get_ylim())
    if high < 100 * low:
        ticker = need("matplotlib.ticker", "report")
        locator = (
            ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]) if high < 8 * low else ticker.LogLocator(subs=(1, 2, 5))
        )
        axis.set_major_locator(locator)
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:.5g}"))
        axis.set_minor_locator(ticker.NullLocator())


def colour_bar(ax: Axes, image: Any, label: str, ticks: Sequence[float] | None = None) -> None:
    """Draw a narrow colour bar on the right."""
    figure: Any = ax.figure
    bar = figure.colorbar(image, cax=ax.inset_axes((1.03, 0.0, 0.045, 1.0)), ticks=ticks)
    if ticks is not None:
        bar.ax.set_yticks(ticks, [f"{tick:.2g}" for tick in ticks])
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=SMALL)
    bar.outline.set_visible(False)


def heat(ax: Axes, values: np.ndarray, label: str, signed: bool = False, aspect: str = "auto") -> Any:
    """Draw a matrix as a heat map; missing values are white."""
    style: dict[str, Any] = {"cmap": MAP}
    if signed:
        limit = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
        style = {"cmap": SIGNED, "vmin": -limit, "vmax": limit}
    image = ax.imshow(values, aspect=aspect, interpolation="nearest", **style)  # type: ignore[arg-type]
    colour_bar(ax, image, label)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return image


def whole_ticks(ax: Axes) -> None:
    """Use a few whole numbers as ticks on both axes."""
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(need("matplotlib.ticker", "report").MaxNLocator(8, integer=True))
