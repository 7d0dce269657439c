"""Pictures of the layer table: how uncertainty is spread over the layers of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import BadOption, one_of
from whence.report.figures.canvas import (
    GREY,
    PALETTE,
    UNITS,
    height,
    layer_colours,
    legend,
    log_axis,
    name_rows,
    numbers,
    ordered,
    panels,
    short,
    single,
    thinned,
    tidy,
)
from whence.where.distribution import Quantity
from whence.where.table import Where
from whence.where.tabular import Table, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 200_000  # weights of a layer that are counted
BINS = 80
MARKS = {
    "std": "root mean square",
    "identified": "mean",
    "signal_to_noise": "root mean square",
    "curvature": "mean",
    "relative_curvature": "mean",
}


def distributions(where: Where, of: Quantity = "std", ax: Axes | None = None) -> Axes:
    """How a quantity is spread over the weights of each layer, the first layer on top; the mark is the table's value.

    Heights go with the square root of the count, up to the layer's fullest bin. Outliers are drawn at the edge.
    """
    one_of(of, MARKS, "of")
    ax = single(ax, (6.0, height(len(where.layers))))
    values = [thinned(numbers(where.weights(row.name)[of]), MOST) for row in where.layers]
    borders = _borders(values, [getattr(row, of) for row in where.layers], of != "identified")
    for place, (row, found) in enumerate(zip(where.layers, values, strict=True)):
        counts, _ = np.histogram(found.clip(borders[0], borders[-1]), borders)
        top = place + 0.4 - 0.85 * np.sqrt(counts / max(counts.max(), 1))
        ax.stairs(top, borders, baseline=place + 0.4, fill=True, color=PALETTE[5], linewidth=0)
        ax.stairs(top, borders, baseline=None, color=PALETTE[0], linewidth=0.8)
        mark = MARKS[of] if place == 0 else None
        ax.plot([getattr(row, of)] * 2, [place + 0.4, place - 0.45], color="black", linewidth=1.4, label=mark)
    ax.set_xlim(borders[0], borders[-1])
    if of != "identified":
        log_axis(ax, "x")
    name_rows(ax, [row.name for row in where.layers])
    ax.set_ylim(len(values) - 0.4, -0.6)
    tidy(ax, UNITS[of], "layer", f"weights of each layer (height: √count; mark: {MARKS[of]})", "x")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return ax


def _borders(values: list[np.ndarray], marks: list[float], log: bool) -> np.ndarray:
    """Of bins, the same for all layers."""
    shown = [v[np.isfinite(v) & (v > 0)] if log else v[np.isfinite(v)] for v in values]
    ends = np.array([np.quantile(v, [0.01, 0.999]) for v in shown if len(v)])
    if not len(ends):
        return np.logspace(-1, 1, BINS + 1) if log else np.linspace(0, 1, BINS + 1)
    low, high = float(ends[:, 0].min()), float(ends[:, 1].max())
    if not log:
        return np.linspace(min(0.0, low), max(1.0, high), BINS + 1)
    inside = [mark for mark in marks if np.isfinite(mark) and mark > 0]
    low, high = min([low, *inside]), max([high, *inside])
    return np.geomspace(low / 1.15, high * 1.15, BINS + 1)


def shares(where: Where, ax: Axes | None = None) -> Figure:
    """Along the network: the part of the output variance that each layer causes, beside the prior's, and explained."""
    _need_shares(where)
    names = [row.name for row in where.layers]
    options = {"sharey": True, "width_ratios": (3, 2)}
    figure, (axes,) = panels(ax, 1, 2, (6.0, height(len(names))), **options)
    rows = np.arange(len(names))
    posterior, prior = (numbers([getattr(r, c) for r in where.layers]) for c in ("variance_share", "prior_share"))
    axes[0].barh(rows - 0.2, posterior, 0.4, color=PALETTE[0], label="posterior")
    axes[0].barh(rows + 0.2, prior, 0.4, color="#BBBBBB", label="prior alone")
    _explained(axes[1], rows, numbers([row.explained for row in where.layers]), PALETTE[0], True)
    _finish(axes, names)
    return figure


def compare_shares(wheres: Mapping[str, Where], ax: Axes | None = None) -> Figure:
    """The same for several sets of inputs; a tick is the share under the prior alone."""
    if not wheres:
        raise BadOption("compare_shares needs at least one table: {'test': posterior.where(x), …}.")
    for where in wheres.values():
        _need_shares(where)
    names = ordered(row.name for where in wheres.values() for row in where.layers)
    size = (6.0, height(len(names) * max(1, len(wheres) - 1)))
    figure, (axes,) = panels(ax, 1, 2, size, sharey=True, width_ratios=(3, 2))
    thick = 0.8 / len(wheres)
    for i, (what, where) in enumerate(wheres.items()):
        colour = layer_colours(len(wheres))[i]
        rows = np.array([names.index(r.name) for r in where.layers]) - 0.4 + thick * (i + 0.5)
        posterior, prior = (numbers([getattr(r, c) for r in where.layers]) for c in ("variance_share", "prior_share"))
        axes[0].barh(rows, posterior, thick * 0.95, color=colour, label=what)
        mark = "prior alone" if i == len(wheres) - 1 else ""
        axes[0].vlines(prior, rows - thick / 2, rows + thick / 2, color="black", linewidth=1.2, label=mark)
        _explained(axes[1], rows, numbers([r.explained for r in where.layers]), colour, len(rows) * len(wheres) <= 24)
    _finish(axes, names)
    return figure


