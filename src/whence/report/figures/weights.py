"""Figures of the weights and units of a layer, and of its curvature."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from torch import Tensor

from whence.errors import BadOption, need, one_of
from whence.report.figures import canvas
from whence.tables import Table
from whence.where.pixels import CHANNELS, input_shape
from whence.where.where import Where

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 2_000  # points of a layer in a scatter plot
LARGEST = 1_500  # rows or columns of a heat map
LARGEST_CURVATURE = 1_000
Of = Literal["std", "identified", "signal_to_noise", "curvature", "relative_curvature", "weight"]


def weight_maps(
    where: Where,
    layer: str,
    of: Of = "std",
    shape: Sequence[int] | None = None,
    most: int = 25,
    ax: Axes | None = None,
) -> Axes:
    """A layer's weights at their positions: filters as tiles, rows as images of ``shape``, else the matrix.

    By default the shape of the inputs, if they are images that the layer reads. ``most`` is the number of units, and
    channels of each, to show; the first ones.
    """
    one_of(of, get_args(Of), "of")
    if most < 1:
        raise BadOption(f"most={most} must be at least 1.")
    name, values = _weights(where.weights(layer), of)
    kinds = {row.name: row.kind for row in where.layers}
    label = "weight" if of == "weight" else canvas.UNITS[of]
    ax = canvas.single(ax)
    if values.ndim > 2:
        values = values[:, None] if values.ndim == 3 else values.reshape(*values.shape[:2], -1, values.shape[-1])
        _tiles(ax, values, label, most, _dimensions(where, layer, kinds[layer]))
    elif (shape := _image(where, layer, name, values, shape)) is not None:
        _tiles(ax, values.reshape(len(values), -1, *shape[-2:]), label, most, ("unit", "input channel"))
    else:
        tall, wide = (max(1, -(-size // LARGEST)) for size in values.shape)
        extent = (-0.5, values.shape[1] - 0.5, values.shape[0] - 0.5, -0.5)
        canvas.heat(ax, values[::tall, ::wide], label, of == "weight").set_extent(extent)
        canvas.tidy(ax, "column" if len(values) > 1 else "entry", "row" if len(values) > 1 else "")
        canvas.whole_ticks(ax)
        if len(values) == 1:
            ax.set_yticks([])
    ax.set_title(name, fontsize=9)
    return ax


def _dimensions(where: Where, layer: str, kind: str) -> tuple[str, str]:
    """What the first two dimensions of a convolution's weight count."""
    module = dict(where.posterior.snapshots[0].module.named_modules()).get(layer)
    group = " of the group" * (getattr(module, "groups", 1) > 1)
    transposed = "Transpose" in kind  # its first index is the input
    return ("input channel", f"filter{group}") if transposed else ("filter", f"input channel{group}")


def _weights(table: Table, of: str) -> tuple[str, np.ndarray]:
    """The largest parameter of a layer, and its values in their shape; a vector as a matrix of one row."""
    counts = Counter(table["parameter"])
    name = max(counts, key=lambda key: counts[key])
    mine = np.flatnonzero([other == name for other in table["parameter"]])
    index = np.array([table["index"][i] for i in mine])
    placed = np.full(index.max(0) + 1, np.nan)
    placed[tuple(index.T)] = canvas.numbers(table[of])[mine]
    return name, placed.reshape(1, -1) if placed.ndim == 1 else placed


