"""The table, as plain text and as Markdown, and the JSON that both are made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
NAME = "laplace_engine_cpu"
HEAD = ["contender", "seconds", "ratio", "peak MB", "difference", "bar", "", "note"]


def numbers(row: dict[str, Any]) -> list[str]:
    """The cells of a row."""
    bars = row["bars"]
    limits = " / ".join(b["bar"] for b in bars) or "–"
    if "error" in row:
        return [row["contender"], row["error"], "–", "–", "–", limits, "–", row["note"]]
    peak, off = row.get("peak_mb"), row.get("difference")
    disturbed = f"other programs took {row['others']:.0%}" if row.get("others", 0) > 0.2 else ""
    return [
        row["contender"],
        f"{row['seconds']:.3g}" if row["seconds"] < 100 else f"{row['seconds']:,.0f}",
        "–" if row["ratio"] is None else ratio_text(row["ratio"]),
        "–" if peak is None else f"{peak:,.0f}",
        "–" if off is None else f"{off:.1e}",
        limits,
        " / ".join(verdict(b) for b in bars) or "–",
        "; ".join(filter(None, [row["note"], disturbed])),
    ]


def ratio_text(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.3g}×"


def verdict(bar: dict[str, Any]) -> str:
    if bar["met"] is None:
        return "–"
    return f"{'met' if bar['met'] else 'MISSED'} ({ratio_text(bar['ratio'])})"


def text(results: dict[str, Any]) -> str:
    """All works in one plain table."""
    tables = {w["title"]: [numbers(row) for row in w["rows"]] for w in results["works"].values()}
    cells = [HEAD, *(row for rows in tables.values() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [heading(results), "", joined(HEAD, widths)]
    for title, rows in tables.items():
        lines += ["", title, *(joined(row, widths) for row in rows)]
    return "\n".join(lines)


def joined(cells: list[str], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def heading(results: dict[str, Any]) -> str:
    m = results["machine"]
    return (
        f"{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}; torch {results['torch']} with 2 threads, "
        f"laplace-torch {results['laplace_torch']}"
    )


INTRODUCTION = """\
Every contender runs in a process of its own, on the same random data (batches of 512, 10 classes, default
initialisation). Seconds are the median of up to five repeats after a first one; what takes more than 5 s is measured
once. Peak memory is above the level with model and data loaded (for predictions, with the fitted posterior as well).
The ratio is over the first row of each work, in the same run. Differences are ‖theirs − ours‖ / ‖ours‖ of what is
named below each table. Bars are on ratios: "time ≥ 20×" beside laplace-torch asks that it takes at least 20 times our
seconds; "≤" bars are on rows of our own. A measurement during which other programs took more than a fifth of the
machine is repeated, and marked if they still did."""


def markdown(results: dict[str, Any]) -> str:
    """The same as Markdown, one table for each work."""
    lines = ["# whence beside laplace-torch, CPU", "", f"{heading(results)}.", "", INTRODUCTION]
    for work in results["works"].values():
        lines += ["", f"## {work['title']}", "", row_line(HEAD), row_line(["---"] * len(HEAD))]
        lines += [row_line(numbers(row)) for row in work["rows"]]
        if work["difference"]:
            lines += ["", f"Difference: {work['difference']}."]
    return "\n".join(lines) + "\n"


def row_line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def saved() -> dict[str, Any]:
    """What an earlier run left."""
    path = RESULTS / f"{NAME}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def save(results: dict[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{NAME}.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    (RESULTS / f"{NAME}.md").write_text(markdown(results))
