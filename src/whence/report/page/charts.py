"""The smaller charts, as plotly figures for JSON. They draw what the record holds, and compute nothing."""

from __future__ import annotations

from typing import Any

from whence.report.page import theme
from whence.report.page.naming import LISTED
from whence.report.page.plotting import axis, column, figure, gaps, percentages, rounded
from whence.report.page.words import drawn, shortened, significant

Record = dict[str, Any]
NAMES = {"bayesian": "Bayesian", "plain": "plain network"}  # the dotted one is drawn over the other
ORDERS = {"snr": "signal to noise", "magnitude": "size of the weight", "random": "at random"}
DASHES = {"plain": "dot", "bayesian": "solid"}
COLOURS = {"plain": "#D55E00", "bayesian": "#1681C4"}  # read on white and on black
WIDTHS = {"test": 1.5, "ood": 3.5}
CYCLE = len(theme.COLOURS["light"])  # lines before their colours come again
REST = {"mode": "lines", "line": {"color": "#8C939D", "width": 1}, "showlegend": False, "legendgroup": "rest"}
SETS = {"reference": "#8C939D", "test": "#009E73", "ood": "#CC79A7"}


def all_charts(record: Record) -> dict[str, Record]:
    """Those that the record has data for, by the id of the element that they are drawn into."""
    quality, deferral = record.get("quality") or {}, record.get("deferral") or {}
    novelty, pruning = record.get("novelty") or {}, record.get("pruning") or {}
    found = {
        "reliability": quality.get("reliability") and reliability(quality["reliability"]),
        "uncertainty": quality.get("uncertainty") and uncertainty(quality["uncertainty"]),
        "deferral-curve": erring(deferral.get("curve")) and deferral_curve(deferral),
        "novelty-layers": novelty.get("sets") and novelty_layers(novelty),
        "novelty-p": novelty.get("sets") and p_values(novelty),
        "pruning-curve": pruning.get("rows") and pruned(pruning["rows"]),
        "sensitivity-curve": record.get("sensitivity") and sensitivity(record["sensitivity"]),
    }
    return {name: made for name, made in found.items() if made}


def reliability(curves: Record) -> Record:
    """Hit rate against stated confidence, with the diagonal on which they agree."""
    traces = []
    diagonal = {"type": "line", "x0": 0, "y0": 0, "x1": 1, "y1": 1, "layer": "below"}
    diagonal["line"] = {"color": "#888888", "width": 1.5, "dash": "dash"}
    for i, (key, bins) in enumerate((key, curves[key]) for key in NAMES if curves.get(key)):
        hits = column(bins, "accuracy")
        spread = {
            "type": "data", "symmetric": False, "thickness": 1, "width": 3,
            "array": gaps(column(bins, "high"), hits), "arrayminus": gaps(hits, column(bins, "low")),
        }  # fmt: skip
        traces.append(
            {"x": column(bins, "confidence"), "y": hits, "error_y": spread, "mode": "lines+markers",
             "name": NAMES[key], "marker": {"symbol": ("circle", "circle-open")[i], "size": 8, "color": COLOURS[key]},
             "line": {"dash": DASHES[key], "color": COLOURS[key]}, "customdata": column(bins, "count"),
             "hovertemplate": "stated %{x:.0%}, right %{y:.1%}<br>%{customdata} inputs"}
        )  # fmt: skip
    axes = {"xaxis": percentages("stated confidence"), "yaxis": percentages("part that was right")}
    return figure(traces, shapes=[diagonal], **axes)


def uncertainty(curves: Record) -> Record:
    """The part of the inputs whose uncertainty exceeds a value."""
    traces = []
    for place, key in (("test", "test data"), ("ood", "out of distribution")):
        found = curves.get(place) or {}
        for kind, values in ((kind, found[kind]) for kind in NAMES if found.get(kind)):
            ordered = [significant(value) for value in values]
            above = [significant(1 - i / len(ordered)) for i in range(len(ordered))]
            traces.append(
                {"x": ordered, "y": above, "mode": "lines", "name": f"{key}, {NAMES.get(kind, kind)}",
                 "line": {"dash": DASHES.get(kind), "color": COLOURS.get(kind), "shape": "hv", "width": WIDTHS[place]},
                 "hovertemplate": "%{y:.0%} above %{x:.3g}"}
            )  # fmt: skip
    y = percentages("part of the inputs above it")
    return figure(traces, xaxis=axis(drawn(curves.get("label", "uncertainty"))), yaxis=y)


def erring(curves: Record | None) -> bool:
    """Whether any of the curves leaves the axis; otherwise there is nothing to draw."""
    return any(value for curve in (curves or {}).values() for value in (curve or {}).get("error") or [])


