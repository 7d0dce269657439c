"""Tables of ``benchmarks.answers`` and its aims, from its results file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.answers_networks import NETWORKS
from benchmarks.answers_works import OURS, Row
from benchmarks.bars import Bar
from benchmarks.report import BAR_HEAD, aligned, bar_cells, line, number, write

DISTURBED = 0.2  # share of the machine
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
    parts = []
    if "standard_error" in row:
        parts.append(f"standard error {row['standard_error']:.1%} of a share")
    if row.get("placeholder"):
        parts.append("without decompositions")
    if row.get("decomposition"):
        parts.append(f"decompositions {number(row['decomposition'])} s of it")
    if row.get("left_out"):
        parts.append("left out: " + ", ".join(row["left_out"]))
    return "; ".join(filter(None, [*parts, disturbed(row)]))


def disturbed(row: Row) -> str:
    """What to look at instead where other programs took part of the machine."""
    if row.get("others", 0.0) <= DISTURBED:
        return ""
    return f"others took {row['others']:.0%} of the machine; ratio of processor times {number(row['by_processor'])}"


@dataclass(frozen=True)
class Aim:
    """At most ``limit``: seconds in those of ``base``, milliseconds an input ("inputs"), or the value of that name."""

    network: str
    work: str
    what: str
    limit: float
    base: str

    def bar(self, row: Row) -> Bar:
        return Bar(
            f"{NETWORKS[self.network].title}: {self.what}", self.limit, False, self._figure(row), row.get("error", "")
        )

    def _figure(self, row: Row) -> float | None:
        if self.base == "standard_error":
            return row.get("standard_error")
        if "seconds" not in row:
            return None
        return 1e3 * row["seconds"] / row["inputs"] if self.base == "inputs" else ratio(row, self.base)


AIMS = {
    "cpu": [
        Aim("small_cnn", "audit", "audit, epochs", 25, "epoch"),
        Aim("small_cnn", "audit_quick", "audit with quick=True, epochs", 8, "epoch"),
    ],
    "cuda": [
        Aim("vit_s", "predict", "linearised prediction, ms an input", 10, "inputs"),
        Aim("resnet18", "predict", "linearised prediction, ms an input", 3, "inputs"),
        Aim("resnet18_100", "predict", "linearised prediction, ms an input", 10, "inputs"),
        Aim("vit_s_1000", "predict", "prediction, forward passes", 100, "forward"),
        Aim("vit_s_1000", "where", "where, forward passes", 100, "forward"),
        Aim("vit_s_1000", "where", "where, standard error of a share in the share", 0.05, "standard_error"),
        *(
            Aim(network, work, f"{work}, predictions", 1.5, "prediction")
            for network in ("resnet18", "resnet18_100", "vit_s")
            for work in ("where", "novelty")
        ),
        Aim("resnet18", "tune", "tuning on 1,000 inputs, predictions", 3, "prediction"),
        Aim("resnet18", "audit", "audit, epochs", 30, "epoch"),
    ],
}


def decides(device: str, network: str, work: str, contender: str) -> bool:
    """Whether an aim is read from this row; fits go with what needs them."""
    aims = [aim for aim in AIMS[device] if aim.network == network]
    return contender == OURS and any(work in (aim.work, "fit") for aim in aims)


def bars(results: dict[str, Any]) -> list[Bar]:
    """The aims for the results' device, measured or not."""
    ours = {(row["network"], row["work"]): row for row in results["rows"] if row["contender"] == OURS}
    return [aim.bar(ours.get((aim.network, aim.work), {})) for aim in AIMS[results["device"]]]


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
