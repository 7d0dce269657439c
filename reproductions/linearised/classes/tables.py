"""Every metric by method and set, and what validation rows chose."""

from __future__ import annotations

from statistics import median

from reproductions.linearised.classes.numbers import TITLES, Numbers
from reproductions.linearised.online.tables import precision
from reproductions.linearised.uci.tables import cell
from reproductions.store import Values

METRICS = {"nll": "NLL", "accuracy": "accuracy", "ece": "ECE", "brier": "Brier score"}
CHOSEN = {
    "precision": "precision", "temperature": "temperature", "laplace, full": "Laplace, full",
    "laplace, kron": "Kronecker", "laplace, diag": "diagonal", "laplace, last": "last layer", "dropout": "dropout",
    "variational": "prior, variational", "swag": "scale, SWAG",
}  # fmt: skip


def tables(units: Values) -> str:
    numbers = Numbers(units)
    counts = ", ".join(f"{name} {len(numbers.chosen[name])}" for name in numbers.sets())
    parts = [f"Splits measured: {counts}."]
    for metric, title in METRICS.items():
        parts += [f"**{title}**, mean ± standard error over splits", _table(numbers, metric)]
    return "\n\n".join([*parts, "### What validation rows chose", "Medians over splits.", _choices(numbers)])


def _table(numbers: Numbers, metric: str) -> str:
    names = numbers.sets()
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    kind = "coverage" if metric in ("accuracy", "ece") else metric
    for method, title in TITLES.items():
        cells = [cell(numbers.scores[name].get(method, {}).get(metric), kind) for name in names]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _choices(numbers: Numbers) -> str:
    lines = [f"| | {' | '.join(CHOSEN.values())} |", "|---" * (len(CHOSEN) + 1) + "|"]
    for name in numbers.sets():
        cells = [precision(median(c[key] for c in numbers.chosen[name])) for key in CHOSEN]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
