"""Parts of the page about classes, binary decisions, groups and the threshold that the reader moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from whence import numerals
from whence.report import formatting
from whence.report.page.charts import (
    COLOURS,
    Chart,
    drawn_pairs,
    figure,
    gaps,
    of_bins,
    percentages,
    plain_text,
    reliability,
    rounded,
)
from whence.report.record.audit import AuditRecord, Deferral
from whence.report.record.common import Estimate
from whence.report.record.groups import Groups
from whence.report.record.labels import ClassCalibration, Curve, TwoClasses
from whence.report.uncertainty import threshold

MATRIX = 20  # classes of a matrix; more have a list of confusions
WEAKEST = 10  # classes of a table that is not folded
LONG = 20  # letters of a name on an axis
TINT = 45  # per cent of colour in a cell with a share of 1
GREY = {"color": "#888888", "width": 1.5, "dash": "dash"}


def weakest(rows: Sequence[ClassCalibration]) -> list[ClassCalibration]:
    """The classes with the lowest recall, the lowest first."""
    known = [(row.recall.value, row) for row in rows if row.recall is not None and row.recall.value is not None]
    return [row for _, row in sorted(known, key=lambda pair: pair[0])[:WEAKEST]]


def mean_iou(rows: Sequence[ClassCalibration]) -> tuple[float, int] | None:
    """The mean IoU, and the number of classes that have one."""
    known = [row.iou.value for row in rows if row.iou is not None and row.iou.value is not None]
    return (sum(known) / len(known), len(known)) if known else None


def place(value: Any) -> str:
    """Sort key of an estimate or a number in a table; empty if there is none."""
    number = value.value if isinstance(value, Estimate) else value
    return "" if number is None else f"{number:.9g}"


def tint(share: float | None, right: bool) -> str:
    """The background of a cell of the confusion matrix, as CSS."""
    if not share:
        return "transparent"
    strength = TINT * (share if right else math.sqrt(share))  # few errors are seen too
    return f"color-mix(in srgb, var(--{'good' if right else 'poor'}) {strength:.0f}%, transparent)"


def slider(deferral: Deferral | None) -> dict[str, Any] | None:
    """Every position of the threshold as text, and where it starts: at the rule that answers 80% of validation data."""
    if deferral is None or not deferral.steps:
        return None
    steps = deferral.steps
    usual = [
        row.threshold for row in deferral.rows if row.by_coverage and row.target == 0.8 and row.threshold is not None
    ]
    below = [i for i, step in enumerate(steps) if usual and step.threshold <= usual[0] * (1 + 1e-5)]
    rows = []
    for step in steps:
        value, interval = formatting.estimate(step.error, deferral.is_rate)
        rows.append(
            [threshold(step.threshold, deferral.measure == "variance", 5), numerals.percent(step.coverage, 1),
             numerals.number(step.answered), numerals.number(step.deferred), f"{value} {interval}".strip(),
             step.coverage]
        )  # fmt: skip
    return {"steps": rows, "start": max(below, default=len(rows) - 1)}


def people_charts(record: AuditRecord) -> dict[str, Chart]:
    """Curves of a binary decision, and the first metric of every group."""
    found: dict[str, Chart] = {}
    two = record.quality.two_classes if record.quality else None
    if two is not None and two.precision_recall is not None and two.roc is not None:
        found["precision-recall"] = _rates(two.precision_recall, two, "recall (sensitivity)", "precision", "hv")
        found["roc"] = _rates(two.roc, two, "false positive rate (1 − specificity)", "sensitivity", "vh")
    if two is not None and two.reliability is not None:
        found["positive-reliability"] = reliability(
            drawn_pairs(two.reliability, of_bins), "mean predicted probability", "frequency"
        )
    for i, _ in enumerate(record.groups.groupings if record.groups else ()):
        assert record.groups is not None
        found[f"group-chart-{i}"] = _group_chart(record.groups, i, record.unit)
    return found


def _rates(curve: Curve, two: TwoClasses, x: str, y: str, shape: str) -> Chart:
    """A curve of two rates, the decision at 0.5, and what chance would give."""
    line = {"x": rounded(curve.x), "y": rounded(curve.y), "mode": "lines", "line": {"color": COLOURS[0], "width": 2},
            "name": "all thresholds", "hovertemplate": f"{x} %{{x:.1%}}, {y} %{{y:.1%}}"}  # fmt: skip
    ranked = shape == "vh"
    rates = (_rest(two.specificity), two.sensitivity) if ranked else (two.sensitivity, two.precision)
    at = [None if one is None else one.value for one in rates]
    mark = {"x": rounded(at[:1]), "y": rounded(at[1:]), "mode": "markers", "name": f"threshold {two.threshold:g}",
            "marker": {"color": "#D55E00", "size": 10, "symbol": "diamond"},
            "hovertemplate": f"{x} %{{x:.1%}}, {y} %{{y:.1%}}"}  # fmt: skip
    base = two.prevalence.value or 0.0
    ends = {"x0": 0, "x1": 1, "y0": 0 if ranked else base, "y1": 1 if ranked else base}
    chance = {"type": "line", "layer": "below", "line": GREY, **ends}
    return figure([line, mark], shapes=[chance], xaxis=percentages(x), yaxis=percentages(y))


def _rest(value: Estimate | None) -> Estimate | None:
    """1 − a rate."""
    if value is None or value.value is None:
        return None
    return Estimate(1 - value.value, None, None, value.level, value.count)


def _group_chart(groups: Groups, place: int, unit: str | None) -> Chart:
    """The first metric of each group with its interval, and that of all inputs as a line."""
    rows = groups.groupings[place].groups
    values = [row.metrics[0] for row in rows]
    middle = rounded(None if one is None else one.value for one in values)
    low, high = (rounded(None if one is None else getattr(one, end) for one in values) for end in ("low", "high"))
    share = groups.metrics[0].form == "percent"
    form = ".1%" if share else ".3g"
    trace = {
        "x": middle, "y": _distinct([row.name for row in rows]), "customdata": [row.inputs for row in rows],
        "mode": "markers", "marker": {"color": COLOURS[0], "size": 9}, "showlegend": False,
        "error_x": {"type": "data", "symmetric": False, "array": gaps(high, middle), "arrayminus": gaps(middle, low),
                    "thickness": 1.5, "width": 4, "color": COLOURS[0]},
        "hovertemplate": f"%{{y}}: %{{x:{form}}} (%{{customdata}} inputs)",
    }  # fmt: skip
    overall = groups.overall.metrics[0]
    whole = None if overall is None else overall.value
    line = {"type": "line", "x0": whole, "x1": whole, "y0": 0, "y1": 1, "yref": "paper", "layer": "below", "line": GREY}
    x = {"title": {"text": plain_text(groups.metrics[0].label_in(unit))}, **({"tickformat": "~%"} if share else {})}
    y = {"autorange": "reversed", "type": "category", "dtick": 1, "ticklabelstandoff": 6}
    return figure([trace], xaxis=x, yaxis=y, shapes=[] if whole is None else [line])


def _distinct(names: Sequence[str]) -> list[str]:
    """Names for an axis: cut at their end, and numbered if that makes two alike."""
    short = [name if len(name) <= LONG else f"{name[: LONG - 1]}…" for name in names]
    alike = len(set(short)) < len(short)
    return [plain_text(f"{i + 1}. {name}" if alike else name) for i, name in enumerate(short)]
