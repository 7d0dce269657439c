"""Pictures of the weights and units of a layer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from whence.errors import BadOption, one_of
from whence.report.figures.canvas import (
    GREY,
    MAP,
    PALETTE,
    SMALL,
    UNITS,
    colour_bar,
    heat,
    height,
    layer_colours,
    legend,
    log_axis,
    name_columns,
    numbers,
    panels,
    short,
    single,
    thinned,
    tidy,
    whole_ticks,
)
from whence.where.table import Where
from whence.where.tabular import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 2_000  # of a layer in a scatter
LARGEST = 1_500  # rows or columns of a heat map
Of = Literal["std", "identified", "signal_to_noise", "curvature", "relative_curvature", "weight"]


def weight_maps(
    where: Where,
    layer: str,
    of: Of = "std",
    shape: Sequence[int] | None = None,
    most: int = 25,
    ax: Axes | None = None,
) -> Axes:
    """A layer's weights in their places: filters as tiles, rows as images of ``shape``, else the matrix.

    The shape is that of the inputs where they are images and the layer reads them. ``most`` is how many units, and
    channels of each, are tiled; the first ones.
    """
    one_of(of, get_args(Of), "of")
    if most < 1:
        raise BadOption(f"most={most} must be at least 1.")
    name, values = _weights(where.weights(layer), of)
    kinds = {row.name: row.kind for row in where.layers}
    label = "weight" if of == "weight" else UNITS[of]
    ax = single(ax)
    if values.ndim > 2:
        values = values[:, None] if values.ndim == 3 else values.reshape(*values.shape[:2], -1, values.shape[-1])
        turned = "Transpose" in kinds[layer]  # its first index is that of the inputs
        _tiles(ax, values, label, most, ("input channel", "filter") if turned else ("filter", "input channel"))
    elif (shape := _image(where, layer, values, shape)) is not None:
        _tiles(ax, values.reshape(len(values), -1, *shape[-2:]), label, most, ("unit", "input channel"))
    else:
        tall, wide = (max(1, -(-size // LARGEST)) for size in values.shape)
        extent = (-0.5, values.shape[1] - 0.5, values.shape[0] - 0.5, -0.5)
        heat(ax, values[::tall, ::wide], label, of == "weight").set_extent(extent)
        tidy(ax, "column" if len(values) > 1 else "entry", "row" if len(values) > 1 else "")
        whole_ticks(ax)
        if len(values) == 1:
            ax.set_yticks([])
    ax.set_title(name, fontsize=9)
    return ax


def _weights(table: Table, of: str) -> tuple[str, np.ndarray]:
    """The largest parameter of a layer, and its values in their own shape; a vector as a matrix of one row."""
    counts = Counter(table["parameter"])
    name = max(counts, key=lambda key: counts[key])
    mine = np.flatnonzero([other == name for other in table["parameter"]])
    index = np.array([table["index"][i] for i in mine])
    placed = np.full(index.max(0) + 1, np.nan)
    placed[tuple(index.T)] = numbers(table[of])[mine]
    return name, placed.reshape(1, -1) if placed.ndim == 1 else placed


def _image(where: Where, layer: str, values: np.ndarray, shape: Sequence[int] | None) -> tuple[int, ...] | None:
    """The shape of what a row of the matrix sees, if that is an image."""
    if shape is not None:
        if len(shape) not in (2, 3) or math.prod(shape) != values.shape[1]:
            raise BadOption(
                f"shape={tuple(shape)}: the weights of a unit of {layer!r} are {values.shape[1]}, "
                "to be shown as (height, width) or (channels, height, width)."
            )
        return tuple(shape)
    seen = tuple(getattr(where.inputs, "shape", ()))[1:]
    reads = where.layers[0].name == layer and len(seen) in (2, 3) and math.prod(seen) == values.shape[1]
    return seen if reads else None


def _tiles(ax: Axes, values: np.ndarray, label: str, most: int, words: tuple[str, str]) -> None:
    """[units, channels, height, width] as one picture: units by channels, or units line by line."""
    units, channels = values.shape[:2]
    tiles, signed = values[:most, :most], label == "weight"
    some = f", the first {most} of {units}" if units > most else ""
    more = f", the first {most} of {channels}" if channels > most else ""
    across, down = words[1] + more, words[0] + some
    step = 1
    if channels == 1:
        across, down, step = f"one tile for each {words[0]}, line by line{some}", "", math.ceil(len(tiles) ** 0.5 * 1.2)
        empty = np.full((-len(tiles) % step, *tiles.shape[1:]), np.nan)
        tiles = np.concatenate([tiles, empty]).reshape(-1, step, *tiles.shape[2:])
    elif tiles.shape[0] > tiles.shape[1]:
        tiles, across, down = tiles.swapaxes(0, 1), down, across
    finer = max(1, 8 // max(tiles.shape[2:]))  # so that lines between tiles are thin
    tiles = tiles.repeat(finer, 2).repeat(finer, 3)
    rows, columns, tall, wide = tiles.shape
    heat(ax, _mosaic(tiles), label, signed, "equal")
    tidy(ax, across, down)
    for axis, size, count, by in ((ax.yaxis, tall, rows, step), (ax.xaxis, wide, columns if step == 1 else 0, 1)):
        shown = range(0, count, max(1, -(-count // 13)))
        axis.set_ticks([(size + 1) * i + (size - 1) / 2 for i in shown], [str(i * by) for i in shown])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=SMALL)


def _mosaic(tiles: np.ndarray) -> np.ndarray:
    """[rows, columns, height, width] side by side, a white line between them."""
    framed = np.pad(tiles, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    rows, columns, tall, wide = framed.shape
    return framed.transpose(0, 2, 1, 3).reshape(rows * tall, columns * wide)[:-1, :-1]


def units(where: Where, layer: str, most: int = 40, ax: Axes | None = None) -> Figure:
    """A layer's units, the largest share first (the largest standard deviation if no inputs were given)."""
    if most < 1:
        raise BadOption(f"most={most} must be at least 1.")
    table = where.units(layer)
    shared = "variance_share" in table
    top = table.top("variance_share" if shared else "std", most)
    figure, grid = panels(ax, 2, 1, sharex=True, height_ratios=(3, 2))
    (upper,), (lower,) = grid
    places = np.arange(len(top))
    if shared:
        upper.bar(places, numbers(top["variance_share"]), 0.8, color=PALETTE[0], label="posterior")
        prior = numbers(top["prior_share"])
        upper.hlines(prior, places - 0.4, places + 0.4, color="black", linewidth=1.2, label="prior alone")
        upper.legend(frameon=False, fontsize=8)
        lower.plot(places, numbers(top["explained"]), "s", color=PALETTE[3], markersize=3.5, label="explained")
    else:
        upper.bar(places, numbers(top["std"]), 0.8, color=PALETTE[0])
    lower.plot(places, numbers(top["identified"]), "o", color=PALETTE[2], markersize=3.5, label="identified")
    lower.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 0.97), borderpad=0)
    part = f"{len(top)} of {len(table)} units" if len(top) < len(table) else f"all {len(table)} units"
    kind = table.note.removeprefix("a unit is a ")
    tidy(upper, y="share of the network's\noutput variance" if shared else "posterior standard\ndeviation", grid="y")
    upper.set_title(f"{part} of {layer}, largest first", fontsize=9)
    tidy(lower, f"unit ({kind})" if kind else "unit", "part of the\nprior variance gone", grid="y")
    name_columns(lower, top["unit"])
    return figure


