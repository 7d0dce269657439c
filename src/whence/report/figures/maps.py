"""Heat maps: classes by layers, and the curvature itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from whence.errors import BadOption, need
from whence.report.figures.canvas import (
    PALETTE,
    SIGNED,
    UNITS,
    colour_bar,
    heat,
    height,
    name_columns,
    name_rows,
    numbers,
    ordered,
    panels,
    tidy,
    whole_ticks,
)
from whence.where.tabular import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 1_000  # rows of a matrix that are shown


def classes(table: Table, ax: Axes | None = None) -> Figure:
    """Explained and share of each layer for the inputs of each class, from ``where.by_class()``."""
    names, labels = ordered(table["name"]), ordered(table["class"])
    figure, (axes,) = panels(ax, 1, 2, (6.0 if len(labels) < 16 else 9.0, height(len(names), 3.2)), sharey=True)
    for panel, column in zip(axes, ("explained", "variance_share"), strict=True):
        values = np.full((len(names), len(labels)), np.nan)
        for row in table.rows():
            values[names.index(row["name"]), labels.index(row["class"])] = row[column]
        heat(panel, values, UNITS[column])
        tidy(panel, "class", title=column.replace("_", " "))
        panel.spines[:].set_visible(False)
        name_columns(panel, labels)
    name_rows(axes[0], names)
    axes[0].set_ylabel("layer", fontsize=9)
    return figure


def curvature(maps: Mapping[str, Tensor], ax: Axes | None = None) -> Figure:
    """The matrices of ``curvature_maps``: Kronecker factors G and A, a block H, or its diagonal.

    Colours go with the root of the size, so that small entries are seen too. Of several groups the first is shown.
    """
    if not maps:
        raise BadOption("curvature needs at least one matrix: whence.where.spectrum.curvature_maps(posterior, layer).")
    wide = 6.0 if len(maps) > 1 else 4.6
    figure, (axes,) = panels(ax, 1, len(maps), (wide, 3.0 if len(maps) > 1 else 4.0))
    words = {"G": "output", "A": "input", "H": "weight"}
    for panel, (name, found) in zip(axes, maps.items(), strict=True):
        values = numbers(found)
        if values.ndim == 1:
            panel.plot(np.arange(len(values)), values, ".", color=PALETTE[0], markersize=3)
            panel.set_yscale("log")
            tidy(panel, "weight", "diagonal of the curvature (precision)", name, "y")
            continue
        groups = f" (group 1 of {len(values)})" if values.ndim == 3 and len(values) > 1 else ""
        _matrix(panel, values[0] if values.ndim == 3 else values)
        tidy(panel, words.get(name, ""), words.get(name, ""), f"{name}{groups}")
        panel.spines[:].set_visible(False)
    return figure


def _matrix(ax: Axes, values: np.ndarray) -> None:
    size, step = len(values), max(1, -(-len(values) // LARGEST))
    limit = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    scale = need("matplotlib.colors", "report").FuncNorm((_root, _square), -limit, limit)
    extent = (-0.5, size - 0.5, size - 0.5, -0.5)
    image = ax.imshow(values[::step, ::step], cmap=SIGNED, norm=scale, interpolation="nearest", extent=extent)
    colour_bar(ax, image, "entry (colours by its root)", [part * limit for part in (-1, -0.25, 0, 0.25, 1)])
    whole_ticks(ax)
    ax.tick_params(length=0)


def _root(values: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.sqrt(np.abs(values))


def _square(values: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.square(values)
