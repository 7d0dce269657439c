"""What all charts share: figures checked by plotly, axes, columns of rows."""

from __future__ import annotations

from typing import Any

from whence.errors import need
from whence.report.page.words import significant

Record = dict[str, Any]


def figure(traces: list[Record], **layout: Any) -> Record:
    """Checked by plotly, and without its default template."""
    objects = need("plotly.graph_objects", "report")
    made = objects.Figure(data=[{"type": "scatter", **trace} for trace in traces], layout=layout).to_plotly_json()
    made["layout"].pop("template", None)
    return {"data": made["data"], "layout": made["layout"]}


def axis(title: str) -> Record:
    """With a title, where there is one."""
    return {"title": {"text": title}} if title else {}


def percentages(title: str) -> Record:
    """An axis from 0 to 100 %."""
    return {**axis(title), "tickformat": ".0%", "range": [-0.02, 1.02], "dtick": 0.25}


def column(rows: list[Record], key: str) -> list[Any]:
    """One entry of every row, rounded."""
    return [significant(row.get(key)) for row in rows]


def rounded(values: list[Any]) -> list[Any]:
    """As short as they can be in JSON."""
    return [significant(value) for value in values]


def gaps(high: list[Any], low: list[Any]) -> list[Any]:
    """Lengths of error bars."""
    return [None if a is None or b is None else significant(a - b) for a, b in zip(high, low, strict=True)]
