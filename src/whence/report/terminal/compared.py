"""A comparison's record in the terminal: one row for each method, in as many tables as the width asks for."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from whence.report.terminal.cells import (
    WIDE,
    add_row,
    estimate,
    missing_rows,
    new_grid,
    new_table,
    number,
    percent,
    section,
    tenths,
    whole,
)

Column = tuple[str, list[Text]]  # a heading, and a cell for each row
NARROWEST = 9  # letters of a heading's line
LONGEST = 24  # of a name of a row, before it folds
GAP = 2


def comparison(record: Mapping[str, Any], width: int = 80) -> RenderableType:
    """Everything of a comparison that a terminal can show."""
    parts = [_lead(record), *_sections(record, width), _run(record)]
    return Group(*(part for part in parts if part is not None))


def inside(record: Mapping[str, Any] | None, width: int) -> RenderableType | None:
    """A comparison as one part of an audit."""
    if not record or not record.get("methods"):
        return None
    found = [part for part in _sections(record, width) if part is not None]
    return Group(*found, *(Text(f"• {words}") for words in record.get("words") or []))


def _sections(record: Mapping[str, Any], width: int) -> list[RenderableType | None]:
    return [_scores(record, width), _layers(record, width), _agreement(record, width), _distance(record, width)]


def _names(record: Mapping[str, Any]) -> list[str]:
    return [str(method["name"]) for method in record.get("methods") or []]


def _lead(record: Mapping[str, Any]) -> RenderableType:
    """What was compared, and what it comes to."""
    methods = new_grid()
    for method in record.get("methods") or []:
        add_row(methods, str(method["name"]), str(method.get("describe") or method.get("kind") or ""))
    data = record.get("data") or {}
    sizes = [f"{name} {whole(part['inputs'])}" for name in ("test", "ood") if (part := data.get(name))]
    body: list[RenderableType] = [Text(f"• {words}") for words in record.get("words") or []]
    body = [methods, Text(), *body] if body else [methods]
    title = Text(str(record.get("title") or "Comparison"), style="bold")
    return Panel(Group(*body), title=title, subtitle=Text(", ".join(sizes), style="dim"))


def _scores(record: Mapping[str, Any], width: int) -> RenderableType | None:
    metrics, methods = record.get("metrics") or [], record.get("methods") or []
    if not metrics:
        return None
    columns: list[Column] = []
    for metric in metrics:
        sign = {"lower": " ↓", "higher": " ↑"}.get(metric["better"], f" → {metric['better']}")
        best = metric.get("best") or [False] * len(methods)
        cells = [_score(value, good, width) for value, good in zip(metric["values"], best, strict=True)]
        columns.append((metric["label"] + sign, cells))
    columns.append(("time", [Text(_seconds(method.get("seconds"))) for method in methods]))
    if any(method.get("memory") is not None for method in methods):
        columns.append(("memory", [Text(_size(method.get("memory"))) for method in methods]))
    note = "* best, or not worse than the best by more than chance; ↓ lower is better, ↑ higher"
    note += "; 95 % intervals" if width >= WIDE else ""
    return section("Methods on test data", _packed("method", _names(record), columns, width), None, note)


def _score(value: Mapping[str, Any] | None, best: bool, width: int) -> Text:
    """Bold and with a star where it is among the best."""
    shown = estimate(value, interval=width >= WIDE)
    return Text(f"{shown} *", style="bold") if best else Text(f"{shown}  ")


def _packed(corner: str, names: Sequence[str], columns: Sequence[Column], width: int) -> RenderableType:
    """The columns in as many tables as the width asks for, each with the names of the rows."""
    first = max([len(corner), *(min(len(name), LONGEST) for name in names)]) + GAP
    tables: list[list[Column]] = []
    left = 0
    for title, cells in columns:
        widest = max((cell.cell_len for cell in cells), default=0)
        heading = textwrap.wrap(title, max(widest, NARROWEST, *(min(len(word), LONGEST) for word in title.split())))
        needs = max([widest, *map(len, heading)]) + GAP
        if not tables or needs > left:
            tables.append([])
            left = width - first
        left -= needs
        tables[-1].append(("\n".join(heading), cells))
    drawn: list[RenderableType] = []
    for kept in tables:
        table = new_table(corner, *(f"{title}>" for title, _ in kept))
        table.columns[0].max_width = LONGEST
        for place, name in enumerate(names):
            add_row(table, name, *(cells[place] for _, cells in kept))
        drawn += [Text(), table] if drawn else [table]
    return Group(*drawn)


def _layers(record: Mapping[str, Any], width: int) -> RenderableType | None:
    layers = record.get("layers")
    if not layers:
        return None
    names, rows = layers["names"], []
    for key, title in (("share", "share"), ("explained", "explained"), ("activations", "disagreement")):
        having = [i for i in range(len(names)) if any(_at(row, i) is not None for row in layers.get(key) or [])]
        if having:
            columns = _by_layer(record, layers, key, having)
            kept = [str(names[i]) for i in having]
            rows += [Text(title, style="italic"), _packed("layer", kept, columns, width), Text()]
    why = [
        f"{name}: {reason}" for name, reason in zip(_names(record), layers.get("why_not") or [], strict=False) if reason
    ]
    rest = [
        f"{name} {percent(value)}"
        for name, value in zip(_names(record), layers.get("interaction") or [], strict=False)
        if value is not None
    ]
    why += [f"interaction between layers, which the shares leave of the variance: {', '.join(rest)}"] if rest else []
    note = (
        "share: of the outputs' variance; explained: what the data settled of it; disagreement: 1 − CKA between draws"
    )
    return section("Where each method puts it", Group(*rows[:-1]), why, note)


def _by_layer(record: Mapping[str, Any], layers: Mapping[str, Any], key: str, having: list[int]) -> list[Column]:
    """One column for each method that has the quantity, for the layers that have it."""
    columns: list[Column] = []
    for place, (name, values) in enumerate(zip(_names(record), layers.get(key) or [], strict=False)):
        if values is not None:
            errors = _at(layers.get("error"), place) if key == "share" else None
            cells = [_amount(values[i], _at(errors, i), key == "share") for i in having]
            columns.append((name, [Text(cell) for cell in cells]))
    return columns


def _at(rows: Sequence[Any] | None, place: int) -> Any:
    return rows[place] if rows and place < len(rows) else None


def _amount(value: float | None, error: float | None, part: bool) -> str:
    if value is None:
        return "–"
    if not part:
        return number(value)
    return percent(value) if error is None else f"{tenths(value)} ± {tenths(error)} %"


def _agreement(record: Mapping[str, Any], width: int) -> RenderableType | None:
    found = record.get("agreement")
    if not found or len(found["methods"]) < 2:
        return None
    names = found["methods"]
    columns: list[Column] = []
    for place, name in enumerate(names):
        pairs = zip(found["rho"], found["total_variation"], strict=True)
        columns.append((name, [Text(f"{_two(rho[place])} ({percent(moved[place])})") for rho, moved in pairs]))
    note = "rank correlation of the layers' shares (and the part of the variance that would have to move)"
    return section("Do they agree on where?", _packed("", names, columns, width), None, note)


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def _distance(record: Mapping[str, Any], width: int) -> RenderableType | None:
    found = record.get("distance")
    if not found:
        return None
    kinds = (("total_variation", "total variation"), ("wasserstein", "Wasserstein"))
    names, columns = _names(record), []
    for key, title in kinds:
        if any(found.get(key) or []):
            shown = [_apart(name, value, found["reference"]) for name, value in zip(names, found[key], strict=True)]
            columns.append((title, shown))
    note = "of the predictions, on average over test inputs; lower is nearer"
    return section(f"Distance from {found['reference']}", _packed("method", names, columns, width), None, note)


def _apart(name: str, value: Mapping[str, Any] | None, reference: str) -> Text:
    return Text("the reference", style="dim") if name == reference else Text(estimate(value))


def _run(record: Mapping[str, Any]) -> RenderableType | None:
    run = record.get("run") or {}
    table, versions, seconds = new_grid(), run.get("versions") or {}, run.get("seconds") or {}
    for notice in run.get("notices") or []:
        add_row(table, "note", str(notice))
    if versions:
        took = f"; {sum(v for v in seconds.values() if v):.0f} s" if seconds else ""
        where = f"; seed {run.get('seed')}, {run.get('device')}{took}"
        add_row(table, "run", ", ".join(f"{k} {v}" for k, v in versions.items()) + where)
    missing_rows(table, run)
    return section("About this comparison", table, None, "") if table.row_count else None


def _seconds(value: float | None) -> str:
    if value is None or value >= 1:
        return "–" if value is None else f"{value:.1f} s"
    return f"{1000 * value:{'.0f' if value >= 0.001 else '.1g'}} ms"


def _size(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:.3g} MB"
