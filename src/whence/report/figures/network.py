"""Figures of a whole network: its covariance as blocks, and one input's features through its layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import BadOption, need
from whence.report.figures import canvas
from whence.where.pictures import FeatureMap, NetworkPicture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHRINK = 0.28  # sides of blocks grow with this power of their number of weights
LEAST = 0.35  # of the largest side, for the smallest block
FACTORED = 4  # layers whose factors are shown
TICKS = (-1, -0.25, 0, 0.25, 1)
FEW = 16  # units that fit into one column
SHOWN = 7  # layers of a network in one row of feature maps
WORDS = {"covariance": "correlation of weights under the posterior", "curvature": "curvature, H / √(diag · diag)"}


def network(picture: NetworkPicture, ax: Axes | None = None) -> Figure:
    """The matrix over all weights as blocks along the diagonal, and Kronecker blocks as products of two matrices.

    The side of a block grows with its number of weights, much more slowly. White is zero: by construction between
    layers, unless the structure correlates them.
    """
    factored = [b for b in picture.blocks if b.factors is not None]
    chosen = [factored[i] for i in _some(len(factored), FACTORED)]
    columns = 2 if chosen else 1
    size = (8.6 if chosen else 5.4, 5.0)
    options = {"width_ratios": (5, 3)} if chosen else {}
    figure, (axes,) = canvas.panels(ax, 1, columns, size, **options)
    image = _blocks(axes[0], picture)
    if chosen:
        _factors(axes[1], chosen)
    bar = figure.colorbar(image, ax=axes[0], location="bottom", shrink=0.7, pad=0.02, aspect=40, ticks=TICKS)
    bar.ax.set_xticks(TICKS, [f"{tick:g}".replace("-", "−") for tick in TICKS])
    bar.set_label(WORDS[picture.of], fontsize=8)
    bar.ax.tick_params(labelsize=canvas.SMALL)
    bar.outline.set_visible(False)  # type: ignore[operator]
    return figure


def _rooted() -> Any:
    """Colours by the root of the size, so that weak correlations are seen."""
    colours = need("matplotlib.colors", "report")
    return colours.FuncNorm(
        (lambda v: np.sign(v) * np.sqrt(np.abs(v)), lambda v: np.sign(v) * np.square(v)), vmin=-1, vmax=1
    )


def _some(count: int, most: int) -> list[int]:
    """First, last and some between."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))}) if count else []


def _blocks(ax: Axes, picture: NetworkPicture) -> Any:
    weights = np.array([float(b.parameters) for b in picture.blocks]) ** SHRINK
    sides = np.maximum(weights / weights.max(), LEAST)
    ends = [0.0, *np.cumsum(sides).tolist()]
    style: dict[str, Any] = {"cmap": canvas.SIGNED, "norm": _rooted(), "interpolation": "nearest"}
    image = None
    if picture.across is not None:
        image = _across(ax, picture, ends, style)
    for block, start, end in zip(picture.blocks, ends[:-1], ends[1:], strict=True):
        if picture.across is None:
            image = ax.imshow(canvas.numbers(block.matrix), extent=(start, end, end, start), **style)
        ax.plot([start, end, end, start, start], [start, start, end, end, start], color="black", linewidth=0.8)
    size = canvas.SMALL if len(picture.blocks) > 12 else 8.0
    middles = [(start + end) / 2 for start, end in pairwise(ends)]
    names = [f"{canvas.short(b.name)} ({b.parameters:,})" for b in picture.blocks]
    ax.set_yticks(middles, names, fontsize=size if len(names) < 30 else 5.0)
    ax.set_xticks([])
    edge = 0.01 * ends[-1]
    ax.set_xlim(-edge, ends[-1] + edge)
    ax.set_ylim(ends[-1] + edge, -edge)
    ax.set_aspect("equal")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(f"{picture.of} of {sum(b.parameters for b in picture.blocks):,} weights", fontsize=canvas.TEXT)
    return image


def _across(ax: Axes, picture: NetworkPicture, ends: list[float], style: dict[str, Any]) -> Any:
    """All pairs of layers."""
    assert picture.across is not None
    values, image = canvas.numbers(picture.across), None
    counts = np.concatenate([[0], np.cumsum([len(b.matrix) for b in picture.blocks])])
    for i, j in np.ndindex(len(picture.blocks), len(picture.blocks)):
        part = values[counts[i] : counts[i + 1], counts[j] : counts[j + 1]]
        image = ax.imshow(part, extent=(ends[j], ends[j + 1], ends[i + 1], ends[i]), **style)
    return image