def _need_shares(where: Where) -> None:
    if any(row.variance_share is None for row in where.layers):
        raise BadOption("shares are of inputs: ask posterior.where(x).")


def _explained(ax: Axes, rows: np.ndarray, values: np.ndarray, colour: str, written: bool) -> None:
    ax.hlines(rows, 0, values, color=colour, linewidth=1)
    ax.plot(values, rows, "o", color=colour, markersize=4)
    for row, value in zip(rows, values, strict=True):
        if written and np.isfinite(value):
            ax.annotate(number(float(value)), (value, row), (5, 0), textcoords="offset points", va="center", fontsize=7)


def _finish(axes: list[Axes], names: list[str]) -> None:
    tidy(axes[0], UNITS["variance_share"], grid="x")
    name_rows(axes[0], names)
    tidy(axes[1], grid="x")
    axes[1].set_xlabel("explained\n(1 − variance / prior variance)", fontsize=8)
    axes[1].set_xlim(min(0.0, axes[1].get_xlim()[0]), max(1.3, axes[1].get_xlim()[1]))
    axes[1].set_xticks([0, 0.5, 1])
    for ax in axes:
        ax.tick_params(axis="y", length=0)
    _above(axes[0])


def _above(ax: Axes) -> None:
    """The legend over the panel; the prior last."""
    found = sorted(zip(*ax.get_legend_handles_labels(), strict=True), key=lambda pair: pair[1] == "prior alone")
    style: dict[str, Any] = {"loc": "lower left", "frameon": False, "fontsize": 8, "columnspacing": 1.0}
    ax.legend([h for h, _ in found], [label for _, label in found], bbox_to_anchor=(0, 1.0), ncols=4, **style)


def sensitivity(table: Table, ax: Axes | None = None) -> Figure:
    """Shares and explained of each layer when the prior precision is multiplied by a factor."""
    names = ordered(table["name"])
    figure, (axes,) = panels(ax, 1, 2, (6.0, height(len(names), 3.4)))
    for panel, column in zip(axes, ("variance_share", "explained"), strict=True):
        for name, colour in zip(names, layer_colours(len(names)), strict=True):
            mine = [row for row in table.rows() if row["name"] == name]
            factors, values = [row["factor"] for row in mine], [row[column] for row in mine]
            panel.plot(factors, values, "o-", color=colour, label=short(name), markersize=3.5, linewidth=1.3)
        panel.set_xscale("log")
        if len(set(table["factor"])) <= 6:
            panel.set_xticks(ordered(table["factor"]), [f"{factor:g}" for factor in ordered(table["factor"])])
            panel.set_xticks([], minor=True)
        tidy(panel, "prior precision, times", UNITS[column].replace(" (", "\n("), grid="y")
    legend(axes[1], len(names), ax is None, "layer")
    return figure


def activations(table: Table, ax: Axes | None = None) -> Figure:
    """How much each layer's output spreads under draws of the weights, and over inputs; and the ratio of the two."""
    names = list(table["name"])
    figure, (axes,) = panels(ax, 1, 2, (6.0, height(len(names))), sharey=True, width_ratios=(3, 2))
    rows, ratio = np.arange(len(names)), numbers(table["ratio"])
    drawn, over = numbers(table["spread"]), numbers(table["over_inputs"])
    axes[0].hlines(rows, drawn, over, color="#BBBBBB", linewidth=1.5)
    axes[0].plot(drawn, rows, "o", color=PALETTE[3], markersize=5, label="under draws of the weights")
    axes[0].plot(over, rows, "D", color=PALETTE[0], markersize=4, label="over inputs")
    axes[1].axvline(1, color=GREY, linewidth=0.9, linestyle="--")
    axes[1].plot(ratio, rows, "o", color=PALETTE[3], markersize=5)
    for panel in axes:
        log_axis(panel, "x")
        tidy(panel, grid="x")
        panel.tick_params(axis="y", length=0)
    name_rows(axes[0], names)
    axes[0].set_xlabel("spread of the layer's output\n(standard deviation, its own units)", fontsize=9)
    axes[1].set_xlabel("ratio\n(under draws / over inputs)", fontsize=8)
    _above(axes[0])
    return figure
