"""Figures of a comparison: several methods on the same data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from whence.errors import BadOption
from whence.report.figures import canvas
from whence.report.record.common import Numbers
from whence.report.record.comparison import Compared, ComparisonRecord, ComparisonSection, MetricOfMethods

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")
MARKERS = "osD^vPX*"
COLUMNS = 4  # panels in a row
ARROWS = {"lower": "↓ lower is better", "higher": "↑ higher is better"}


class HasResults(Protocol):
    """A comparison."""

    @property
    def results(self) -> ComparisonRecord: ...


Given = HasResults | ComparisonRecord | ComparisonSection


class Look(NamedTuple):
    """How a method is drawn."""

    name: str
    colour: Any
    marker: str


def _record(comparison: Given) -> ComparisonRecord | ComparisonSection:
    return comparison if isinstance(comparison, Compared) else comparison.results


def _section(record: ComparisonRecord | ComparisonSection, name: str, found: T | None) -> T:
    """A section of the record; an error if it is missing."""
    if not found or (isinstance(found, tuple) and all(row is None for row in found)):
        left = {item.what: item.why for item in record.left_out}
        raise BadOption(f"this comparison has no {name}: {left.get(name, 'it was not computed').rstrip('.')}.")
    return found


def _looks(record: Compared) -> list[Look]:
    colours = canvas.layer_colours(len(record.methods))
    return [Look(name, colours[i], MARKERS[i % len(MARKERS)]) for i, name in enumerate(record.names)]


def compare_metrics(comparison: Given, ax: Axes | None = None) -> Figure:
    """One panel per metric, one row per method, with intervals; filled marks: not significantly worse than the best."""
    record = _record(comparison)
    looks, metrics = _looks(record), _section(record, "metrics", record.metrics)
    columns = min(COLUMNS, len(metrics))
    rows = -(-len(metrics) // columns)
    size = (1.4 + 2.0 * columns, rows * max(1.6, 0.9 + 0.22 * len(looks)))
    figure, grid = canvas.panels(ax, rows, columns, size, sharey=True)
    places = [panel for line in grid for panel in line]
    for panel, metric in zip(places, metrics, strict=False):
        _metric(panel, metric, looks)
    for panel in places[len(metrics) :]:
        panel.set_axis_off()
    canvas.name_rows(places[0], record.names)
    for panel in places:
        panel.set_ylabel("")
        panel.tick_params(axis="y", length=0)
    return figure


def _metric(ax: Axes, metric: MetricOfMethods, looks: list[Look]) -> None:
    for row, (look, value, best) in enumerate(zip(looks, metric.values, metric.best, strict=True)):
        if value is not None:
            low, high = canvas.numbers([value.low, value.high])
            ax.hlines(row, low, high, color=look.colour, linewidth=1.4)
            inside = look.colour if best else "white"
            ax.plot(value.value, row, look.marker, color=look.colour, markerfacecolor=inside, markersize=5.5)  # type: ignore[arg-type]
    if metric.better not in ARROWS:
        ax.axvline(float(metric.better), color=canvas.GREY, linewidth=0.9, linestyle="--")
    canvas.tidy(ax, ARROWS.get(metric.better, f"nearest {metric.better} is best"), title=metric.label, grid="x")
    ax.locator_params(axis="x", nbins=4)


def compare_layers(comparison: Given, ax: Axes | None = None) -> Figure:
    """Shares of the layers with Monte Carlo errors, explained, and disagreement between draws."""
    record = _record(comparison)
    layers, looks = _section(record, "layers", record.layers), _looks(record)
    tables = {"share": layers.share, "explained": layers.explained, "activations": layers.activations}
    tables = {key: rows for key, rows in tables.items() if any(row is not None for row in rows)}
    if not tables:
        raise BadOption("no method of this comparison has values by layer.")
    bars = sum(row is not None for row in next(iter(tables.values())))
    ratios = [3 if key == "share" else 2 for key in tables]
    size = (2.2 + 1.1 * sum(ratios), canvas.grid_height(len(layers.names) * max(2, bars), 3.4))
    figure, (axes,) = canvas.panels(ax, 1, len(tables), size, sharey=True, width_ratios=ratios)
    for panel, (key, rows) in zip(axes, tables.items(), strict=True):
        if key == "share":
            _bars(panel, rows, layers.error, looks)
        else:
            _marks(panel, key, rows, looks)
        panel.tick_params(axis="y", length=0)
    canvas.name_rows(axes[0], layers.names)
    used = {h.get_label(): h for panel in axes for h in panel.get_legend_handles_labels()[0]}
    shown = [name for name in record.names if name in used]
    style: dict[str, Any] = {
        "loc": "outside upper center",
        "ncols": min(4, len(shown)),
        "frameon": False,
        "fontsize": 8,
    }
    figure.legend([used[name] for name in shown], [canvas.short(name) for name in shown], **style)
    return figure


def _bars(ax: Axes, rows: tuple[Numbers | None, ...], errors: tuple[Numbers | None, ...], looks: list[Look]) -> None:
    """Grouped bars of the methods in each layer."""
    known = [(look, row, error) for look, row, error in zip(looks, rows, errors, strict=True) if row is not None]
    thick = 0.8 / len(known)
    for i, (look, values, error) in enumerate(known):
        places = np.arange(len(values)) - 0.4 + thick * (i + 0.5)
        ax.barh(places, canvas.numbers(values), thick * 0.92, color=look.colour, alpha=0.75, label=look.name)
        if error is not None:
            ax.errorbar(
                canvas.numbers(values), places, xerr=canvas.numbers(error), fmt="none", ecolor="black", elinewidth=0.9
            )
    canvas.tidy(ax, canvas.UNITS["variance_share"], grid="x")


def _marks(ax: Axes, key: str, rows: tuple[Numbers | None, ...], looks: list[Look]) -> None:
    for look, values in zip(looks, rows, strict=True):
        if values is not None:
            style = {"color": look.colour, "markersize": 5, "alpha": 0.85, "label": look.name}
            ax.plot(canvas.numbers(values), np.arange(len(values)), look.marker, **style)
    if key == "activations":
        ax.set_xlim(-0.02 * ax.get_xlim()[1], None)
        canvas.tidy(ax, "disagreement between draws\n(1 − CKA)", grid="both")
    else:
        ax.set_xlim(min(-0.05, ax.get_xlim()[0]), 1.05)
        canvas.tidy(ax, "explained\n(1 − variance / prior variance)", grid="both")


def compare_reliability(comparison: Given, ax: Axes | None = None) -> Axes:
    """Reliability diagram: accuracy against confidence for each method."""
    record = _record(comparison)
    curves, ax = _section(record, "reliability", record.reliability), canvas.single(ax, (4.8, 4.4))
    ax.plot([0, 1], [0, 1], "--", color=canvas.GREY, linewidth=1, label="perfectly calibrated")
    for look, bins in zip(_looks(record), curves, strict=True):
        if bins:
            confidence, accuracy, low, high = (
                canvas.numbers([getattr(one, key) for one in bins]) for key in ("confidence", "accuracy", "low", "high")
            )
            ax.vlines(confidence, low, high, color=look.colour, linewidth=0.8, alpha=0.5)
            style = {"color": look.colour, "markersize": 4.5, "linewidth": 1.3, "label": canvas.short(look.name)}
            ax.plot(confidence, accuracy, f"{look.marker}-", **style)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    canvas.tidy(ax, "confidence (predicted probability)", "accuracy", grid="both")
    ax.legend(frameon=False, fontsize=7.5)
    return ax


def compare_uncertainty(comparison: Given, ax: Axes | None = None) -> Axes:
    """The share of inputs whose uncertainty is above each value: test data dotted, out of distribution solid."""
    record, fresh = _record(comparison), ax is None
    found, ax = _section(record, "uncertainty", record.uncertainty), canvas.single(ax, (7.0, 4.0))
    for name, curves, style, width in (("test", found.test, ":", 1.2), ("ood", found.ood or (), "-", 2.0)):
        for look, values in zip(_looks(record), curves, strict=False):
            if values:
                above = 1 - np.arange(len(values)) / len(values)
                line = {"color": look.colour, "linewidth": width, "drawstyle": "steps-post"}
                ax.plot(canvas.numbers(values), above, style, label=f"{canvas.short(look.name)}, {name}", **line)
    ax.set_ylim(-0.02, 1.02)
    canvas.tidy(ax, found.label, "share of inputs above it", grid="both")
    canvas.legend(ax, 2 * len(record.methods), fresh)
    return ax


def compare_rejection(comparison: Given, ax: Axes | None = None) -> Axes:
    """Error of the kept predictions, the most certain first, for each method."""
    record = _record(comparison)
    curves, ax = _section(record, "rejection", record.rejection), canvas.single(ax)
    for look, curve in zip(_looks(record), curves, strict=True):
        if curve:
            style = {"color": look.colour, "marker": look.marker, "markersize": 4, "linewidth": 1.4}
            every = max(1, len(curve.coverage) // 8)
            ax.plot(
                canvas.numbers(curve.coverage),
                canvas.numbers(curve.error),
                markevery=every,
                label=canvas.short(look.name),
                **style,
            )
    ax.set_xlim(0, 1.01)
    canvas.tidy(ax, "coverage (share of predictions kept)", "error among the kept", grid="both")
    ax.legend(frameon=False, fontsize=7.5)
    return ax


def compare_agreement(comparison: Given, ax: Axes | None = None) -> Axes:
    """Spearman's rank correlation of the layers' shares between methods."""
    record = _record(comparison)
    found = _section(record, "agreement", record.agreement)
    ax = canvas.single(ax, (1.8 + 0.7 * len(found.methods), 1.2 + 0.6 * len(found.methods)))
    values = np.stack([canvas.numbers(row) for row in found.rho])
    image = canvas.heat(ax, values, "rank correlation of shares", signed=True)
    for row, column in np.ndindex(values.shape):
        value = values[row, column]
        if np.isfinite(value):
            ink = "white" if sum(image.cmap(image.norm(value))[:3]) < 1.5 else "black"
            ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=ink)
    canvas.name_rows(ax, found.methods)
    canvas.name_columns(ax, found.methods)
    ax.set_ylabel("")
    return ax
