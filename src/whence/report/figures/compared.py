"""Pictures of a comparison: several methods on the same data. They draw what its record holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import BadOption
from whence.report.figures.canvas import (
    GREY,
    UNITS,
    heat,
    height,
    layer_colours,
    legend,
    name_columns,
    name_rows,
    numbers,
    panels,
    short,
    single,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*"
ACROSS = 4  # panels beside each other
ARROWS = {"lower": "↓ lower is better", "higher": "↑ higher is better"}


def _record(comparison: Any, key: str) -> Mapping[str, Any]:
    """The record of a comparison, which must have the section."""
    record: Mapping[str, Any] = getattr(comparison, "record", comparison)
    found = record.get(key)
    if not found or (isinstance(found, list) and all(row is None for row in found)):
        left = {item["what"]: item["why"] for item in (record.get("run") or {}).get("left_out") or []}
        raise BadOption(f"this comparison has no {key}: {str(left.get(key, 'it was not computed')).rstrip('.')}.")
    return record


def _looks(record: Mapping[str, Any]) -> list[tuple[str, Any, str]]:
    """Name, colour and marker of each method."""
    names = [str(method["name"]) for method in record["methods"]]
    colours = layer_colours(len(names))
    return [
        (name, colour, MARKERS[i % len(MARKERS)]) for i, (name, colour) in enumerate(zip(names, colours, strict=True))
    ]


def compare_metrics(comparison: Any, ax: Axes | None = None) -> Figure:
    """One panel for each metric, one row for each method, with intervals; filled: not worse than the best by chance."""
    record = _record(comparison, "metrics")
    looks, metrics = _looks(record), record["metrics"]
    across = min(ACROSS, len(metrics))
    down = -(-len(metrics) // across)
    size = (1.4 + 2.0 * across, down * max(1.6, 0.9 + 0.22 * len(looks)))
    figure, grid = panels(ax, down, across, size, sharey=True)
    places = [panel for line in grid for panel in line]
    for panel, metric in zip(places, metrics, strict=False):
        _metric(panel, metric, looks)
    for panel in places[len(metrics) :]:
        panel.set_axis_off()
    name_rows(places[0], [name for name, _, _ in looks])
    for panel in places:
        panel.set_ylabel("")
        panel.tick_params(axis="y", length=0)
    return figure


def _metric(ax: Axes, metric: Mapping[str, Any], looks: list[tuple[str, Any, str]]) -> None:
    best = metric.get("best") or [False] * len(looks)
    for row, ((_, colour, marker), value) in enumerate(zip(looks, metric["values"], strict=True)):
        if value is not None:
            low, high = numbers([value.get("low"), value.get("high")])
            ax.hlines(row, low, high, color=colour, linewidth=1.4)
            filled = colour if best[row] else "white"
            ax.plot(value["value"], row, marker, color=colour, markerfacecolor=filled, markersize=5.5)
    better = metric["better"]
    if better not in ARROWS:
        ax.axvline(float(better), color=GREY, linewidth=0.9, linestyle="--")
    tidy(ax, ARROWS.get(better, f"nearest {better} is best"), title=metric["label"], grid="x")
    ax.locator_params(axis="x", nbins=4)


def compare_layers(comparison: Any, ax: Axes | None = None) -> Figure:
    """The layers' shares with Monte Carlo errors, what the data explained, and how far draws disagree."""
    record = _record(comparison, "layers")
    layers, looks = record["layers"], _looks(record)
    names = layers["names"]
    kept = [key for key in ("share", "explained", "activations") if any(row is not None for row in layers[key] or [])]
    if not kept:
        raise BadOption("no method of this comparison says anything of its layers.")
    tall = height(len(names) * max(2, sum(row is not None for row in layers[kept[0]])), 3.4)
    ratios = [3 if key == "share" else 2 for key in kept]
    figure, (axes,) = panels(ax, 1, len(kept), (2.2 + 1.1 * sum(ratios), tall), sharey=True, width_ratios=ratios)
    for panel, key in zip(axes, kept, strict=True):
        (_bars if key == "share" else _marks)(panel, layers, key, looks)
        panel.tick_params(axis="y", length=0)
    name_rows(axes[0], names)
    used = {h.get_label(): h for panel in axes for h in panel.get_legend_handles_labels()[0]}
    handles = [used[name] for name, _, _ in looks if name in used]
    labels = [short(name) for name, _, _ in looks if name in used]
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, len(labels)), frameon=False, fontsize=8)
    return figure