def deferral_curve(deferral: Record) -> Record:
    """Error of the inputs that the network keeps, against the part that it keeps."""
    part = deferral.get("error") == "error rate"
    traces = [
        {"x": rounded(curve["coverage"]), "y": rounded(curve["error"]), "mode": "lines", "name": NAMES[key],
         "line": {"dash": DASHES[key], "color": COLOURS[key], "width": 2},
         "hovertemplate": "keeps %{x:.0%}: %{y:" + (".1%" if part else ".3g") + "}"}
        for key in NAMES
        if (curve := deferral["curve"].get(key))
    ]  # fmt: skip
    named = drawn(deferral.get("error", "error")) + " of those kept"
    y = percentages(named) if part else axis(named)
    y = {**{key: item for key, item in y.items() if key not in ("range", "dtick")}, "rangemode": "tozero"}
    y |= {"tickformat": "~%"} if part else {}
    return figure(traces, xaxis=percentages("part of the inputs kept"), yaxis=y)


def novelty_layers(novelty: Record) -> Record:
    """Quantiles of what is unexplained, by layer and set, as boxes."""
    traces = []
    for each in novelty["sets"]:
        layers = each["layers"]
        traces.append(
            {"type": "box", "orientation": "h", "name": drawn(each["label"]), "whiskerwidth": 0.6,
             "y": [drawn(shortened(row["name"])) for row in layers], "lowerfence": column(layers, "q05"),
             "q1": column(layers, "q25"), "median": column(layers, "q50"), "q3": column(layers, "q75"),
             "upperfence": column(layers, "q95"), "boxpoints": False,
             "line": {"width": 1.5, "color": SETS.get(each["key"])}}
        )  # fmt: skip
    y = {**axis(""), "autorange": "reversed", "type": "category"}
    legend = {"traceorder": "normal"}
    return figure(traces, boxmode="group", xaxis=axis("unexplained"), yaxis=y, legend=legend, boxgap=0.25)


def p_values(novelty: Record) -> Record:
    """How often which overall p-value occurs, as a part of each set."""
    traces = []
    for each in (each for each in novelty["sets"] if each.get("p_values")):
        edges, counts = each["p_values"]["edges"], each["p_values"]["counts"]
        total = sum(counts) or 1
        parts = [significant(count / total) for count in counts]
        traces.append(
            {"x": rounded(edges), "y": [*parts, parts[-1] if parts else 0], "mode": "lines", "customdata": counts,
             "name": drawn(each["label"]), "line": {"shape": "hv", "width": 2, "color": SETS.get(each["key"])},
             "hovertemplate": "p from %{x:.2f}: %{y:.1%} (%{customdata} inputs)"}
        )  # fmt: skip
    y = {**axis("part of the set"), "tickformat": ".0%", "rangemode": "tozero"}
    return figure(traces, xaxis=axis("overall p-value"), yaxis=y) if traces else {}


def pruned(rows: list[Record]) -> Record:
    """Accuracy, or the error where there is none, against the part of the prunable weights removed."""
    score, named = pruning_score(rows)
    traces = []
    for by in dict.fromkeys(row["by"] for row in rows):
        mine = sorted((row for row in rows if row["by"] == by), key=lambda row: row["sparsity"])
        traces.append(
            {"x": column(mine, "sparsity"), "y": column(mine, score), "mode": "lines+markers",
             "name": drawn(ORDERS.get(by, by)), "line": {"dash": "solid" if by == "snr" else "dot"},
             "hovertemplate": "%{x:.0%} removed: %{y:.4g}"}
        )  # fmt: skip
    y = {**axis(named), "tickformat": ".0%"} if score == "accuracy" else axis(named)
    return figure(traces, xaxis=percentages("part of the prunable weights removed"), yaxis=y)


def pruning_score(rows: list[Record]) -> tuple[str, str]:
    """The column that the pruning rows are judged by, and its name."""
    for key, named in (("accuracy", "accuracy"), ("rmse", "root mean squared error")):
        if any(row.get(key) is not None for row in rows):
            return key, named
    return "nll", "negative log likelihood"


def sensitivity(rows: list[Record]) -> Record:
    """Each layer's share as the prior precision is multiplied by a factor; of many layers, the largest by name."""
    layers: dict[str, list[Record]] = {}
    for row in sorted(rows, key=lambda row: row["factor"]):
        layers.setdefault(row["name"], []).append(row)
    size = {name: max(abs(row.get("variance_share") or 0.0) for row in mine) for name, mine in layers.items()}
    largest = set(sorted(layers, key=lambda name: -size[name])[:LISTED])
    named, rest = [name for name in layers if name in largest], [name for name in layers if name not in largest]
    traces = [_shares(name, layers[name]) | REST for name in rest]  # below the others
    for i, name in enumerate(named):
        traces.append(_shares(name, layers[name]) | {"line": {"dash": "dot" if i >= CYCLE else "solid"}})
    if rest:
        traces.append({"x": [None], "y": [None], **REST, "name": f"and {len(rest)} more", "showlegend": True})
    x = {**axis("prior precision, multiplied by"), "type": "log", "dtick": 1}
    return figure(traces, xaxis=x, yaxis={**axis("share of the variance"), "tickformat": ".0%"})


def _shares(name: str, rows: list[Record]) -> Record:
    return {
        "x": column(rows, "factor"), "y": column(rows, "variance_share"), "mode": "lines+markers",
        "name": drawn(shortened(name)), "customdata": column(rows, "explained"),
        "hovertemplate": "prior × %{x:g}: share %{y:.1%}, explained %{customdata:.2f}",
    }  # fmt: skip
