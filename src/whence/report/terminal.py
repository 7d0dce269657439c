"""An audit's record, or what a posterior's file says, in the terminal. Draws what is there, computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whence.errors import MissingExtra

try:
    from rich.console import Console, Group, JustifyMethod, RenderableType
    from rich.padding import Padding
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text
except ImportError as missing:
    raise MissingExtra("this needs rich: pip install 'whence[cli]'") from missing

STYLES = {"good": "green", "mixed": "yellow", "poor": "red", "note": "dim", "unknown": "dim"}
MARKS = {"good": "+", "mixed": "~", "poor": "!", "note": ">", "unknown": "?"}
EIGHTHS = " ▏▎▍▌▋▊▉█"
WIDE = 110  # characters from which on every interval is shown
WIDEST = 120  # beyond which lines are hard to read


def show_audit(record: Mapping[str, Any], console: Console | None = None) -> None:
    """Print an audit's record."""
    place(console or Console(highlight=False), audit, record)


def place(console: Console, view: Callable[[Any, int], RenderableType], about: Any) -> None:
    """Print a view at the console's width, but no wider than can be read."""
    width = min(console.width, WIDEST)
    console.print(view(about, width), width=width)


def audit(record: Mapping[str, Any], width: int = 80) -> RenderableType:
    """Everything of an audit that a terminal can show: verdict, quality, deferral, layers, answers, what is missing."""
    wide = width >= WIDE
    parts = [
        _verdict(record),
        _quality(record.get("quality"), wide),
        _deferral(record.get("deferral"), wide),
        _layers(record, wide),
        _novelty(record.get("novelty")),
        _answers(record.get("answers")),
        _run(record),
    ]
    return Group(*(part for part in parts if part is not None))


def verdict(record: Mapping[str, Any], width: int = 80) -> RenderableType:
    """The verdict and how far it can be trusted: what is said at the end of an audit."""
    return Group(_verdict(record), _missing(_grid(), record.get("run") or {}))


def facts(rows: Sequence[tuple[str, str]]) -> RenderableType:
    """Labels and what they say."""
    table = _grid()
    for label, words in rows:
        _row(table, label, words)
    return table


def posterior(about: Mapping[str, Any], width: int = 80) -> RenderableType:
    """What the file of a posterior says of it."""
    table = _table("layer", "kind", "weights>", "structure", "prior precision>")
    for row in about["layers"]:
        structure = Text(row["structure"])
        if row["reason"]:
            structure.append(f"  {row['reason']}", style="dim")
        prior = number(row["prior_precision"]) if row["prior_precision"] is not None else "per weight"
        _row(table, row["name"], row["kind"], whole(row["parameters"]), structure, prior)
    return Group(_heading("Posterior", str(about["path"])), facts(_facts(about)), Text(), table)