def magnitude(where: Where, layer: str | None = None, ax: Axes | None = None) -> Axes:
    """Size of each weight against its standard deviation; ρ is Spearman's, from ``where.magnitude``.

    Of one layer how many weights lie where; of all layers some weights of each. Weights of exactly 0 are left out.
    """
    fresh = ax is None
    ax = single(ax, (6.0, height(len(where.layers)) if layer is None else 4.0))
    rho = dict(zip(where.magnitude["name"], where.magnitude["rho_std"], strict=True))
    names = [row.name for row in where.layers]
    if layer is not None:
        one_of(layer, names, "layer")
        size, std = _pairs(where, layer)
        image = ax.hexbin(size, std, xscale="log", yscale="log", gridsize=45, mincnt=1, cmap=MAP, bins="log")
        colour_bar(ax, image, "number of weights")
        ax.set_title(f"{layer} (ρ = {rho[layer]:.2f}; dashed: |w| = standard deviation)", fontsize=9)
    else:
        for name, colour in zip(names, layer_colours(len(names)), strict=True):
            size, std = (thinned(v, POINTS) for v in _pairs(where, name))
            label = f"{short(name)} (ρ = {rho[name]:.2f})"
            ax.plot(size, std, ".", color=colour, markersize=4, alpha=0.6, markeredgewidth=0, label=label)
        ax.set(xscale="log", yscale="log")
    x, y = ax.get_xlim(), ax.get_ylim()
    ends = (min(x[0], y[0]), max(x[1], y[1]))
    ax.plot(ends, ends, "--", color=GREY, linewidth=0.9, label="|w| = std")
    ax.set(xlim=x, ylim=y)
    log_axis(ax, "x")
    log_axis(ax, "y")
    tidy(ax, "size of the weight, |w|", UNITS["std"])
    if layer is None:
        legend(ax, len(names), fresh, "layer")
        _solid(ax.figure.legends if fresh and ax.figure is not None else [ax.get_legend()])
    return ax


def _pairs(where: Where, layer: str) -> tuple[np.ndarray, np.ndarray]:
    table = where.weights(layer)
    size, std = np.abs(numbers(table["weight"])), numbers(table["std"])
    kept = (size > 0) & (std > 0)
    return size[kept], std[kept]


def _solid(legends: Sequence[Any]) -> None:
    for shown in legends:
        for handle in shown.legend_handles:
            handle.set(alpha=1)
            if handle.get_marker() == ".":
                handle.set(markersize=8)