def _bars(ax: Axes, layers: Mapping[str, Any], key: str, looks: list[tuple[str, Any, str]]) -> None:
    """The methods side by side in each layer."""
    rows = [(look, row, i) for i, (look, row) in enumerate(zip(looks, layers[key], strict=True)) if row is not None]
    thick = 0.8 / len(rows)
    for place, ((name, colour, _), values, i) in enumerate(rows):
        where = np.arange(len(values)) - 0.4 + thick * (place + 0.5)
        ax.barh(where, numbers(values), thick * 0.92, color=colour, alpha=0.75, label=name)
        error = (layers.get("error") or [None] * len(looks))[i]
        if error is not None:
            ax.errorbar(numbers(values), where, xerr=numbers(error), fmt="none", ecolor="black", elinewidth=0.9)
    tidy(ax, UNITS["variance_share"], grid="x")


def _marks(ax: Axes, layers: Mapping[str, Any], key: str, looks: list[tuple[str, Any, str]]) -> None:
    for (name, colour, marker), values in zip(looks, layers[key], strict=True):
        if values is not None:
            ax.plot(numbers(values), np.arange(len(values)), marker, color=colour, markersize=5, alpha=0.85, label=name)
    if key == "activations":
        ax.set_xlim(-0.02 * ax.get_xlim()[1], None)
        tidy(ax, "disagreement between draws\n(1 − CKA)", grid="both")
    else:
        ax.set_xlim(min(-0.05, ax.get_xlim()[0]), 1.05)
        tidy(ax, "explained\n(1 − variance / prior variance)", grid="both")


def compare_reliability(comparison: Any, ax: Axes | None = None) -> Axes:
    """How often predictions are right, by how sure they are, for each method."""
    record, ax = _record(comparison, "reliability"), single(ax, (4.8, 4.4))
    ax.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="perfectly calibrated")
    for (name, colour, marker), bins in zip(_looks(record), record["reliability"], strict=True):
        if bins:
            sure, right, low, high = (numbers([b[k] for b in bins]) for k in ("confidence", "accuracy", "low", "high"))
            ax.vlines(sure, low, high, color=colour, linewidth=0.8, alpha=0.5)
            ax.plot(sure, right, f"{marker}-", color=colour, markersize=4.5, linewidth=1.3, label=short(name))
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    return _named(tidy(ax, "confidence (predicted probability)", "accuracy (share that is right)", grid="both"))


def compare_uncertainty(comparison: Any, ax: Axes | None = None) -> Axes:
    """The share of inputs whose uncertainty is above each value: test data dotted, out of distribution solid."""
    record, fresh = _record(comparison, "uncertainty"), ax is None
    ax = single(ax, (7.0, 4.0))
    found = record["uncertainty"]
    for place, style, width in (("test", ":", 1.2), ("ood", "-", 2.0)):
        for (name, colour, _), values in zip(_looks(record), found.get(place) or [], strict=False):
            if values:
                above = 1 - np.arange(len(values)) / len(values)
                label = f"{short(name)}, {place}"
                ax.plot(
                    numbers(values), above, style, color=colour, linewidth=width, drawstyle="steps-post", label=label
                )
    ax.set_ylim(-0.02, 1.02)
    tidy(ax, found.get("label") or "uncertainty", "share of inputs above it", grid="both")
    legend(ax, 2 * len(record["methods"]), fresh)
    return ax


def compare_rejection(comparison: Any, ax: Axes | None = None) -> Axes:
    """Error among the predictions that are kept, the most certain first, for each method."""
    record, ax = _record(comparison, "rejection"), single(ax)
    for (name, colour, marker), curve in zip(_looks(record), record["rejection"], strict=True):
        if curve:
            style = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.4}
            every = max(1, len(curve["coverage"]) // 8)
            coverage, error = numbers(curve["coverage"]), numbers(curve["error"])
            ax.plot(coverage, error, markevery=every, label=short(name), **style)
    ax.set_xlim(0, 1.01)
    return _named(tidy(ax, "coverage (share of predictions that is kept)", "error among the kept", grid="both"))


def compare_agreement(comparison: Any, ax: Axes | None = None) -> Axes:
    """Spearman's rank correlation of the layers' shares between methods."""
    record = _record(comparison, "agreement")
    names = record["agreement"]["methods"]
    ax = single(ax, (1.8 + 0.7 * len(names), 1.2 + 0.6 * len(names)))
    values = np.stack([numbers(row) for row in record["agreement"]["rho"]])
    image = heat(ax, values, "rank correlation of shares", signed=True)
    for row, column in np.ndindex(values.shape):
        value = values[row, column]
        if np.isfinite(value):
            dark = sum(image.cmap(image.norm(value))[:3]) < 1.5
            ax.text(
                column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color="white" if dark else "black"
            )
    name_rows(ax, names)
    name_columns(ax, names)
    ax.set_ylabel("")
    return ax


def _named(ax: Axes) -> Axes:
    ax.legend(frameon=False, fontsize=7.5)
    return ax