def _factors(ax: Axes, blocks: Sequence[Any]) -> None:
    """G ⊗ A of some layers, one under another."""
    ax.set_axis_off()
    ax.set_title("the curvature of a layer is G ⊗ A", fontsize=canvas.TEXT)
    height = 1.0 / len(blocks)
    for i, block in enumerate(blocks):
        low = 1.0 - (i + 1) * height
        assert block.factors is not None
        for left, factor, name in zip((0.16, 0.62), block.factors, ("G", "A"), strict=True):
            inner = ax.inset_axes((left, low + 0.14 * height, 0.36, 0.70 * height))
            inner.imshow(canvas.numbers(factor), cmap=canvas.SIGNED, norm=_rooted(), interpolation="nearest")
            inner.set_xticks([])
            inner.set_yticks([])
            inner.set_xlabel(name, fontsize=8, labelpad=2)
        ax.text(0.565, low + 0.5 * height, "⊗", ha="center", va="center", fontsize=14)
        ax.text(0.12, low + 0.5 * height, canvas.short(block.name), ha="center", va="center", fontsize=8, rotation=90)


# One input


def feature_maps(maps: Sequence[FeatureMap], image: Any = None, ax: Axes | None = None) -> Figure:
    """One input through the layers: the strongest channel of each above its standard deviation under draws.

    Layers without positions are strips of their units. ``image`` [C, H, W] is drawn first. Of many layers some are
    shown, the first and the last among them.
    """
    if not maps:
        raise BadOption("there is no feature map to draw: pass feature_maps(posterior, x).")
    shown = [maps[i] for i in _some(len(maps), SHOWN)]
    first = 0 if image is None else 1
    size = (1.35 * (len(shown) + first) + 0.6, 3.3)
    figure, (top, bottom) = canvas.panels(ax, 2, len(shown) + first, size)
    if image is not None:
        _picture(top[0], canvas.numbers(image))
        top[0].set_title("input", fontsize=8)
        bottom[0].set_axis_off()
    for found, above, below in zip(shown, top[first:], bottom[first:], strict=True):
        mean, std, label = _strongest(found)
        square = found.mean.dim() != 2
        for axis, values, colours in ((above, mean, "gray"), (below, std, canvas.MAP)):
            drawn = axis.imshow(values, cmap=colours, interpolation="nearest", aspect="auto")
            axis.set_box_aspect(2.4 if values.shape[1] == 1 else values.shape[0] / values.shape[1] if square else 1)
            axis.set_xticks([])
            axis.set_yticks([])
            bar = figure.colorbar(drawn, ax=axis, location="bottom", shrink=0.85, pad=0.03, aspect=12)
            bar.ax.tick_params(labelsize=6, length=2)
            bar.locator = _two_ticks()
            bar.update_ticks()
            bar.outline.set_visible(False)  # type: ignore[operator]
        above.set_title(f"{canvas.short(found.name)}\n{label}", fontsize=8)
    top[first].set_ylabel("mean", fontsize=canvas.TEXT)
    bottom[first].set_ylabel("standard\ndeviation", fontsize=canvas.TEXT)
    return figure


def _two_ticks() -> Any:
    return need("matplotlib.ticker", "report").MaxNLocator(2)


def _strongest(found: FeatureMap) -> tuple[np.ndarray, np.ndarray, str]:
    """The channel with the largest activation, as a map; positions by features; units as tiles, few as a column."""
    mean, std = canvas.numbers(found.mean), canvas.numbers(found.std)
    if mean.ndim >= 3:
        channel = int(np.abs(mean.reshape(len(mean), -1)).max(1).argmax())
        return mean[channel].reshape(-1, mean.shape[-1]), std[channel].reshape(-1, mean.shape[-1]), f"channel {channel}"
    if mean.ndim == 2:
        return mean, std, "positions × features"
    return _tiled(np.atleast_1d(mean)), _tiled(np.atleast_1d(std)), f"{mean.size} units"


def _tiled(values: np.ndarray) -> np.ndarray:
    """Row by row in a rectangle, empty places at its end; few values in one column."""
    if len(values) <= FEW:
        return values[:, None]
    wide = math.ceil(math.sqrt(len(values)))
    tall = math.ceil(len(values) / wide)
    return np.concatenate([values, np.full(tall * wide - len(values), np.nan)]).reshape(tall, wide)


def _picture(ax: Axes, values: np.ndarray) -> None:
    shown = values if values.ndim == 2 else values.mean(0) if len(values) != 3 else values.transpose(1, 2, 0)
    low, high = float(shown.min()), float(shown.max())
    ax.imshow((shown - low) / ((high - low) or 1.0), cmap="gray")
    ax.set_axis_off()
