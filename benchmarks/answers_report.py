"""Tables of ``benchmarks.answers`` and its aims, from its results file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.answers_networks import NETWORKS
from benchmarks.bars import Bar
from benchmarks.report import BAR_HEAD, aligned, bar_cells, line, number, write

Row = dict[str, Any]
HEAD = [
    "network", "work", "contender", "inputs", "batch", "seconds", "ms an input", "epochs", "forward passes",
    "predictions", "peak MB", "note",
]  # fmt: skip


def ratio(row: Row, base: str) -> float | None:
    """Seconds in those of ``base``: epoch, forward or prediction."""
    return row["seconds"] / row[base] if row.get(base) and "seconds" in row else None


def cells(row: Row) -> list[str]:
    start = [row["network"], row["work"], row["contender"]]
    if "error" in row:
        return [*start, *["–"] * (len(HEAD) - 4), row["error"]]
    ratios = [ratio(row, base) for base in ("epoch", "forward", "prediction")]
    peak = row.get("peak_mb")
    return [
        *start, f"{row['inputs']:,}", f"{row['batch']:,}", number(row["seconds"]),
        number(1e3 * row["seconds"] / row["inputs"]), *("–" if r is None else number(r) for r in ratios),
        "–" if peak is None else f"{max(peak, 0.0):,.0f}", note(row),
    ]  # fmt: skip


def note(row: Row) -> str:
    said = []
    if "standard_error" in row:
        said.append(f"standard error {row['standard_error']:.1%} of a share")
    if row.get("placeholder"):
        said.append("without decompositions")
    if row.get("decomposition"):
        said.append(f"decompositions {number(row['decomposition'])} s of it")
    if row.get("left_out"):
        said.append("left out: " + ", ".join(row["left_out"]))
    if row.get("others", 0.0) > 0.2:
        processor = number(row["by_processor"])
        said.append(f"others took {row['others']:.0%} of the machine; ratio of processor time {processor}")
    return "; ".join(said)


class Found:
    """Rows of whence by network and work."""

    def __init__(self, results: dict[str, Any]) -> None:
        ours = [row for row in results["rows"] if row["contender"] == "whence"]
        self.rows = {(row["network"], row["work"]): row for row in ours}

    def bar(self, what: str, network: str, work: str, limit: float, base: str) -> Bar:
        """``base``: a key of the row that seconds are divided by, or the number of inputs for milliseconds."""
        row = self.rows.get((network, work), {})
        if "error" in row or not row:
            figure = None
        elif base == "inputs":
            figure = 1e3 * row["seconds"] / row["inputs"]
        else:
            figure = ratio(row, base)
        return Bar(f"{NETWORKS[network].title}: {what}", limit, False, figure, row.get("error", ""))


def bars(results: dict[str, Any]) -> list[Bar]:
    """The aims for the results' device, measured or not."""
    return list(_cpu(Found(results)))


def _cpu(found: Found) -> Iterator[Bar]:
    yield found.bar("audit, epochs", "small_cnn", "audit", 25, "epoch")
    yield found.bar("audit with quick=True, epochs", "small_cnn", "audit_quick", 8, "epoch")


def bars_text(results: dict[str, Any]) -> str:
    return "\n".join(aligned(BAR_HEAD, {"": [bar_cells(bar) for bar in bars(results)]}))


def markdown(results: dict[str, Any]) -> str:
    m = results["machine"]
    where = results.get("gpu") or f"{m['cpu']}, {m['cores']} cores"
    lines = [f"{results['date']}. {where}; torch {results['torch']}; whence {results['whence']}.", ""]
    lines += [line(BAR_HEAD), line(["---"] * len(BAR_HEAD)), *(line(bar_cells(bar)) for bar in bars(results)), ""]
    lines += [line(HEAD), line(["---"] * len(HEAD)), *(line(cells(row)) for row in results["rows"])]
    return "\n".join(lines) + "\n"


def save(results: dict[str, Any], path: Path) -> None:
    """Written aside first, so that a run that is cut leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = results | {"bars": [bar.to_dict() for bar in bars(results)]}
    write(path, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
