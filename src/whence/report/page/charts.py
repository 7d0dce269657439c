"""The charts of the page, except the profile and the weight maps, as plotly figures for JSON."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from whence.errors import need
from whence.report.formatting import shortened, significant
from whence.report.record.audit import Deferral
from whence.report.record.common import Bins, Number, Numbers, PlainAndBayesian, RejectionCurve
from whence.report.record.comparison import Method
from whence.report.record.sections import Histogram, Novelty, OneAnswer, PrunedNetwork, Sensitivity
from whence.report.uncertainty import Shown

T = TypeVar("T")
Chart = dict[str, Any]
Curves = Iterable[tuple["Look", T | None]]  # a curve for each method, or none

PLAIN_COLOUR = "#D55E00"
COLOURS = ("#1681C4", "#009E73", "#C0699A", "#A87800", "#8466D0", "#5F8A1D", "#7C8591")  # readable on white and black
MARKS = ("●", "■", "◆", "▲", "▼", "✚", "✖", "★")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
SETS = {"reference": "#8C939D", "test": "#009E73", "ood": "#CC79A7"}
GREY_LINE = {"mode": "lines", "line": {"color": "#8C939D", "width": 1}, "showlegend": False, "legendgroup": "rest"}
CRITERIA = {"snr": "signal to noise", "magnitude": "size of the weight", "random": "at random"}
WIDEST_TITLE, HIGHEST_TITLE = 44, 27  # letters of an axis title, along and upwards
POINTS = 7  # marks along a curve
FEWEST = 10  # elements of a group that is drawn in a reliability chart
DATA = {"test": "test data", "ood": "out of distribution"}


@dataclass(frozen=True)
class Look:
    """How a method is drawn."""

    name: str
    colour: str
    mark: str  # in text
    symbol: str  # in charts
    dash: str = "solid"
    both: bool = False  # whether it stands for two, so that a legend names it even if it is the only one

    def style(self, **line: Any) -> Chart:
        """Plotly options for its lines and marks."""
        return {
            "name": plain_text(shortened(self.name)),
            "line": {"color": self.colour, "dash": self.dash, "width": 2, **line},
            "marker": {"color": self.colour, "symbol": self.symbol, "size": 8},
            **({"showlegend": True} if self.both else {}),
        }

    @property
    def faint(self) -> str:
        """The same colour, half transparent, to distinguish whiskers from bars."""
        return f"rgba({','.join(str(int(self.colour[i : i + 2], 16)) for i in (1, 3, 5))},0.55)"


PLAIN = Look("plain network", PLAIN_COLOUR, "○", "circle-open", "dot")
BAYESIAN = Look("Bayesian", COLOURS[0], "●", "circle")
COINCIDING = Look("plain ≈ Bayesian", COLOURS[0], "●", "circle", both=True)
SEEN = 0.01  # difference of two curves, relative to the largest value, that can be seen
Points = tuple[Sequence[Number], Sequence[Number]]  # x and y


def looks_of(methods: Sequence[Method]) -> list[Look]:
    """A colour and a mark for each method; the plain network's colour is the same as in an audit."""
    found: list[Look] = []
    for i, method in enumerate(methods):
        own = sum(look.colour != PLAIN_COLOUR for look in found)
        plain = method.kind == "plain"
        colour = PLAIN_COLOUR if plain else COLOURS[own % len(COLOURS)]
        place = i % len(MARKS)
        found.append(Look(method.name, colour, MARKS[place], SYMBOLS[place], "dash" if plain else "solid"))
    return found


def drawn_pairs(both: PlainAndBayesian[T], points: Callable[[T], Points]) -> list[tuple[Look, T]]:
    """As ``pairs``; as one, where the two cannot be told apart in a chart of these points."""
    return [(COINCIDING, both.bayesian)] if _coincide(points(both.plain), points(both.bayesian)) else pairs(both)


def _coincide(first: Points, second: Points) -> bool:
    """Whether two curves are closer than a line is wide, relative to the larger of the two."""
    (x, y), (u, v) = ([[value for value in column if value is not None] for column in one] for one in (first, second))
    if not x or not u or len(x) != len(y) or len(u) != len(v):
        return False
    across, up = (SEEN * max(map(abs, [*one, *other])) for one, other in ((x, u), (y, v)))
    if len(x) == len(u) and all(abs(a - b) <= across for a, b in zip(x, u, strict=True)):
        return all(abs(a - b) <= up for a, b in zip(y, v, strict=True))
    apart = np.abs(np.interp(x, u, v) - np.array(y)) if x == sorted(x) and u == sorted(u) else np.array([math.inf])
    return bool(apart.max() <= up)


