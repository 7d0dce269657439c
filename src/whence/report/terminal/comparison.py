"""A comparison's record in the terminal: one row per method, in as many tables as the width requires."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from whence.numerals import NONE, fixed, minus, percent, points
from whence.report.formatting import duration, size
from whence.report.record.common import Estimate, Form, Numbers
from whence.report.record.comparison import Agreement, Compared, ComparisonRecord, Distance, LayersOfMethods
from whence.report.terminal.tables import (
    WIDE,
    Column,
    bullets,
    estimate,
    facts,
    run_facts,
    section,
    split_tables,
    whole,
)


def comparison_view(record: ComparisonRecord, width: int = 80) -> RenderableType:
    """The terminal view of a comparison."""
    about = section("About this comparison", facts(run_facts(record.run)))
    return Group(_methods(record), *comparison_sections(record, width), about)


def comparison_sections(record: Compared, width: int, unit: str | None = None) -> list[RenderableType]:
    """The tables, also for a comparison inside an audit."""
    found = [
        _scores(record, width, unit) if record.metrics else None,
        _layers(record.names, record.layers, width) if record.layers else None,
        _agreement(record.agreement, width) if record.agreement else None,
        _distance(record.names, record.distance, width) if record.distance else None,
    ]
    return [part for part in found if part is not None]


def _methods(record: ComparisonRecord) -> RenderableType:
    """The methods, and a summary."""
    methods = facts([(method.name, method.describe) for method in record.methods])
    sets = {"test": record.data.test, "ood": record.data.ood}
    sizes = ", ".join(f"{name} {whole(found.inputs)}" for name, found in sets.items() if found)
    body = [methods, Text(), *bullets(record.words)] if record.words else [methods]
    return Panel(Group(*body), title=Text(record.title, style="bold"), subtitle=Text(sizes, style="dim"))


def _scores(record: Compared, width: int, unit: str | None) -> RenderableType:
    columns: list[Column] = []
    for metric in record.metrics:
        sign = {"lower": " ↓", "higher": " ↑"}.get(metric.better, " → 95%")
        cells = [
            _score(value, metric.form, good, width) for value, good in zip(metric.values, metric.best, strict=True)
        ]
        columns.append((metric.label_in(unit) + sign, cells))
    columns.append(("time", [Text(duration(method.seconds)) for method in record.methods]))
    if any(method.memory is not None for method in record.methods):
        columns.append(("memory", [Text(size(method.memory)) for method in record.methods]))
    note = "* best, or not significantly worse than the best; ↓ lower is better, ↑ higher"
    note += "; 95% intervals" if width >= WIDE else ""
    notes = [metric.note for metric in record.metrics if metric.note]
    return section("Methods on test data", split_tables("method", record.names, columns, width), notes, note)


def _score(value: Estimate | None, form: Form, best: bool, width: int) -> Text:
    """A score; bold and with a star if among the best."""
    shown = estimate(value, form, width >= WIDE)
    return Text(f"{shown} *", style="bold") if best else Text(f"{shown}  ")


def _layers(methods: list[str], layers: LayersOfMethods, width: int) -> RenderableType:
    parts: list[RenderableType] = []
    for title, rows in (("share", layers.share), ("explained", layers.explained), ("disagreement", layers.activations)):
        places = [i for i in range(len(layers.names)) if any(row and row[i] is not None for row in rows)]
        if places:
            errors = layers.error if title == "share" else (None,) * len(rows)
            columns = [
                (name, [_amount(values, error, i, title != "disagreement") for i in places])
                for name, values, error in zip(methods, rows, errors, strict=True)
                if values is not None
            ]
            table = split_tables("layer", [layers.names[i] for i in places], columns, width)
            parts += [Text(title, style="italic"), table, Text()]
    sentences = [f"{name}: {why}" for name, why in zip(methods, layers.why_not, strict=True) if why]
    pairs = zip(methods, layers.interaction, strict=True)
    between = [f"{name} {percent(value)}" for name, value in pairs if value is not None]
    if between:
        sentences.append(f"interaction between layers (variance not in the shares): {', '.join(between)}")
    note = (
        "share: of the output variance; explained: reduction of the prior variance; disagreement: 1 − CKA between draws"
    )
    return section("Source of the uncertainty by method", Group(*parts[:-1]), sentences, note)


def _amount(values: Numbers, errors: Numbers | None, place: int, share: bool) -> Text:
    value, error = values[place], None if errors is None else errors[place]
    if value is None or not share:
        return Text(fixed(value))
    return Text(percent(value) if error is None else f"{points(value)} ± {points(error)}%")


def _agreement(found: Agreement, width: int) -> RenderableType | None:
    if len(found.methods) < 2:
        return None
    columns: list[Column] = []
    for place, name in enumerate(found.methods):
        pairs = [(rho[place], moved[place]) for rho, moved in zip(found.rho, found.total_variation, strict=True)]
        texts = [(NONE if rho is None else minus(f"{rho:.2f}"), percent(moved)) for rho, moved in pairs]
        columns.append((name, [Text(f"{rho} ({moved})") for rho, moved in texts]))
    note = "rank correlation of the layers' shares (and the share of the variance that would have to shift)"
    return section("Agreement between methods", split_tables("", found.methods, columns, width), note=note)


def _distance(methods: list[str], found: Distance, width: int) -> RenderableType:
    columns: list[Column] = []
    for title, values in (("total variation", found.total_variation), ("Wasserstein", found.wasserstein)):
        if any(values):
            texts = [
                Text("the reference", style="dim") if name == found.reference else Text(estimate(value))
                for name, value in zip(methods, values, strict=True)
            ]
            columns.append((title, texts))
    note = "mean distance of the predictions over test inputs; lower is closer"
    return section(f"Distance from {found.reference}", split_tables("method", methods, columns, width), note=note)
