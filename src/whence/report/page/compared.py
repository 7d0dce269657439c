"""Charts of a comparison: one colour and one mark for each method. They draw what the record holds."""

from __future__ import annotations

from typing import Any

from whence.report.page.plotting import axis, column, figure, gaps, percentages, rounded
from whence.report.page.words import drawn, shortened, significant

Record = dict[str, Any]
PLAIN = "#D55E00"  # as on the audit's page
COLOURS = ("#1681C4", "#009E73", "#C0699A", "#A87800", "#8466D0", "#5F8A1D", "#7C8591")  # read on white and on black
MARKS = ("●", "■", "◆", "▲", "▼", "✚", "✖", "★")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
PLACES = (("test", "test data", "dot", 1.5), ("ood", "out of distribution", "solid", 3))
PREFIX = "compared-"
POINTS = 7  # marks along a curve


def looks(methods: list[Record]) -> list[Record]:
    """Colour, mark and symbol of each method; the plain network's colour is its own."""
    found, used = [], 0
    for i, method in enumerate(methods):
        plain = method.get("kind") == "plain"
        colour = PLAIN if plain else COLOURS[used % len(COLOURS)]
        used += not plain
        place = i % len(MARKS)
        found.append(
            {"name": str(method["name"]), "colour": colour, "mark": MARKS[place], "symbol": SYMBOLS[place],
             "dash": "dash" if plain else "solid"}
        )  # fmt: skip
    return found


def compared_charts(record: Record) -> dict[str, Record]:
    """Those that the record has data for, by the id of the element that they are drawn into."""
    seen = looks(record.get("methods") or [])
    layers = record.get("layers") or {}
    uncertainty = record.get("uncertainty") or {}
    part = record.get("task") in ("classification", "binary")
    found = {
        "reliability-chart": any(record.get("reliability") or []) and _reliability(record["reliability"], seen),
        "uncertainty-chart": uncertainty.get("test") and _uncertainty(uncertainty, seen),
        "rejection-chart": _erring(record.get("rejection")) and _rejection(record["rejection"], seen, part),
        "shares-chart": any(layers.get("share") or []) and _shares(layers, seen),
        "explained-chart": any(layers.get("explained") or []) and _dots(layers, "explained", seen),
        "activations-chart": any(layers.get("activations") or []) and _dots(layers, "activations", seen),
    }
    return {PREFIX + name: made for name, made in found.items() if made}


def heights(record: Record) -> dict[str, int]:
    """Pixels that the charts with one row for each layer take."""
    layers = record.get("layers") or {}
    rows, bars = len(_kept(layers, "share")), sum(row is not None for row in layers.get("share") or [])
    return {
        "shares": min(2600, 120 + rows * (12 * max(bars, 1) + 14)),
        "dots": min(2000, 80 + len(layers.get("names") or []) * 34),
    }


def _reliability(curves: list[Any], seen: list[Record]) -> Record:
    """Hit rate against stated confidence, with the diagonal on which they agree."""
    diagonal = {"type": "line", "x0": 0, "y0": 0, "x1": 1, "y1": 1, "layer": "below"}
    diagonal["line"] = {"color": "#888888", "width": 1.5, "dash": "dash"}
    traces = []
    for bins, look in zip(curves, seen, strict=True):
        if not bins:
            continue
        hits = column(bins, "accuracy")
        spread = {
            "type": "data", "symmetric": False, "thickness": 1, "width": 0, "color": _faint(look["colour"]),
            "array": gaps(column(bins, "high"), hits), "arrayminus": gaps(hits, column(bins, "low")),
        }  # fmt: skip
        traces.append(
            {"x": column(bins, "confidence"), "y": hits, "error_y": spread, "mode": "lines+markers",
             "customdata": column(bins, "count"), **_styled(look),
             "hovertemplate": "stated %{x:.0%}, right %{y:.1%}<br>%{customdata} inputs"}
        )  # fmt: skip
    axes = {"xaxis": percentages("stated confidence"), "yaxis": percentages("part that was right")}
    return figure(traces, shapes=[diagonal], **axes)


def _faint(colour: str) -> str:
    """The same colour, half seen through, so that whiskers can be told from bars."""
    return f"rgba({','.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))},0.55)"


def _styled(look: Record, width: float = 2) -> Record:
    """The looks of a method's line."""
    return {
        "name": drawn(shortened(look["name"])), "line": {"color": look["colour"], "dash": look["dash"], "width": width},
        "marker": {"color": look["colour"], "symbol": look["symbol"], "size": 8},
    }  # fmt: skip