def pairs(both: PlainAndBayesian[T]) -> list[tuple[Look, T]]:
    """Both with their looks; the posterior first, so that the dotted line of the plain network is drawn over it."""
    return [(BAYESIAN, both.bayesian), (PLAIN, both.plain)]


# Parts of charts


def figure(traces: list[Chart], **layout: Any) -> Chart:
    """A figure that plotly has validated, without its default template."""
    objects = need("plotly.graph_objects", "report")
    made = objects.Figure(data=[{"type": "scatter", **trace} for trace in traces], layout=layout).to_plotly_json()
    made["layout"].pop("template", None)
    return {"data": made["data"], "layout": made["layout"]}


def axis(title: str, most: int = WIDEST_TITLE) -> Chart:
    """``title`` in lines of ``most`` letters, so that it is not cut in a chart of half the paper's width."""
    return {"title": {"text": "<br>".join(textwrap.wrap(title, most))}} if title else {}


def percentages(title: str, most: int = WIDEST_TITLE) -> Chart:
    """An axis from 0% to 100%."""
    return {**axis(title, most), "tickformat": ".0%", "range": [-0.02, 1.02], "dtick": 0.25}


def column(rows: Iterable[Any], name: str) -> list[Any]:
    """One field of every row, rounded."""
    return [significant(getattr(row, name)) for row in rows]


def rounded(values: Iterable[Number]) -> list[Any]:
    """Round values, for shorter JSON."""
    return [significant(value) for value in values]


def gaps(high: list[Any], low: list[Any]) -> list[Any]:
    """Lengths of error bars."""
    return [None if a is None or b is None else significant(a - b) for a, b in zip(high, low, strict=True)]