def _image(
    where: Where, layer: str, parameter: str, values: np.ndarray, shape: Sequence[int] | None
) -> tuple[int, ...] | None:
    """The shape of the image that a row of the matrix reads; None if it reads none."""
    if shape is not None:
        if len(shape) not in (2, 3) or math.prod(shape) != values.shape[1]:
            raise BadOption(
                f"shape={tuple(shape)}: a unit of {layer!r} has {values.shape[1]} weights, "
                "which must match (height, width) or (channels, height, width)."
            )
        return tuple(shape)
    seen = input_shape(where.posterior.snapshots[0], parameter, where.inputs)
    return seen if seen is None or len(seen) == 2 or seen[-1] > CHANNELS or seen[0] <= CHANNELS else None


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
    finer = max(1, 8 // max(tiles.shape[2:]))  # keeps the lines between tiles thin
    tiles = tiles.repeat(finer, 2).repeat(finer, 3)
    rows, columns, tall, wide = tiles.shape
    canvas.heat(ax, _mosaic(tiles), label, signed, "equal")
    canvas.tidy(ax, across, down)
    for axis, size, count, by in ((ax.yaxis, tall, rows, step), (ax.xaxis, wide, columns if step == 1 else 0, 1)):
        shown = range(0, count, max(1, -(-count // 13)))
        axis.set_ticks([(size + 1) * i + (size - 1) / 2 for i in shown], [str(i * by) for i in shown])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=canvas.SMALL)


def _mosaic(tiles: np.ndarray) -> np.ndarray:
    """[rows, columns, height, width] next to each other, with white lines between them."""
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
    figure, grid = canvas.panels(ax, 2, 1, sharex=True, height_ratios=(3, 2))
    (upper,), (lower,) = grid
    places = np.arange(len(top))
    if shared:
        upper.bar(places, canvas.numbers(top["variance_share"]), 0.8, color=canvas.PALETTE[0], label="posterior")
        prior = canvas.numbers(top["prior_share"])
        upper.hlines(prior, places - 0.4, places + 0.4, color="black", linewidth=1.2, label="prior alone")
        upper.legend(frameon=False, fontsize=8)
        lower.plot(
            places, canvas.numbers(top["explained"]), "s", color=canvas.PALETTE[3], markersize=3.5, label="explained"
        )
    else:
        upper.bar(places, canvas.numbers(top["std"]), 0.8, color=canvas.PALETTE[0])
    lower.plot(
        places, canvas.numbers(top["identified"]), "o", color=canvas.PALETTE[2], markersize=3.5, label="identified"
    )
    lower.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 0.97), borderpad=0)
    part = f"{len(top)} of {len(table)} units" if len(top) < len(table) else f"all {len(table)} units"
    kind = table.note.removeprefix("a unit is a ")
    canvas.tidy(
        upper, y="share of the network's\noutput variance" if shared else "posterior standard\ndeviation", grid="y"
    )
    upper.set_title(f"{part} of {layer}, largest first", fontsize=9)
    canvas.tidy(lower, f"unit ({kind})" if kind else "unit", "reduction of the\nprior variance", grid="y")
    canvas.name_columns(lower, top["unit"])
    return figure


def magnitude(where: Where, layer: str | None = None, ax: Axes | None = None) -> Axes:
    """Magnitude of each weight against its standard deviation; ρ is Spearman's, from ``where.magnitude``.

    A density for one layer, or some weights of each layer. Weights of exactly 0 are omitted.
    """
    fresh = ax is None
    ax = canvas.single(ax, (6.0, canvas.grid_height(len(where.layers)) if layer is None else 4.0))
    rho = dict(zip(where.magnitude["name"], where.magnitude["rho_std"], strict=True))
    names = [row.name for row in where.layers]
    if layer is not None:
        one_of(layer, names, "layer")
        size, std = _pairs(where, layer)
        image = ax.hexbin(size, std, xscale="log", yscale="log", gridsize=45, mincnt=1, cmap=canvas.MAP, bins="log")
        canvas.colour_bar(ax, image, "number of weights")
        ax.set_title(f"{layer} (ρ = {rho[layer]:.2f}; dashed: |w| = standard deviation)", fontsize=9)
    else:
        for name, colour in zip(names, canvas.layer_colours(len(names)), strict=True):
            size, std = (canvas.thinned(v, POINTS) for v in _pairs(where, name))
            label = f"{canvas.short(name)} (ρ = {rho[name]:.2f})"
            ax.plot(size, std, ".", color=colour, markersize=4, alpha=0.6, markeredgewidth=0, label=label)
        ax.set(xscale="log", yscale="log")
    x, y = ax.get_xlim(), ax.get_ylim()
    ends = (min(x[0], y[0]), max(x[1], y[1]))
    ax.plot(ends, ends, "--", color=canvas.GREY, linewidth=0.9, label="|w| = std")
    ax.set(xlim=x, ylim=y)
    canvas.log_axis(ax, "x")
    canvas.log_axis(ax, "y")
    canvas.tidy(ax, "magnitude of the weight, |w|", canvas.UNITS["std"])
    if layer is None:
        canvas.legend(ax, len(names), fresh, "layer")
        _solid(ax.figure.legends if fresh and ax.figure is not None else [ax.get_legend()])
    return ax


def _pairs(where: Where, layer: str) -> tuple[np.ndarray, np.ndarray]:
    table = where.weights(layer)
    size, std = np.abs(canvas.numbers(table["weight"])), canvas.numbers(table["std"])
    kept = (size > 0) & (std > 0)
    return size[kept], std[kept]


def _solid(legends: Sequence[Any]) -> None:
    for shown in legends:
        for handle in shown.legend_handles:
            handle.set(alpha=1)
            if handle.get_marker() == ".":
                handle.set(markersize=8)


def curvature(maps: Mapping[str, Tensor], ax: Axes | None = None) -> Figure:
    """The matrices of ``curvature_maps``: Kronecker factors G and A, a block H, or its diagonal.

    Colours are by the root of the magnitude, so that small entries are visible. Shows the first of several groups.
    """
    if not maps:
        raise BadOption("curvature needs at least one matrix: whence.where.spectrum.curvature_maps(posterior, layer).")
    wide = 6.0 if len(maps) > 1 else 4.6
    figure, (axes,) = canvas.panels(ax, 1, len(maps), (wide, 3.0 if len(maps) > 1 else 4.0))
    words = {"G": "output", "A": "input", "H": "weight"}
    for panel, (name, found) in zip(axes, maps.items(), strict=True):
        values = canvas.numbers(found)
        if values.ndim == 1:
            panel.plot(np.arange(len(values)), values, ".", color=canvas.PALETTE[0], markersize=3)
            panel.set_yscale("log")
            canvas.tidy(panel, "weight", "diagonal of the curvature (precision)", name, "y")
            continue
        groups = f" (group 1 of {len(values)})" if values.ndim == 3 and len(values) > 1 else ""
        _curvature_matrix(panel, values[0] if values.ndim == 3 else values)
        canvas.tidy(panel, words.get(name, ""), words.get(name, ""), f"{name}{groups}")
        panel.spines[:].set_visible(False)
    return figure


def _curvature_matrix(ax: Axes, values: np.ndarray) -> None:
    size, step = len(values), max(1, -(-len(values) // LARGEST_CURVATURE))
    limit = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    scale = need("matplotlib.colors", "report").FuncNorm((_root, _square), -limit, limit)
    extent = (-0.5, size - 0.5, size - 0.5, -0.5)
    image = ax.imshow(values[::step, ::step], cmap=canvas.SIGNED, norm=scale, interpolation="nearest", extent=extent)
    canvas.colour_bar(ax, image, "entry (colours by its root)", [part * limit for part in (-1, -0.25, 0, 0.25, 1)])
    canvas.whole_ticks(ax)
    ax.tick_params(length=0)


def _root(values: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.sqrt(np.abs(values))


def _square(values: np.ndarray) -> np.ndarray:
    return np.sign(values) * np.square(values)
