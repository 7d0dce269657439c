"""Charts of predicted numbers: the probability integral transform, coverage, predicted against true, errors."""

from __future__ import annotations

from whence.report.page.charts import (
    BAYESIAN,
    HIGHEST_TITLE,
    Chart,
    axis,
    column,
    figure,
    gaps,
    pairs,
    plain_text,
    rounded,
)
from whence.report.record.numbers import NumberChecks, OutputChecks, PitCounts

GREY = "#888888"
BAND = "rgba(136,136,136,0.22)"


def number_charts(found: NumberChecks) -> dict[str, Chart]:
    """By the id of their element on the page."""
    charts = {"pit": pit(found.pit)}
    for i, output in enumerate(found.outputs):
        charts[f"true-{i}"] = against_true(output)
        if output.spread:
            charts[f"spread-{i}"] = spread(output)
    return charts


def pit(found: PitCounts) -> Chart:
    """Shares of the bins, and the band that holds them by chance."""
    traces = []
    for look, counts in pairs(found.counts):
        total = sum(counts) or 1
        shares = rounded(count / total for count in counts)
        traces.append(
            {"x": rounded(found.edges), "y": [*shares, shares[-1]], "mode": "lines",
             "customdata": [*counts, counts[-1]], **look.style(shape="hv"),
             "hovertemplate": "F from %{x:.2f}: %{y:.1%} (%{customdata} values)"}
        )  # fmt: skip
    band = {"type": "rect", "x0": 0, "x1": 1, "y0": found.low, "y1": found.high, "fillcolor": BAND,
            "line": {"width": 0}, "layer": "below"}  # fmt: skip
    x = {**axis("F(true value): predicted probability of a smaller value"), "range": [-0.02, 1.02], "dtick": 0.25}
    return figure(traces, shapes=[band], xaxis=x, yaxis={**axis("share"), "tickformat": "~%", "rangemode": "tozero"})


def against_true(found: OutputChecks) -> Chart:
    """True against predicted values, with the line of equality."""
    every = [value for value in (*found.predicted, *found.true) if value is not None]
    low, high = min(every, default=0.0), max(every, default=1.0)
    line = {"type": "line", "x0": low, "y0": low, "x1": high, "y1": high, "layer": "below"}
    line["line"] = {"color": GREY, "width": 1.5, "dash": "dash"}
    marks = {"color": BAYESIAN.faint, "size": 5}
    trace = {"x": rounded(found.predicted), "y": rounded(found.true), "mode": "markers", "marker": marks, "name": "",
             "hovertemplate": "predicted %{x:.4g}, true %{y:.4g}"}  # fmt: skip
    unit = f" ({plain_text(found.unit)})" if found.unit else ""
    name = plain_text(found.name)
    axes = {"xaxis": axis(f"predicted {name}{unit}"), "yaxis": axis(f"true {name}{unit}", HIGHEST_TITLE)}
    return figure([trace], shapes=[line], showlegend=False, **axes)


def spread(found: OutputChecks) -> Chart:
    """The error of inputs with similar predicted standard deviations, with the line of equality."""
    errors = [row.error for row in found.spread]
    values, stds = column(errors, "value"), column(found.spread, "std")
    whiskers = {
        "type": "data", "symmetric": False, "thickness": 1, "width": 0, "color": BAYESIAN.faint,
        "array": gaps(column(errors, "high"), values), "arrayminus": gaps(values, column(errors, "low")),
    }  # fmt: skip
    highest = max([value for value in (*stds, *column(errors, "high")) if value is not None], default=1.0)
    line = {"type": "line", "x0": 0, "y0": 0, "x1": highest, "y1": highest, "layer": "below"}
    line["line"] = {"color": GREY, "width": 1.5, "dash": "dash"}
    trace = {"x": stds, "y": values, "error_y": whiskers, "mode": "lines+markers",
             "customdata": column(errors, "count"), **BAYESIAN.style(),
             "hovertemplate": "predicted %{x:.3g}, error %{y:.3g}<br>%{customdata} inputs"}  # fmt: skip
    unit = f" ({plain_text(found.unit)})" if found.unit else ""
    x = {**axis(f"predicted standard deviation{unit}"), "rangemode": "tozero"}
    y = {**axis(f"root mean squared error{unit}", HIGHEST_TITLE), "rangemode": "tozero"}
    return figure([trace], shapes=[line], showlegend=False, xaxis=x, yaxis=y)
