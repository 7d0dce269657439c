"""An audit's record in the terminal. Draws what is there, computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from whence.report.terminal.cells import (
    WIDE,
    add_row,
    bar,
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
from whence.report.terminal.compared import inside

STYLES = {"good": "green", "mixed": "yellow", "poor": "red", "note": "dim", "unknown": "dim"}
MARKS = {"good": "+", "mixed": "~", "poor": "!", "note": ">", "unknown": "?"}


def audit(record: Mapping[str, Any], width: int = 80) -> RenderableType:
    """Everything of an audit that a terminal can show: verdict, quality, methods, deferral, layers, answers."""
    wide = width >= WIDE
    parts = [
        _verdict(record),
        _quality(record.get("quality"), wide),
        inside(record.get("comparison"), width),
        _deferral(record.get("deferral"), wide),
        _layers(record, wide),
        _novelty(record.get("novelty")),
        _answers(record.get("answers")),
        _run(record),
    ]
    return Group(*(part for part in parts if part is not None))


def verdict(record: Mapping[str, Any], width: int = 80) -> RenderableType:
    """The verdict and how far it can be trusted: what is said at the end of an audit."""
    return Group(_verdict(record), missing_rows(new_grid(), record.get("run") or {}))


def _verdict(record: Mapping[str, Any]) -> RenderableType:
    found, network = record.get("verdict") or {}, record.get("network") or {}
    tone = found.get("tone") or "unknown"
    points = new_grid()
    lead = found.get("words") or "No verdict was reached."
    for point in found.get("points") or []:
        lead = " ".join(lead.replace(point["words"], "").split())  # what a point says is not said twice
    body: list[RenderableType] = [Text(lead)] if lead else []
    if found.get("points"):
        for point in found["points"]:
            style = STYLES.get(point["tone"], "")
            label = Text(f"{MARKS.get(point['tone'], ' ')} {point['label']}", style=style)
            add_row(points, label, Text(point["words"]))
        body += [Text(), points] if lead else [points]
    title = record.get("title") or network.get("kind") or "Audit"
    return Panel(
        Group(*body),
        title=Text(str(title), style="bold"),
        subtitle=_subtitle(record),
        border_style=STYLES.get(tone, ""),
    )


def _subtitle(record: Mapping[str, Any]) -> Text:
    network, data = record.get("network") or {}, record.get("data") or {}
    sizes = [
        f"{name} {whole(part['inputs'])}" for name in ("train", "validation", "test", "ood") if (part := data.get(name))
    ]
    weights = f"{whole(network['parameters'])} parameters" if network.get("parameters") is not None else ""
    return Text("; ".join(part for part in (weights, ", ".join(sizes)) if part), style="dim")


def _quality(quality: Mapping[str, Any] | None, wide: bool) -> RenderableType | None:
    if not quality or not quality.get("metrics"):
        return None
    table = new_table("", "plain>", "Bayesian>", "Bayesian − plain>")
    for row in quality["metrics"]:
        arrow = {"lower": " ↓", "higher": " ↑"}.get(row.get("better", ""), "")
        values = [estimate(row[key], interval=wide) for key in ("plain", "bayesian")]
        add_row(table, f"{row['label']}{arrow}", *values, Text(estimate(row.get("difference")), style=_gain(row)))
    return section("Quality on test data", table, quality.get("words"), "↓ lower is better, ↑ higher; 95 % intervals")


def _gain(row: Mapping[str, Any]) -> str:
    """Green or red where the interval of a difference leaves out zero."""
    found = row.get("difference") or {}
    low, high = found.get("low"), found.get("high")
    if row.get("better") not in ("lower", "higher") or low is None or high is None or low <= 0 <= high:
        return ""
    return "green" if (high < 0) == (row.get("better") == "lower") else "red"


def _deferral(deferral: Mapping[str, Any] | None, wide: bool) -> RenderableType | None:
    if not deferral or not deferral.get("rows"):
        return None
    rate = deferral.get("error") == "error rate"
    shown, unit = (tenths, " %") if rate else (number, "")
    table = new_table("aim", "above>", "answered>", "error of those>", "of the others>")
    for row in deferral["rows"]:
        test = row["test"]
        answers = row.get("answers") or ("all" if (row["validation"].get("coverage") or 0.0) >= 1 else "none")
        limit = "never" if answers == "all" else "always"
        limit = limit if row.get("threshold") is None else number(row["threshold"])
        answered = estimate(test.get("coverage"), tenths, " %", wide)
        cells = [estimate(test.get("error"), shown, unit), estimate(test.get("deferred_error"), shown, unit, wide)]
        add_row(table, _aim(row, rate), limit, answered, *cells)
    label = deferral.get("label") or deferral["measure"]
    note = f"above this {label}; chosen on validation data, measured on test data"
    note += "" if rate else f"; error: {deferral.get('error')}"
    return section("When to hand over to a person", table, deferral.get("words"), note)


def _aim(row: Mapping[str, Any], rate: bool) -> str:
    """What a rule is to reach."""
    if row["aim"] == "coverage":
        return f"answer {100 * row['target']:.3g} %"
    sure = f", {100 * row['confidence']:.3g} % sure" if row.get("confidence") else ""
    most = f"{100 * row['target']:.3g} %" if rate else number(row["target"])
    return f"error ≤ {most}{sure}"


def _layers(record: Mapping[str, Any], wide: bool) -> RenderableType | None:
    rows = record.get("layers")
    if not rows:
        return None
    ood = any(row.get("ood") for row in rows)
    share = any(row.get("test") for row in rows)
    columns = ["layer", *(["kind"] if wide or not share else []), "weights>"]
    columns += ["identified>"] if wide or not share else []
    ranged = any((row.get("test") or {}).get("share_low") is not None for row in rows)
    columns += ["share of the variance" if wide else "share"] if share else []
    columns += ["τ/10 … 10τ>"] if ranged else []
    columns += ["prior>", "explained>"] if share else []
    columns += ["novel:\nshare>", "\nexplained>"] if ood else []
    table = new_table(*columns)
    for row in rows:
        test, novel = row.get("test") or {}, row.get("ood") or {}
        cells: dict[str, RenderableType] = {
            "layer": row["name"],
            "kind": row["kind"],
            "weights>": whole(row["parameters"]),
            "identified>": percent(row.get("identified")),
            "share of the variance": bar(test.get("variance_share"), 12),
            "share": bar(test.get("variance_share"), 8),
            "τ/10 … 10τ>": _range(test),
            "prior>": percent(test.get("prior_share")),
            "explained>": percent(test.get("explained")),
            "novel:\nshare>": percent(novel.get("variance_share")),
            "\nexplained>": percent(novel.get("explained")),
        }
        add_row(table, *(cells[name] for name in columns))
    note = "share: of the outputs' variance; prior: before any data; explained: by how much training reduced it"
    note += "; τ/10 … 10τ: its range under weaker and stronger priors" if ranged else ""
    words = (record.get("profile") or {}).get("words")
    return section("Where it sits", table, words, note if share else "")


def _range(shares: Mapping[str, Any]) -> str:
    low, high = shares.get("share_low"), shares.get("share_high")
    return "" if low is None or high is None else f"{100 * low:.0f}–{100 * high:.0f} %"


def _novelty(novelty: Mapping[str, Any] | None) -> RenderableType | None:
    if not novelty or not (novelty.get("words") or novelty.get("detectors")):
        return None
    table = None
    if novelty.get("detectors"):
        table = new_table("detector", "AUROC>", "FPR at 95 %>")
        for row in novelty["detectors"]:
            add_row(table, row["label"], estimate(row["auroc"]), estimate(row["fpr95"]))
    return section("Is it like the training data?", table, novelty.get("words"), "")


def _answers(answers: Sequence[Mapping[str, Any]] | None) -> RenderableType | None:
    if not answers:
        return None
    body: list[RenderableType] = []
    for row in answers:
        body += [Text(row["question"], style="bold"), Padding(Text(row["words"]), (0, 0, 0, 2))]
    return section("Answers", Group(*body), None, "")


def _run(record: Mapping[str, Any]) -> RenderableType | None:
    run = record.get("run") or {}
    about, versions, seconds = run.get("posterior") or {}, run.get("versions") or {}, run.get("seconds") or {}
    table = new_grid()
    if about and about.get("structure") is None:
        add_row(table, "posterior", str(about.get("describe") or about.get("kind") or "–"))
    elif about:
        given = about.get("prior") or (about.get("prior_precision") and number(about["prior_precision"]))
        prior = f", prior precision {given}" if given else ""
        add_row(
            table,
            "posterior",
            f"{about.get('structure')}, {about.get('curvature')}{prior}, data scale {number(about.get('data_scale'))}, "
            f"tuned on {about.get('tuned_on')}",
        )
    if run.get("covered") is not None:
        add_row(table, "covered", f"{percent(run['covered'])} of the parameters")
    for words in run.get("not_covered") or []:
        add_row(table, "not covered", words)
    for notice in run.get("notices") or []:
        add_row(table, "note", Text(notice))
    if versions:
        took = f"; {sum(v for v in seconds.values() if v):.0f} s" if seconds else ""
        where = f"; seed {run.get('seed')}, {run.get('device')}{took}"
        add_row(table, "run", ", ".join(f"{k} {v}" for k, v in versions.items()) + where)
    missing_rows(table, run)
    return section("About this audit", table, None, "") if table.row_count else None
