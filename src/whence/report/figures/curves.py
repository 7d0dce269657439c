"""Curves: over training, along the spectrum, along directions of weight space, over pruning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from whence.errors import BadOption, one_of
from whence.report.figures.canvas import (
    GREY,
    PALETTE,
    height,
    layer_colours,
    legend,
    log_axis,
    numbers,
    ordered,
    panels,
    short,
    single,
    tidy,
)
from whence.where.prune_curve import PruneCurve
from whence.where.table import Where
from whence.where.tabular import Table
from whence.where.track import Track

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP*"


def track(track: Track, ax: Axes | None = None) -> Figure:
    """Each layer while the network was trained, and what the probe's uncertainty is made of."""
    if not any(record.layers for record in track.records):
        raise BadOption("the track holds no record of a layer yet: call step() in the training loop.")
    table = track.layers
    names = ordered(table["name"])
    figure, grid = panels(ax, 2, 2, (7.0, height(len(names), 4.6)), sharex=True)
    axes = [panel for line in grid for panel in line]
    for panel, column in zip(axes, ("std", "identified", "explained"), strict=False):
        for name, colour in zip(names, layer_colours(len(names)), strict=True):
            rows = [row for row in table.rows() if row["name"] == name]
            values = numbers([row.get(column) for row in rows])
            panel.plot([row["step"] for row in rows], values, color=colour, linewidth=1.3, label=short(name))
        tidy(panel, y="posterior std\nof the weights" if column == "std" else column, grid="y")
    log_axis(axes[0], "y")
    axes[0].tick_params(which="both", labelsize=8)
    _probe(axes[3], track)
    for panel in grid[1]:
        panel.set_xlabel("step", fontsize=9)
    legend(axes[0] if ax is None else axes[1], len(names), ax is None, "layer")
    return figure


def _probe(ax: Axes, track: Track) -> None:
    """Means over the probe; what the task does not have is not drawn."""
    nats = any(record.entropy is not None for record in track.records)
    for name, colour, style in (("aleatoric", PALETTE[0], "-"), ("epistemic", PALETTE[3], "--")):
        pairs = [(r.step, getattr(r, name)) for r in track.records if getattr(r, name) is not None]
        if pairs:
            ax.plot(*zip(*pairs, strict=True), style, color=colour, linewidth=1.5, label=name)
            ax.legend(frameon=False, fontsize=8)
    tidy(ax, y="on the probe (nats)" if nats else "on the probe (variance)", grid="y")


def spectrum(where: Where, ax: Axes | None = None) -> Axes:
    """Eigenvalues of the curvature of each layer; those above the prior precision are determined by the data.

    Eigenvalues of 0, and those far below the prior, are out of sight.
    """
    fresh, table = ax is None, where.spectrum
    names = ordered(table["name"])
    ax = single(ax, (6.0, height(len(names))))
    ranks, values = numbers(table["rank"]), numbers(table["curvature"])
    precisions = _precisions(where)
    for name, colour in zip(names, layer_colours(len(names)), strict=True):
        mine = np.array([other == name for other in table["name"]])
        ax.plot(ranks[mine], values[mine], color=colour, linewidth=1.5, label=short(name))
        if len(set(precisions.values())) > 1 and name in precisions:
            ax.axhline(precisions[name], color=colour, linewidth=0.9, linestyle=":")
    if len(set(precisions.values())) == 1:
        ax.axhline(next(iter(precisions.values())), color="black", linewidth=1, linestyle="--", label="prior precision")
    else:
        ax.plot([], [], ":", color=GREY, label="prior precision")
    ax.set(xscale="log", yscale="log")
    shown = values[values > 0]
    if len(shown):
        lowest = max(float(shown.min()), min(precisions.values()) * 1e-4)
        ax.set_ylim(min(lowest, min(precisions.values())) / 2, max(float(shown.max()), *precisions.values()) * 3)
    tidy(ax, "rank", "eigenvalue of the curvature (precision of a weight)", grid="y")
    legend(ax, len(names), fresh, "layer")
    return ax


def _precisions(where: Where) -> dict[str, float]:
    """Prior precision by layer."""
    prior = where.posterior.prior
    return {block.name: prior.of([block]).delta for block in where.posterior.blocks}


def slices(table: Table, ax: Axes | None = None) -> Figure:
    """The true loss along each direction beside the Gaussian's, both 0 at the trained weights; a row for each layer.

    λ is the curvature of the direction. The view ends at three times the Gaussian: a loss that leaves the panel is far
    from it.
    """
    names, kinds = ordered(table["name"]), ordered(table["direction"])
    size = (2.0 * len(kinds), max(2.6, 0.7 + 1.15 * len(names)))
    figure, grid = panels(ax, len(names), len(kinds), size, sharex=True)
    rows = list(table.rows())
    for name, line in zip(names, grid, strict=True):
        for kind, panel in zip(kinds, line, strict=True):
            mine = sorted((r for r in rows if (r["name"], r["direction"]) == (name, kind)), key=lambda r: r["step"])
            _slice(panel, mine)
            if mine:
                panel.set_title(f"{short(name)}, {kind} (λ = {mine[0]['curvature']:.2g})", fontsize=7.5, pad=3)
        line[0].set_ylabel("loss (nats)", fontsize=8)
    for panel in grid[-1]:
        panel.set_xlabel("posterior\nstandard deviations", fontsize=8)
    if ax is None:
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    else:
        grid[0][0].legend(frameon=False, fontsize=7)
    return figure


def _slice(ax: Axes, rows: list[dict[str, Any]]) -> None:
    steps = [row["step"] for row in rows]
    loss, gaussian = numbers([r["loss"] for r in rows]), numbers([r["gaussian"] for r in rows])
    ax.plot(steps, gaussian, "--", color=PALETTE[1], linewidth=1.6, label="Gaussian")
    ax.plot(steps, loss, "o-", color=PALETTE[0], linewidth=1.2, markersize=2.5, label="true loss")
    tidy(ax)
    ax.tick_params(labelsize=7)
    high = 3 * float(np.nanmax(gaussian, initial=0.0)) or 1.0
    seen = loss[np.isfinite(loss)]
    low, top = min(0.0, float(seen.min(initial=0.0))), float(seen.max(initial=0.0))
    high = min(high, max(top, high / 3))
    low = max(low, -high)
    ax.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))


def pruning(curve: PruneCurve, of: Literal["accuracy", "nll", "rmse"] = "accuracy", ax: Axes | None = None) -> Axes:
    """What is left of a network as more of it is pruned, by criterion."""
    one_of(of, ("accuracy", "nll", "rmse"), "of")
    if of not in curve.columns:
        raise BadOption(f"this curve has no {of}; it has {', '.join(curve.columns)}.")
    ax = single(ax)
    names = ordered(row.by for row in curve.rows)
    for i, (name, colour) in enumerate(zip(names, layer_colours(len(names)), strict=True)):
        rows = sorted((row for row in curve.rows if row.by == name), key=lambda row: row.sparsity)
        style = {"color": colour, "marker": MARKERS[i % len(MARKERS)], "markersize": 4, "linewidth": 1.3}
        values = numbers([getattr(row, of) for row in rows])
        ax.plot([row.sparsity for row in rows], values, label=name, **style)  # type: ignore[arg-type]
    words = {"accuracy": "accuracy", "nll": "negative log likelihood (nats)", "rmse": "root mean squared error"}
    tidy(ax, "sparsity (share of the prunable weights that is gone)", words[of], grid="y")
    ax.legend(frameon=False, fontsize=8, title="pruned by", title_fontsize=8)
    return ax
