"""AUROC of every detector on every novel data set; means over seeds, with the least and the largest."""

from __future__ import annotations

from statistics import fmean

from reproductions.own.priors.tables import TITLES
from reproductions.store import Values


def by_network(units: Values) -> dict[str, list[Values]]:
    found: dict[str, list[Values]] = {}
    for name, value in units.items():
        found.setdefault(name.split("/")[0], []).append(value)
    return found


def detectors(each: list[Values]) -> list[str]:
    """Ours first, in the order of the documentation; the others by name."""
    known = set(next(iter(each[0]["auroc"].values())))
    ours = [f"novelty, {rule}" for rule in ("gauss", "fisher", "smallest", "cauchy")]
    first = [*ours, "best single layer, seen afterwards"]
    return [*first, *sorted(known - set(first))]


def tables(units: Values) -> str:
    return "\n\n".join(f"### {TITLES[network]}\n\n{_table(each)}" for network, each in by_network(units).items())


def _table(each: list[Values]) -> str:
    sets = list(each[0]["auroc"])
    lines = [f"| AUROC | {' | '.join(sets)} |", "|---" * (len(sets) + 1) + "|"]
    for detector in detectors(each):
        cells = []
        for name in sets:
            values = [value["auroc"][name][detector] for value in each]
            cells.append(f"{fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})")
        lines.append(f"| {detector} | {' | '.join(cells)} |")
    flagged = [value["flagged"] for value in each]
    lines.append(f"\nOf fresh test inputs {100 * fmean(flagged):.1f}% have p ≤ 0.01.")
    return "\n".join(lines)


def summary(units: Values) -> str:
    """Means over seeds and sets, one column for each network."""
    found = by_network(units)
    lines = [f"| AUROC, mean over sets and seeds | {' | '.join(TITLES[n] for n in found)} |",
             "|---" * (len(found) + 1) + "|"]  # fmt: skip
    for detector in detectors(next(iter(found.values()))):
        cells = [
            f"{fmean(scores[detector] for value in each for scores in value['auroc'].values()):.3f}"
            for each in found.values()
        ]
        lines.append(f"| {detector} | {' | '.join(cells)} |")
    return "\n".join(lines)