def _facts(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    tuned, accuracy, versions = about["tuning"], about["training_accuracy"], about["versions"]
    prior = about["prior_precision"]
    words = "not tuned: call .tune(validation_data)"
    if tuned is not None:
        words = f"by {tuned['criterion']} ({tuned['trials']} trials), score {number(tuned['score'])}"
    found = [
        ("method", f"Laplace, structure {about['structure']}, curvature {about['curvature']}"),
        ("likelihood", about["likelihood"]),
        ("weights", f"{whole(about['parameters'])} Bayesian of {whole(about['network_parameters'])}"),
        ("training data", f"{whole(about['data_size'])} examples, loss {number(about['training_loss'])} for each"),
        ("training accuracy", "–" if accuracy is None else percent(accuracy)),
        ("prior precision", number(prior) if prior is not None else "differs between layers, see below"),
        ("data scale", number(about["data_scale"])),
        ("tuned", words),
        ("novelty reference", f"{whole(about['reference'])} inputs" if about["reference"] else "none kept"),
        ("written by", f"whence {versions['whence']}, torch {versions['torch']}; {whole(about['bytes'])} bytes"),
    ]
    return [fact for fact in found if fact[1] != "–"]


def _verdict(record: Mapping[str, Any]) -> RenderableType:
    found, network = record.get("verdict") or {}, record.get("network") or {}
    tone = found.get("tone") or "unknown"
    points = _grid()
    lead = found.get("words") or "No verdict was reached."
    for point in found.get("points") or []:
        lead = " ".join(lead.replace(point["words"], "").split())  # what a point says is not said twice
    body: list[RenderableType] = [Text(lead)] if lead else []
    if found.get("points"):
        for point in found["points"]:
            style = STYLES.get(point["tone"], "")
            label = Text(f"{MARKS.get(point['tone'], ' ')} {point['label']}", style=style)
            _row(points, label, Text(point["words"]))
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
    table = _table("", "plain>", "Bayesian>", "Bayesian − plain>")
    for row in quality["metrics"]:
        arrow = {"lower": " ↓", "higher": " ↑"}.get(row.get("better", ""), "")
        values = [estimate(row[key], interval=wide) for key in ("plain", "bayesian")]
        _row(table, f"{row['label']}{arrow}", *values, Text(estimate(row.get("difference")), style=_gain(row)))
    return _section("Quality on test data", table, quality.get("words"), "↓ lower is better, ↑ higher; 95 % intervals")


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
    table = _table("aim", "above>", "answered>", "error of those>", "of the others>")
    for row in deferral["rows"]:
        test = row["test"]
        nothing = "never" if (row["validation"].get("coverage") or 0.0) >= 1 else "always"
        limit = nothing if row.get("threshold") is None else number(row["threshold"])
        answered = estimate(test.get("coverage"), tenths, " %", wide)
        cells = [estimate(test.get("error"), shown, unit), estimate(test.get("deferred_error"), shown, unit, wide)]
        _row(table, _aim(row, rate), limit, answered, *cells)
    label = deferral.get("label") or deferral["measure"]
    note = f"above this {label}; chosen on validation data, measured on test data"
    note += "" if rate else f"; error: {deferral.get('error')}"
    return _section("When to hand over to a person", table, deferral.get("words"), note)


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
    columns += ["share of the variance" if wide else "share", "prior>", "explained>"] if share else []
    columns += ["novel:\nshare>", "\nexplained>"] if ood else []
    table = _table(*columns)
    for row in rows:
        test, novel = row.get("test") or {}, row.get("ood") or {}
        cells: dict[str, RenderableType] = {
            "layer": row["name"],
            "kind": row["kind"],
            "weights>": whole(row["parameters"]),
            "identified>": percent(row.get("identified")),
            "share of the variance": bar(test.get("variance_share"), 12),
            "share": bar(test.get("variance_share"), 8),
            "prior>": percent(test.get("prior_share")),
            "explained>": percent(test.get("explained")),
            "novel:\nshare>": percent(novel.get("variance_share")),
            "\nexplained>": percent(novel.get("explained")),
        }
        _row(table, *(cells[name] for name in columns))
    note = "share: of the outputs' variance; prior: before any data; explained: what the data settled of it"
    words = (record.get("profile") or {}).get("words")
    return _section("Where it sits", table, words, note if share else "")


def _novelty(novelty: Mapping[str, Any] | None) -> RenderableType | None:
    if not novelty or not (novelty.get("words") or novelty.get("detectors")):
        return None
    table = None
    if novelty.get("detectors"):
        table = _table("detector", "AUROC>", "FPR at 95 %>")
        for row in novelty["detectors"]:
            _row(table, row["label"], estimate(row["auroc"]), estimate(row["fpr95"]))
    return _section("Is it like the training data?", table, novelty.get("words"), "")


def _answers(answers: Sequence[Mapping[str, Any]] | None) -> RenderableType | None:
    if not answers:
        return None
    body: list[RenderableType] = []
    for row in answers:
        body += [Text(row["question"], style="bold"), Padding(Text(row["words"]), (0, 0, 0, 2))]
    return _section("Answers", Group(*body), None, "")


def _run(record: Mapping[str, Any]) -> RenderableType | None:
    run = record.get("run") or {}
    about, versions, seconds = run.get("posterior") or {}, run.get("versions") or {}, run.get("seconds") or {}
    table = _grid()
    if about:
        prior = "" if about.get("prior_precision") is None else f", prior precision {number(about['prior_precision'])}"
        _row(
            table,
            "posterior",
            f"{about.get('structure')}, {about.get('curvature')}{prior}, data scale {number(about.get('data_scale'))}, "
            f"tuned on {about.get('tuned_on')}",
        )
    if run.get("covered") is not None:
        _row(table, "covered", f"{percent(run['covered'])} of the parameters")
    for words in run.get("not_covered") or []:
        _row(table, "not covered", words)
    for notice in run.get("notices") or []:
        _row(table, "note", Text(notice))
    if versions:
        took = f"; {sum(v for v in seconds.values() if v):.0f} s" if seconds else ""
        where = f"; seed {run.get('seed')}, {run.get('device')}{took}"
        _row(table, "run", ", ".join(f"{k} {v}" for k, v in versions.items()) + where)
    _missing(table, run)
    return _section("About this audit", table, None, "") if table.row_count else None


def _missing(table: Table, run: Mapping[str, Any]) -> Table:
    """Rows for what was not done, and why."""
    if run.get("interrupted"):
        _row(table, Text("interrupted", style="red"), f"during {run['interrupted']}; what was finished is shown")
    reasons: dict[str, list[str]] = {}
    for row in run.get("left_out") or []:
        reasons.setdefault(row["why"], []).append(row["what"])
    for why, what in reasons.items():
        _row(table, Text("left out", style="yellow"), f"{', '.join(what)}: {why}")
    return table


def _section(title: str, body: RenderableType | None, words: Sequence[str] | None, note: str) -> RenderableType:
    parts: list[RenderableType] = [_heading(title, note)]
    parts += [] if body is None else [body]
    parts += [Text(f"• {sentence}") for sentence in words or []]
    return Group(*parts)


def _heading(title: str, note: str) -> Text:
    heading = Text.assemble("\n", (title, "bold"))
    return heading.append(f"\n{note}", style="dim") if note else heading


def _row(table: Table, *cells: RenderableType) -> None:
    """Add a row; strings are taken as they are, without markup."""
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def _grid() -> Table:
    """Two columns: a label and words."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column()
    return table


def _table(*columns: str) -> Table:
    """A table whose first column gives way; a name that ends in > is set to the right."""
    table = Table(box=None, header_style="cyan", padding=(0, 2, 0, 0), pad_edge=False)
    for place, name in enumerate(columns):
        justify: JustifyMethod = "right" if name.endswith(">") else "left"
        folds = place == 0 or name == "structure"
        table.add_column(Text(name.removesuffix(">")), justify=justify, no_wrap=not folds, overflow="fold")
    return table


def bar(share: float | None, length: int) -> Text:
    """A share as a bar of text blocks, with its number; negative ones have no bar."""
    if share is None:
        return Text("–")
    eighths = round(max(0.0, min(1.0, share)) * length * 8)
    drawn = "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
    return Text.assemble((drawn.ljust(length), "magenta"), f" {percent(share):>6}")


def estimate(
    found: Mapping[str, Any] | None, shown: Callable[[float], str] | None = None, unit: str = "", interval: bool = True
) -> str:
    """A value with its interval."""
    if not found or found.get("value") is None:
        return "–"
    values = [found["value"], found.get("low"), found.get("high")]
    one = shown or _alike(values)
    value = f"{one(found['value'])}{unit}"
    if not interval or None in values:
        return value
    return f"{value} [{one(found['low'])}, {one(found['high'])}]"


def _alike(values: Sequence[float | None]) -> Callable[[float], str]:
    """One way to write numbers that stand together: as many decimals as the largest one asks for."""
    largest = max(abs(value) for value in values if value is not None)
    if not 0.01 <= largest < 10_000:
        return number
    decimals = 3 if largest < 10 else 1 if largest < 1_000 else 0
    return lambda value: f"{value:.{decimals}f}".replace("-", "−")


def tenths(value: float) -> str:
    """A part in per cent, without its sign."""
    return f"{100 * value:.1f}".replace("-", "−")


def number(value: float | None) -> str:
    """Three significant digits, without an exponent where that is short."""
    if value is None:
        return "–"
    text = f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 10 else f"{value:.3g}"
    return text.replace("-", "−", 1) if value < 0 else text


def percent(value: float | None) -> str:
    """A part as a percentage."""
    return "–" if value is None else f"{tenths(value)} %"


def whole(value: float | None) -> str:
    """A count with separators."""
    return "–" if value is None else f"{value:,.0f}"
