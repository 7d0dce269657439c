"""All charts of a page, by the id of their element."""

from __future__ import annotations

from whence.report.formatting import shortened
from whence.report.page.charts import (
    COLOURS,
    SETS,
    Chart,
    axis,
    column,
    deferral_curve,
    drawn_pairs,
    figure,
    has_errors,
    looks_of,
    novelty_layers,
    of_bins,
    p_values,
    pairs,
    plain_text,
    pruning_curve,
    rejection_curves,
    reliability,
    sensitivity_curve,
    uncertainties,
    uncertainty_of_methods,
)
from whence.report.page.layer_charts import layer_bars, layer_marks
from whence.report.page.layer_colours import layer_colours
from whence.report.record.audit import AuditRecord
from whence.report.record.comparison import Compared
from whence.report.record.difference import DiffRecord
from whence.report.uncertainty import shown


def audit_charts(record: AuditRecord) -> dict[str, Chart]:
    """The charts with data in the record, by the id of their element on the page."""
    quality, deferral, novelty = record.quality, record.deferral, record.novelty
    found: dict[str, Chart] = {}
    if quality and quality.reliability:
        found["reliability"] = reliability(drawn_pairs(quality.reliability, of_bins))
    if quality and quality.uncertainty:
        found["uncertainty"] = uncertainties(shown(quality.uncertainty, record.unit, record.data.elements))
    if deferral and deferral.curve and has_errors(pairs(deferral.curve)):
        found["deferral-curve"] = deferral_curve(deferral)
    if novelty and novelty.sets:
        found["novelty-layers"] = novelty_layers(novelty)
        found["novelty-p"] = p_values(novelty)
    if record.pruning and record.pruning.rows:
        found["pruning-curve"] = pruning_curve(record.pruning.rows, record.unit, record.pruning.guess)
    if record.sensitivity:
        found["sensitivity-curve"] = sensitivity_curve(record.sensitivity, layer_colours(record))
    return found | (comparison_charts(record.comparison) if record.comparison else {})


def comparison_charts(record: Compared) -> dict[str, Chart]:
    """The charts of a comparison."""
    looks, layers = looks_of(record.methods), record.layers
    rejection = list(zip(looks, record.rejection or (), strict=False))
    found: dict[str, Chart] = {}
    if any(record.reliability or ()):
        found["reliability"] = reliability(zip(looks, record.reliability or (), strict=True))
    if record.uncertainty and record.uncertainty.test:
        found["uncertainty"] = uncertainty_of_methods(shown(record.uncertainty, None, None), looks)
    if has_errors(rejection):
        found["rejection"] = rejection_curves(rejection, "error of the answered", record.has_labels, marks=True)
    if layers and any(layers.share):
        found["shares"] = layer_bars(layers, looks)
    if layers and any(layers.explained):
        lowest = min((v for row in layers.explained for v in row or () if v is not None), default=0.0)
        range_ = [min(-0.05, lowest - 0.05), 1.05]
        found["explained"] = layer_marks(
            layers, layers.explained, looks, {**axis("explained"), "range": range_, "tickformat": ".0%"}
        )
    if layers and any(layers.activations):
        x = {**axis("disagreement"), "rangemode": "tozero", "tickformat": "~g"}
        found["activations"] = layer_marks(layers, layers.activations, looks, x)
    return {f"compared-{name}-chart": chart for name, chart in found.items()}


def difference_charts(record: DiffRecord) -> dict[str, Chart]:
    """The layers' shares in two audits."""
    rows = [row for row in record.layers if row.old_share is not None or row.new_share is not None]
    if not rows:
        return {}
    traces = [
        {"type": "bar", "orientation": "h", "name": name, "marker": {"color": colour},
         "x": column(rows, field), "y": [plain_text(shortened(row.name)) for row in rows],
         "hovertemplate": "%{y}: %{x:.1%}"}
        for name, field, colour in (("old", "old_share", SETS["reference"]), ("new", "new_share", COLOURS[0]))
    ]  # fmt: skip
    x = {**axis("share of the variance"), "tickformat": ".0%"}
    y = {**axis(""), "autorange": "reversed", "type": "category"}
    return {"changed-shares": figure(traces, barmode="group", xaxis=x, yaxis=y, legend={"traceorder": "normal"})}
