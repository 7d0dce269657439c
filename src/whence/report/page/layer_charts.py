"""Charts of the layers of several methods, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from whence.report.formatting import shortened, significant
from whence.report.page.charts import Chart, Look, axis, figure, plain_text, rounded
from whence.report.record.common import Numbers
from whence.report.record.comparison import LayersOfMethods


def layers_with(layers: LayersOfMethods, rows: Sequence[Numbers | None]) -> list[int]:
    """Indices of the layers that have the quantity in any method."""
    known = [row for row in rows if row is not None]
    return [i for i in range(len(layers.names)) if any(row[i] is not None for row in known)]


def layer_bars(layers: LayersOfMethods, looks: list[Look]) -> Chart:
    """Shares of the variance, the methods side by side in each layer."""
    places = layers_with(layers, layers.share)
    names, traces = _axis_names([layers.names[i] for i in places]), []
    for look, found, spread in zip(looks, layers.share, layers.error, strict=True):
        if found is None:
            continue
        error = [significant(spread[i]) for i in places] if spread else None
        bars = {"type": "data", "array": error, "thickness": 1.5, "width": 3, "color": look.colour}
        traces.append(
            {"type": "bar", "orientation": "h", "x": rounded(found[i] for i in places), "y": names,
             "name": plain_text(look.name), "error_x": bars if error else None,
             "marker": {"color": look.faint, "line": {"width": 0}}, "customdata": error or [None] * len(places),
             "hovertemplate": "%{y}: %{x:.1%}" + (" ± %{customdata:.1%}" if error else "")}
        )  # fmt: skip
    x = {**axis("share of the variance"), "tickformat": "~%", "rangemode": "tozero"}
    return figure(traces, barmode="group", bargap=0.28, xaxis=x, yaxis=LAYER_AXIS, legend={"traceorder": "normal"})


def layer_marks(layers: LayersOfMethods, rows: Sequence[Numbers | None], looks: list[Look], x: Chart) -> Chart:
    """One value per layer and method, as marks on one line per layer."""
    names = _axis_names(layers.names)
    traces = [
        {"x": rounded(values), "y": names, "mode": "markers", "name": plain_text(shortened(look.name)),
         "marker": {"color": look.colour, "symbol": look.symbol, "size": 10, "opacity": 0.9},
         "cliponaxis": False, "hovertemplate": "%{y}: %{x:.3g}"}
        for look, values in zip(looks, rows, strict=True)
        if values is not None
    ]  # fmt: skip
    return figure(traces, xaxis=x, yaxis=LAYER_AXIS, showlegend=False)


LAYER_AXIS = {"autorange": "reversed", "type": "category", "dtick": 1, "ticklabelstandoff": 6}


def _axis_names(names: Sequence[str]) -> list[str]:
    """Names of layers for an axis: shortened, but distinct."""
    short = [plain_text(shortened(name)) for name in names]
    return short if len(set(short)) == len(short) else [plain_text(name) for name in names]
