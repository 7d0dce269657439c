"""Every metric by method and set, and what validation rows chose."""

from __future__ import annotations

from statistics import median

from reproductions.linearised.classes.numbers import HMC, TITLES, Numbers
from reproductions.linearised.online.tables import precision
from reproductions.linearised.uci.tables import cell
from reproductions.store import Values

METRICS = {"nll": "NLL", "accuracy": "accuracy", "ece": "ECE", "brier": "Brier score"}
KINDS = {"accuracy": "coverage", "ece": "coverage"}  # shares
BESIDE_HMC = ("plain", "temperature", "laplace, full", "variational", "ensemble")
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
    parts += ["### What validation rows chose", "Medians over splits.", _choices(numbers)]
    return "\n\n".join([*parts, "### HMC", _hmc(numbers)] if numbers.hmc else parts)


def _table(numbers: Numbers, metric: str) -> str:
    names = numbers.sets()
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for method, title in TITLES.items():
        cells = [cell(numbers.scores[name].get(method, {}).get(metric), KINDS.get(metric, metric)) for name in names]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _choices(numbers: Numbers) -> str:
    lines = [f"| | {' | '.join(CHOSEN.values())} |", "|---" * (len(CHOSEN) + 1) + "|"]
    for name in numbers.sets():
        cells = [precision(median(c[key] for c in numbers.chosen[name])) for key in CHOSEN]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _hmc(numbers: Numbers) -> str:
    """On the splits that HMC was run on, the other methods too."""
    lines = [f"| | splits | method | {' | '.join(METRICS.values())} | largest split-R̂ |", "|---" * 8 + "|"]
    for name, value in numbers.hmc.items():
        count, rhat = len(value["seeds"]), f"{max(value['rhat']):.2f}"
        for method in (HMC, *BESIDE_HMC):
            others = numbers.scores.get(name, {}).get(method, {})
            own = value["scores"] if method == HMC else {key: each[:count] for key, each in others.items()}
            cells = [cell(own.get(metric), KINDS.get(metric, metric)) for metric in METRICS]
            words = f"{TITLES.get(method, method)} | {' | '.join(cells)} | {rhat if method == HMC else ''}"
            lines.append(f"| {name} | {count} | {words} |")
    return "\n".join(lines)