def _uncertainty(curves: Record, seen: list[Record]) -> Record:
    """The part of the inputs whose uncertainty exceeds a value: thin for test data, thick out of distribution."""
    traces = []
    places = [place for place in PLACES if curves.get(place[0])]
    for key, words, dash, width in places:
        for values, look in zip(curves[key], seen, strict=True):
            ordered = rounded(values or [])
            above = [significant(1 - i / len(ordered)) for i in range(len(ordered))]
            style = _styled(look)
            style["line"] = {"color": look["colour"], "dash": dash, "width": width, "shape": "hv"}
            style["marker"]["maxdisplayed"] = POINTS
            traces.append(
                {"x": ordered, "y": above, "mode": "lines+markers", "legendgroup": style["name"],
                 "showlegend": key == places[-1][0], **style,
                 "hovertemplate": f"{words}: %{{y:.0%}} above %{{x:.3g}}"}
            )  # fmt: skip
    traces += [_example(words, dash, width) for _, words, dash, width in places if len(places) > 1]
    return figure(
        traces, xaxis=axis(drawn(curves.get("label", "uncertainty"))), yaxis=percentages("part of the inputs above it")
    )


def _example(words: str, dash: str, width: float) -> Record:
    """An entry of the legend that says what a kind of line means."""
    line = {"color": "#888888", "dash": dash, "width": width}
    return {"x": [None], "y": [None], "mode": "lines", "name": words, "line": line, "hoverinfo": "skip"}


def _erring(curves: list[Any] | None) -> bool:
    """Whether any of the curves leaves the axis; otherwise there is nothing to draw."""
    return any(value for curve in curves or [] for value in (curve or {}).get("error") or [])


def _rejection(curves: list[Any], seen: list[Record], part: bool) -> Record:
    """Error of the inputs that a method keeps, against the part that it keeps."""
    traces = []
    for curve, look in zip(curves, seen, strict=True):
        if curve:
            style = _styled(look)
            style["marker"]["maxdisplayed"] = POINTS
            traces.append(
                {"x": rounded(curve["coverage"]), "y": rounded(curve["error"]), "mode": "lines+markers", **style,
                 "cliponaxis": False, "hovertemplate": "keeps %{x:.0%}: %{y:" + (".1%" if part else ".3g") + "}"}
            )  # fmt: skip
    y = {**axis("error of those kept"), "rangemode": "tozero", **({"tickformat": "~%"} if part else {})}
    return figure(traces, xaxis=percentages("part of the inputs kept"), yaxis=y)


def _kept(layers: Record, key: str) -> list[int]:
    """The places of the layers that have the quantity in any method."""
    rows = [row for row in layers.get(key) or [] if row is not None]
    return [i for i in range(len(layers.get("names") or [])) if any(row[i] is not None for row in rows)]


def _rows(names: list[str]) -> list[str]:
    """Names of layers for an axis: short, and each its own."""
    short = [drawn(shortened(name)) for name in names]
    return short if len(set(short)) == len(short) else [drawn(name) for name in names]


def _shares(layers: Record, seen: list[Record]) -> Record:
    """Shares of the variance, the methods side by side in each layer."""
    having = _kept(layers, "share")
    names, traces = _rows([layers["names"][i] for i in having]), []
    errors = layers.get("error") or [None] * len(seen)
    for found, spread, look in zip(layers["share"], errors, seen, strict=True):
        if found is None:
            continue
        shares, error = [found[i] for i in having], [spread[i] for i in having] if spread else None
        bars = {"type": "data", "array": rounded(error or []), "thickness": 1.5, "width": 3, "color": look["colour"]}
        traces.append(
            {"type": "bar", "orientation": "h", "x": rounded(shares), "y": names, "name": drawn(look["name"]),
             "error_x": bars if error else None, "marker": {"color": _faint(look["colour"]), "line": {"width": 0}},
             "customdata": rounded(error or [None] * len(shares)),
             "hovertemplate": "%{y}: %{x:.1%}" + (" ± %{customdata:.1%}" if error else "")}
        )  # fmt: skip
    x = {**axis("share of the variance"), "tickformat": "~%", "rangemode": "tozero"}
    y = {"autorange": "reversed", "type": "category", "dtick": 1, "ticklabelstandoff": 6}
    return figure(traces, barmode="group", bargap=0.28, xaxis=x, yaxis=y, legend={"traceorder": "normal"})


def _dots(layers: Record, key: str, seen: list[Record]) -> Record:
    """One number for each layer and method, as marks on a line for each layer."""
    names, traces = _rows(layers["names"]), []
    for values, look in zip(layers[key], seen, strict=True):
        if values is not None:
            marker = {"color": look["colour"], "symbol": look["symbol"], "size": 10, "opacity": 0.9}
            traces.append(
                {"x": rounded(values), "y": names, "mode": "markers", "name": drawn(shortened(look["name"])),
                 "marker": marker, "cliponaxis": False, "hovertemplate": "%{y}: %{x:.3g}"}
            )  # fmt: skip
    y = {"autorange": "reversed", "type": "category", "dtick": 1, "ticklabelstandoff": 6}
    x = {**axis("explained"), "range": _range(layers[key])}
    if key == "activations":
        x = {**axis("disagreement"), "rangemode": "tozero", "tickformat": "~g"}
    return figure(traces, xaxis=x, yaxis=y, showlegend=False)


def _range(rows: list[Any]) -> list[float]:
    """From 0, or the lowest value below it, to 1."""
    lowest = min((v for row in rows for v in row or [] if v is not None), default=0.0)
    return [min(-0.05, lowest - 0.05), 1.05]