def plain_text(text: str) -> str:
    """Escape a string for plotly, which reads tags and entities."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# Predictions


def of_bins(bins: Bins | None) -> Points:
    """The points of a reliability curve."""
    drawn = drawn_bins(bins or ())
    return [one.confidence for one in drawn], [one.accuracy for one in drawn]


def drawn_bins(bins: Bins) -> Bins:
    """The groups that are large enough for a point; all of them if none is."""
    return tuple(one for one in bins if one.count >= FEWEST) or bins


def reliability(curves: Curves[Bins], x: str = "confidence", y: str = "accuracy") -> Chart:
    """Accuracy against confidence, or a frequency against its probability, and the diagonal of perfect calibration."""
    diagonal = {"type": "line", "x0": 0, "y0": 0, "x1": 1, "y1": 1, "layer": "below"}
    diagonal["line"] = {"color": "#888888", "width": 1.5, "dash": "dash"}
    traces = []
    for look, bins in curves:
        bins = drawn_bins(bins or ())
        if not bins:
            continue
        hits = column(bins, "accuracy")
        whiskers = {
            "type": "data", "symmetric": False, "thickness": 1, "width": 0, "color": look.faint,
            "array": gaps(column(bins, "high"), hits), "arrayminus": gaps(hits, column(bins, "low")),
        }  # fmt: skip
        traces.append(
            {"x": column(bins, "confidence"), "y": hits, "error_y": whiskers, "mode": "lines+markers",
             "customdata": column(bins, "count"), **look.style(),
             "hovertemplate": f"{x} %{{x:.0%}}, {y} %{{y:.1%}}<br>n = %{{customdata}}"}
        )  # fmt: skip
    return figure(traces, shapes=[diagonal], xaxis=percentages(x), yaxis=percentages(y))


def above(values: Numbers) -> Chart:
    """The share of inputs whose uncertainty is above each value."""
    return {"x": rounded(values), "y": [significant(1 - i / len(values)) for i in range(len(values))]}


def above_points(log: bool) -> Callable[[Numbers], Points]:
    """The points of the same curve on its axis."""

    def points(values: Numbers) -> Points:
        x = [math.log10(v) if log and v else v for v in values]
        return x, above(values)["y"]

    return points


def uncertainties(found: Shown) -> Chart:
    """The share of inputs whose uncertainty exceeds a value: thin for test data, thick for out-of-distribution data."""
    traces = []
    for curves, words, width in ((found.test, DATA["test"], 1.5), (found.ood, DATA["ood"], 3.5)):
        for look, values in drawn_pairs(curves, above_points(found.log)) if curves else ():
            style = look.style(shape="hv", width=width) | {"name": f"{words}, {look.name}"}
            traces.append({**above(values), "mode": "lines", **style, "hovertemplate": "%{y:.0%} above %{x:.3g}"})
    y = percentages("share of inputs above it", HIGHEST_TITLE)
    return figure(traces, xaxis=_uncertainty_axis(found), yaxis=y)


def _uncertainty_axis(found: Shown) -> Chart:
    return {**axis(plain_text(found.label)), "tickformat": "~g", **({"type": "log"} if found.log else {})}


def uncertainty_of_methods(found: Shown, looks: list[Look]) -> Chart:
    """The same for methods; the legend shows each method once, and explains thin and thick lines."""
    sets = [(found.test, DATA["test"], {"dash": "dot", "width": 1.5})]
    sets += [(found.ood, DATA["ood"], {"dash": "solid", "width": 3})] if found.ood else []
    traces = []
    for curves, words, line in sets:
        for look, values in zip(looks, curves, strict=True):
            style = look.style(shape="hv", **line)
            style["marker"]["maxdisplayed"] = POINTS
            traces.append(
                {**above(values), "mode": "lines+markers", "legendgroup": style["name"],
                 "showlegend": curves is sets[-1][0], **style,
                 "hovertemplate": f"{words}: %{{y:.0%}} above %{{x:.3g}}"}
            )  # fmt: skip
    for _, words, line in sets if len(sets) > 1 else []:
        traces.append({"x": [None], "y": [None], "mode": "lines", "name": words, "line": {"color": "#888888", **line},
                       "hoverinfo": "skip"})  # fmt: skip
    return figure(traces, xaxis=_uncertainty_axis(found), yaxis=percentages("share of inputs above it", HIGHEST_TITLE))


def has_errors(curves: Curves[RejectionCurve]) -> bool:
    """Whether any error is not zero; otherwise there is nothing to draw."""
    return any(any(curve.error) for _, curve in curves if curve)


def deferral_curve(deferral: Deferral) -> Chart:
    """Error of the inputs that the network answers, against their share."""
    assert deferral.curve is not None
    title = f"{plain_text(deferral.error)} of the answered"
    curves = drawn_pairs(deferral.curve, lambda curve: (curve.coverage, curve.error))
    return rejection_curves(curves, title, deferral.is_rate, of=deferral.answers)


def rejection_curves(
    curves: Curves[RejectionCurve], title: str, rate: bool, marks: bool = False, of: str = "inputs"
) -> Chart:
    """Error of the answered inputs, against their share."""
    traces = []
    for look, curve in curves:
        if curve:
            style: Chart = {"mode": "lines+markers" if marks else "lines", **look.style()}
            style |= {"cliponaxis": False} if marks else {}
            style["marker"]["maxdisplayed"] = POINTS
            hover = "answers %{x:.0%}: %{y:" + (".1%" if rate else ".3g") + "}"
            traces.append(
                {"x": rounded(curve.coverage), "y": rounded(curve.error), **style, "hovertemplate": hover}
            )  # fmt: skip
    y = {**axis(title, HIGHEST_TITLE), "rangemode": "tozero", **({"tickformat": "~%"} if rate else {})}
    return figure(traces, xaxis=percentages(f"share of {of} answered"), yaxis=y)


# Novelty, pruning, sensitivity


def novelty_layers(novelty: Novelty) -> Chart:
    """Quantiles of the unexplained fraction by layer and set, as boxes."""
    traces = []
    for one in novelty.sets:
        layers = one.layers
        traces.append(
            {"type": "box", "orientation": "h", "name": plain_text(one.label), "whiskerwidth": 0.6,
             "y": [plain_text(shortened(row.name)) for row in layers], "lowerfence": column(layers, "q05"),
             "q1": column(layers, "q25"), "median": column(layers, "q50"), "q3": column(layers, "q75"),
             "upperfence": column(layers, "q95"), "boxpoints": False, "line": {"width": 1.5, "color": SETS[one.key]}}
        )  # fmt: skip
    y = {**axis(""), "autorange": "reversed", "type": "category"}
    legend = {"traceorder": "normal"}
    return figure(traces, boxmode="group", xaxis=axis("unexplained"), yaxis=y, legend=legend, boxgap=0.25)


def p_values(novelty: Novelty) -> Chart:
    """Histogram of the overall p-values of each set, above what chance allows for inputs like the reference."""
    traces = []
    for one in novelty.sets:
        if one.p_values is not None:
            counts = one.p_values.counts
            parts = rounded(count / (sum(counts) or 1) for count in counts)
            traces.append(
                {"x": rounded(one.p_values.edges), "y": [*parts, parts[-1] if parts else 0], "mode": "lines",
                 "customdata": list(counts), "name": plain_text(one.label),
                 "line": {"shape": "hv", "width": 2, "color": SETS[one.key]},
                 "hovertemplate": "p from %{x:.2f}: %{y:.1%} (%{customdata} inputs)"}
            )  # fmt: skip
    y = {**axis("share of the set"), "tickformat": ".0%", "rangemode": "tozero"}
    chance = [trace for one in novelty.sets if one.p_values for trace in _chance(one.p_values)]
    return figure([*chance, *traces], xaxis=axis("overall p-value"), yaxis=y)


def _chance(found: Histogram) -> list[Chart]:
    """The flat line of inputs like the reference, and the band that contains all bars of such a set."""
    if found.low is None or found.high is None:
        return []
    flat, ends = significant(1 / len(found.counts)), [found.edges[0], found.edges[-1]]
    edge = {"x": ends, "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    return [
        {**edge, "y": [significant(found.low)] * 2},
        {**edge, "y": [significant(found.high)] * 2, "fill": "tonexty", "fillcolor": "rgba(136, 136, 136, 0.2)"},
        {"x": ends, "y": [flat] * 2, "mode": "lines", "name": "expected of ordinary inputs", "hoverinfo": "skip",
         "line": {"color": "#888888", "width": 1.5, "dash": "dot"}},
    ]  # fmt: skip


def pruning_score(rows: Sequence[PrunedNetwork], unit: str | None = None) -> tuple[str, str]:
    """The column for the score of pruned networks, and its name."""
    for key, name in (("accuracy", "accuracy"), ("rmse", "root mean squared error")):
        if any(getattr(row, key) is not None for row in rows):
            return key, f"{name} ({unit})" if unit and key == "rmse" else name
    return "nll", "negative log likelihood"


def pruning_curve(rows: Sequence[PrunedNetwork], unit: str | None = None, guess: OneAnswer | None = None) -> Chart:
    """Accuracy (or the error) against the share of prunable weights removed, and the accuracy of one answer to all."""
    score, name = pruning_score(rows, unit)
    traces = []
    for by in dict.fromkeys(row.by for row in rows):
        mine = sorted((row for row in rows if row.by == by), key=lambda row: row.sparsity or 0.0)
        traces.append(
            {"x": column(mine, "sparsity"), "y": column(mine, score), "mode": "lines+markers",
             "name": plain_text(CRITERIA.get(by, by)), "line": {"dash": "solid" if by == "snr" else "dot"},
             "hovertemplate": "%{x:.0%} removed: %{y:.4g}"}
        )  # fmt: skip
    y = {**axis(name), "tickformat": "~%"} if score == "accuracy" else axis(plain_text(name), HIGHEST_TITLE)
    if score == "accuracy" and guess is not None and guess.accuracy is not None:
        traces.append(_one_answer(guess))
    return figure(traces, xaxis=percentages("share of prunable weights removed"), yaxis=y)


def _one_answer(guess: OneAnswer) -> Chart:
    """A line at the accuracy of always answering the most frequent class, to which an empty network falls back."""
    of = f"“{plain_text(shortened(guess.name))}”" if guess.name else "the most frequent class"
    return {
        "x": [0, 1], "y": [significant(guess.accuracy)] * 2, "mode": "lines", "name": f"always answering {of}",
        "line": {"color": "#888888", "width": 1.5, "dash": "dot"}, "hovertemplate": "%{y:.4g}",
    }  # fmt: skip


def sensitivity_curve(rows: Sequence[Sensitivity], colours: Mapping[str, str]) -> Chart:
    """Each layer's share as the prior precision is multiplied by a factor; layers without a colour are grey."""
    layers: dict[str, list[Sensitivity]] = {}
    for row in sorted(rows, key=lambda row: row.factor or 0.0):
        layers.setdefault(row.name, []).append(row)
    unnamed = [name for name in layers if name not in colours]
    traces = [_shares_by_factor(name, layers[name]) | GREY_LINE for name in unnamed]  # below the others
    for name, colour in colours.items():
        if name in layers:
            traces.append(_shares_by_factor(name, layers[name]) | {"line": {"color": colour}})
    if unnamed:
        traces.append({"x": [None], "y": [None], **GREY_LINE, "name": f"and {len(unnamed)} more", "showlegend": True})
    x = {**axis("prior precision, multiplied by"), "type": "log", "dtick": 1}
    return figure(traces, xaxis=x, yaxis={**axis("share of the variance"), "tickformat": ".0%"})


def _shares_by_factor(name: str, rows: list[Sensitivity]) -> Chart:
    return {
        "x": column(rows, "factor"), "y": column(rows, "variance_share"), "mode": "lines+markers",
        "name": plain_text(shortened(name)), "customdata": column(rows, "explained"),
        "hovertemplate": "prior × %{x:g}: share %{y:.1%}, explained %{customdata:.1%}",
    }  # fmt: skip
