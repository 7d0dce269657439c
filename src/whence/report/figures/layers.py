"""Figures of the layer table: how uncertainty is distributed over the layers of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import BadOption, NotDefined, one_of
from whence.report.figures import canvas
from whence.tables import Table, number
from whence.where.weights import Quantity
from whence.where.where import Where

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 200_000  # largest number of weights per layer in a histogram
BINS = 80
MARKS = {
    "std": "root mean square",
    "identified": "mean",
    "signal_to_noise": "root mean square",
    "curvature": "mean",
    "relative_curvature": "mean",
}


def distributions(where: Where, of: Quantity = "std", ax: Axes | None = None) -> Axes:
    """Distribution of a quantity over the weights of each layer, the first layer on top; the mark is the table's value.

    Heights are proportional to the square root of the count, relative to the largest bin. Outliers are at the edge.
    """
    one_of(of, MARKS, "of")
    ax = canvas.single(ax, (6.0, canvas.grid_height(len(where.layers))))
    values = [canvas.thinned(canvas.numbers(where.weights(row.name)[of]), MOST) for row in where.layers]
    borders = _borders(values, [getattr(row, of) for row in where.layers], of != "identified")
    for place, (row, found) in enumerate(zip(where.layers, values, strict=True)):
        counts, _ = np.histogram(found.clip(borders[0], borders[-1]), borders)
        top = place + 0.4 - 0.85 * np.sqrt(counts / max(counts.max(), 1))
        ax.stairs(top, borders, baseline=place + 0.4, fill=True, color=canvas.PALETTE[5], linewidth=0)
        ax.stairs(top, borders, baseline=None, color=canvas.PALETTE[0], linewidth=0.8)
        mark = MARKS[of] if place == 0 else None
        ax.plot([getattr(row, of)] * 2, [place + 0.4, place - 0.45], color="black", linewidth=1.4, label=mark)
    ax.set_xlim(borders[0], borders[-1])
    if of != "identified":
        canvas.log_axis(ax, "x")
    canvas.name_rows(ax, [row.name for row in where.layers])
    ax.set_ylim(len(values) - 0.4, -0.6)
    canvas.tidy(ax, canvas.UNITS[of], "layer", f"weights of each layer (height: √count; mark: {MARKS[of]})", "x")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return ax


def _borders(values: list[np.ndarray], marks: list[float], log: bool) -> np.ndarray:
    """Edges of the bins, the same for all layers."""
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
    """Share of the output variance of each layer, its share under the prior alone, and explained."""
    _need_shares(where)
    names = [row.name for row in where.layers]
    options = {"sharey": True, "width_ratios": (3, 2)}
    figure, (axes,) = canvas.panels(ax, 1, 2, (6.0, canvas.grid_height(len(names))), **options)
    rows = np.arange(len(names))
    posterior, prior = (
        canvas.numbers([getattr(r, c) for r in where.layers]) for c in ("variance_share", "prior_share")
    )
    error = canvas.numbers([row.variance_share_error for row in where.layers])
    axes[0].barh(rows - 0.2, posterior, 0.4, color=canvas.PALETTE[0], label="posterior")
    if np.isfinite(error).any():
        axes[0].errorbar(posterior, rows - 0.2, xerr=2 * error, fmt="none", color="black", elinewidth=1)
    if np.isfinite(prior).any():
        axes[0].barh(rows + 0.2, prior, 0.4, color="#BBBBBB", label="prior alone")
    _explained(axes[1], rows, canvas.numbers([row.explained for row in where.layers]), canvas.PALETTE[0], True)
    _finish(axes, names)
    return figure


def compare_shares(wheres: Mapping[str, Where], ax: Axes | None = None) -> Figure:
    """Shares for several sets of inputs; ticks are shares under the prior alone."""
    if not wheres:
        raise BadOption("compare_shares needs at least one table: {'test': posterior.where(x), …}.")
    for where in wheres.values():
        _need_shares(where)
    names = canvas.ordered(row.name for where in wheres.values() for row in where.layers)
    size = (6.0, canvas.grid_height(len(names) * max(1, len(wheres) - 1)))
    figure, (axes,) = canvas.panels(ax, 1, 2, size, sharey=True, width_ratios=(3, 2))
    thick = 0.8 / len(wheres)
    for i, (what, where) in enumerate(wheres.items()):
        colour = canvas.layer_colours(len(wheres))[i]
        rows = np.array([names.index(r.name) for r in where.layers]) - 0.4 + thick * (i + 0.5)
        posterior, prior = (
            canvas.numbers([getattr(r, c) for r in where.layers]) for c in ("variance_share", "prior_share")
        )
        axes[0].barh(rows, posterior, thick * 0.95, color=colour, label=what)
        mark = "prior alone" if i == len(wheres) - 1 else ""
        axes[0].vlines(prior, rows - thick / 2, rows + thick / 2, color="black", linewidth=1.2, label=mark)
        _explained(
            axes[1], rows, canvas.numbers([r.explained for r in where.layers]), colour, len(rows) * len(wheres) <= 24
        )
    _finish(axes, names)
    return figure


def _need_shares(where: Where) -> None:
    if all(row.variance_share is not None for row in where.layers):
        return
    if where.inputs is None:
        raise BadOption("shares need inputs: call posterior.where(x).")
    raise NotDefined(f"there are no shares of layers to draw: {where.why_not}")


def _explained(ax: Axes, rows: np.ndarray, values: np.ndarray, colour: str, written: bool) -> None:
    ax.hlines(rows, 0, values, color=colour, linewidth=1)
    ax.plot(values, rows, "o", color=colour, markersize=4)
    for row, value in zip(rows, values, strict=True):
        if written and np.isfinite(value):
            ax.annotate(number(float(value)), (value, row), (5, 0), textcoords="offset points", va="center", fontsize=7)


def _finish(axes: list[Axes], names: list[str]) -> None:
    canvas.tidy(axes[0], canvas.UNITS["variance_share"], grid="x")
    canvas.name_rows(axes[0], names)
    canvas.tidy(axes[1], grid="x")
    axes[1].set_xlabel("explained\n(1 − variance / prior variance)", fontsize=8)
    axes[1].set_xlim(min(0.0, axes[1].get_xlim()[0]), max(1.3, axes[1].get_xlim()[1]))
    axes[1].set_xticks([0, 0.5, 1])
    for ax in axes:
        ax.tick_params(axis="y", length=0)
    _above(axes[0])


def _above(ax: Axes) -> None:
    """Draw the legend above the panel, with the prior last."""
    found = sorted(zip(*ax.get_legend_handles_labels(), strict=True), key=lambda pair: pair[1] == "prior alone")
    style: dict[str, Any] = {"loc": "lower left", "frameon": False, "fontsize": 8, "columnspacing": 1.0}
    ax.legend([h for h, _ in found], [label for _, label in found], bbox_to_anchor=(0, 1.0), ncols=4, **style)


def sensitivity(table: Table, ax: Axes | None = None) -> Figure:
    """Shares and explained of each layer when the prior precision is multiplied by a factor."""
    names = canvas.ordered(table["name"])
    figure, (axes,) = canvas.panels(ax, 1, 2, (6.0, canvas.grid_height(len(names), 3.4)))
    for panel, column in zip(axes, ("variance_share", "explained"), strict=True):
        for name, colour in zip(names, canvas.layer_colours(len(names)), strict=True):
            mine = [row for row in table.rows() if row["name"] == name]
            factors, values = [row["factor"] for row in mine], [row[column] for row in mine]
            panel.plot(factors, values, "o-", color=colour, label=canvas.short(name), markersize=3.5, linewidth=1.3)
        panel.set_xscale("log")
        if len(set(table["factor"])) <= 6:
            panel.set_xticks(
                canvas.ordered(table["factor"]), [f"{factor:g}" for factor in canvas.ordered(table["factor"])]
            )
            panel.set_xticks([], minor=True)
        canvas.tidy(panel, "prior precision, times", canvas.UNITS[column].replace(" (", "\n("), grid="y")
    canvas.legend(axes[1], len(names), ax is None, "layer")
    return figure


def activations(table: Table, ax: Axes | None = None) -> Figure:
    """Variation of each layer's output under draws of the weights and over inputs, and their ratio."""
    names = list(table["name"])
    figure, (axes,) = canvas.panels(ax, 1, 2, (6.0, canvas.grid_height(len(names))), sharey=True, width_ratios=(3, 2))
    rows, ratio = np.arange(len(names)), canvas.numbers(table["ratio"])
    drawn, over = canvas.numbers(table["spread"]), canvas.numbers(table["over_inputs"])
    axes[0].hlines(rows, drawn, over, color="#BBBBBB", linewidth=1.5)
    axes[0].plot(drawn, rows, "o", color=canvas.PALETTE[3], markersize=5, label="under draws of the weights")
    axes[0].plot(over, rows, "D", color=canvas.PALETTE[0], markersize=4, label="over inputs")
    axes[1].axvline(1, color=canvas.GREY, linewidth=0.9, linestyle="--")
    axes[1].plot(ratio, rows, "o", color=canvas.PALETTE[3], markersize=5)
    for panel in axes:
        canvas.log_axis(panel, "x")
        canvas.tidy(panel, grid="x")
        panel.tick_params(axis="y", length=0)
    canvas.name_rows(axes[0], names)
    axes[0].set_xlabel("spread of the layer's output\n(standard deviation, its own units)", fontsize=9)
    axes[1].set_xlabel("ratio\n(under draws / over inputs)", fontsize=8)
    _above(axes[0])
    return figure


def classes(table: Table, ax: Axes | None = None) -> Figure:
    """Explained and share of each layer for the inputs of each class, from ``where.by_class()``."""
    names, labels = canvas.ordered(table["name"]), canvas.ordered(table["class"])
    figure, (axes,) = canvas.panels(
        ax, 1, 2, (6.0 if len(labels) < 16 else 9.0, canvas.grid_height(len(names), 3.2)), sharey=True
    )
    for panel, column in zip(axes, ("explained", "variance_share"), strict=True):
        values = np.full((len(names), len(labels)), np.nan)
        for row in table.rows():
            values[names.index(row["name"]), labels.index(row["class"])] = row[column]
        canvas.heat(panel, values, canvas.UNITS[column])
        canvas.tidy(panel, "class", title=column.replace("_", " "))
        panel.spines[:].set_visible(False)
        canvas.name_columns(panel, labels)
    canvas.name_rows(axes[0], names)
    axes[0].set_ylabel("layer", fontsize=9)
    return figure
