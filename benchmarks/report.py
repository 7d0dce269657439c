"""The table, as plain text and as Markdown, the page of the documentation, and the JSON that all are made from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, bars

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
HEAD = ["contender", "batch", "seconds", "decomposition", "ratio", "peak MB", "difference", "note"]
BAR_HEAD = ["bar", "asked", "measured", "", "against"]
DEVICES = ("cpu", "cuda")


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    batch = f"{row['batch']:,}" if "batch" in row else "–"
    if "error" in row:
        return [row["contender"], batch, row["error"], "–", "–", "–", "–", row["note"]]
    peak, off, apart = row.get("peak_mb"), row.get("difference"), row.get("decomposition", 0.0)
    beside = f"{row['seconds'] / row['beside']:.3g} × its prediction" if row.get("beside") and row["scale"] == 1 else ""
    disturbed = f"other programs took {row['others']:.0%}" if row.get("others", 0) > 0.2 else ""
    return [
        row["contender"],
        batch,
        number(row["seconds"]),
        number(apart) if apart > 1e-4 else "–",
        "–" if row.get("ratio") is None else f"{number(row['ratio'])}×",
        "–" if peak is None else f"{peak:,.0f}",
        "–" if off is None else f"{off:.0e}",
        "; ".join(filter(None, [row["note"], beside, disturbed])),
    ]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bar_cells(bar: Bar) -> list[str]:
    figure = "–" if bar.figure is None else number(bar.figure)
    return [bar.what, bar.asked, figure, bar.verdict, bar.against]


def text(results: dict[str, Any], works: list[str]) -> str:
    """The works that were run in one plain table, and the bars that they decide."""
    tables = {results["works"][name]["title"]: results["works"][name]["rows"] for name in works}
    made = {title: [shortened(cells(row)) for row in rows] for title, rows in tables.items()}
    lines = [heading(results), "", *aligned(HEAD, made)]
    decided = [bar_cells(bar) for bar in bars(results) if bar.figure is not None]
    return "\n".join(lines + (["", *aligned(BAR_HEAD, {"": decided})] if decided else []))


def shortened(row: list[str], width: int = 60) -> list[str]:
    return [cell if len(cell) <= width else cell[: width - 1] + "…" for cell in row]


def aligned(head: list[str], tables: dict[str, list[list[str]]]) -> list[str]:
    rows = [head, *(row for table in tables.values() for row in table)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [joined(head, widths)]
    for title, table in tables.items():
        lines += ["", title] if title else []
        lines += [joined(row, widths) for row in table]
    return lines


def joined(row: list[str], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def heading(results: dict[str, Any]) -> str:
    m = results["machine"]
    device = f"{results['gpu']}; " if results.get("gpu") else ""
    peers = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return (
        f"{results['date']}. {device}{m['cpu']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}; "
        f"torch {results['torch']}, threads: {results['threads']}; whence {results['whence']}; {peers}"
    )


def markdown(results: dict[str, Any], level: str = "##") -> str:
    """Bars, then one table for each work."""
    name = {"cpu": "CPU", "cuda": "GPU"}[results["device"]]
    lines = [f"{level} {name}", "", f"{heading(results)}.", "", f"{level}# Bars, {name}", ""]
    lines += [line(BAR_HEAD), line(["---"] * len(BAR_HEAD)), *(line(bar_cells(bar)) for bar in bars(results))]
    for work in results["works"].values():
        base = {"epoch": "a training epoch", "forward": "a forward pass"}[work["base"]]
        head = [f"ratio to {base}" if cell == "ratio" else cell for cell in HEAD]
        lines += ["", f"{level}# {work['title']}", "", line(head), line(["---"] * len(HEAD))]
        lines += [line(cells(row)) for row in work["rows"]]
    return "\n".join(lines) + "\n"


def line(row: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def saved(folder: Path, device: str) -> dict[str, Any]:
    """What an earlier run left."""
    path = folder / f"{device}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def save(results: dict[str, Any], folder: Path) -> None:
    """JSON and Markdown; written aside first, so that a run that is cut leaves whole files."""
    folder.mkdir(parents=True, exist_ok=True)
    results = results | {"bars": [bar.to_dict() for bar in bars(results)]}
    write(folder / f"{results['device']}.json", json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    title = "# whence beside its peers\n\nSee [docs/benchmarks.md](../../docs/benchmarks.md) for what is measured.\n\n"
    write(folder / f"{results['device']}.md", title + markdown(results))


def write(path: Path, content: str) -> None:
    aside = path.with_suffix(path.suffix + ".part")
    aside.write_text(content)
    os.replace(aside, path)


BEGIN, END = "<!-- {} begin -->", "<!-- {} end -->"


def fill_page(folder: Path = RESULTS, page: Path = PAGE) -> None:
    """Put the saved tables between the markers of the page."""
    from benchmarks import answers_report, profile, profile_predictions

    tables = {
        "{}": markdown,
        "profile_{}": profile.markdown,
        "predictions_{}": profile_predictions.markdown,
        "answers_{}": answers_report.markdown,
    }
    content = page.read_text()
    for device in DEVICES:
        for name, made in tables.items():
            results = saved(folder, name.format(device))
            if results:
                content = between(content, name.format(device), made(results))
    write(page, content)


def between(content: str, device: str, filling: str) -> str:
    begin, end = BEGIN.format(device), END.format(device)
    head, _, rest = content.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise SystemExit(f"the page has no place for {device}: {begin} … {end}")
    return f"{head}{begin}\n{filling}{end}{tail}"


def profile_table(results: dict[str, Any], about: str, head: list[str], cells: Callable[[Any], list[str]]) -> str:
    """A profile as Markdown, with the machine and its rate above it."""
    m = results["machine"]
    where = results["gpu"] or f"{m['cpu']}, {m['cores']} cores"
    rate = f"a large float32 product runs at {results['gflops']:,.0f} GFLOP/s here"
    lines = [f"{where}, torch {results['torch']}; {rate}. Seconds; {about}.", "", line(head), line(["---"] * len(head))]
    return "\n".join(lines + [line(cells(row)) for row in results["rows"]]) + "\n"
