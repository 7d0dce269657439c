"""Every metric by method and table, with the published figures."""

from __future__ import annotations

import math
from statistics import fmean, median, stdev

from reproductions.linearised.uci.numbers import TITLES, Numbers
from reproductions.linearised.uci.published import PUBLISHED, SOURCES
from reproductions.store import Values

METRICS = {"nll": "NLL", "rmse": "RMSE", "crps": "CRPS", "coverage": "coverage of 95% intervals"}
WIDENING = {"widening": "predicted deviation in the gap over that for training inputs"}
NAMES = {"standard": "Standard splits", "gap": "Gap splits"}


def tables(units: Values) -> str:
    numbers = Numbers(units)
    parts = []
    for kind, title in NAMES.items():
        if not numbers.sets(kind):
            continue
        parts += [f"### {title}", _counts(numbers, kind)]
        shown = METRICS | WIDENING if kind == "gap" else METRICS
        for metric, name in shown.items():
            parts += [f"**{name}**, mean ± standard error over splits", _table(numbers, kind, metric)]
    parts += ["### What validation rows chose", _choices(numbers)]
    if numbers.hmc:
        parts += ["### HMC", _hmc(numbers)]
    return "\n\n".join(parts)


def cell(values: list[float] | None, metric: str = "") -> str:
    """Mean ± standard error; one value alone has none."""
    if not values:
        return ""
    mean, alone = fmean(values), len(values) == 1
    error = 0.0 if alone else stdev(values) / math.sqrt(len(values))
    if metric == "coverage":
        return f"{100 * mean:.1f}%" + ("" if alone else f" ± {100 * error:.1f}")
    digits = 4 if abs(mean) < 0.1 and metric in ("rmse", "crps") else 2
    return f"{mean:.{digits}f}" + ("" if alone else f" ± {error:.{digits}f}")


def _counts(numbers: Numbers, kind: str) -> str:
    plain = {name: len(numbers.each(kind, name, "plain", "nll") or []) for name in numbers.sets(kind)}
    return "Splits measured: " + ", ".join(f"{name} {count}" for name, count in plain.items()) + "."


def _table(numbers: Numbers, kind: str, metric: str) -> str:
    sets = numbers.sets(kind)
    lines = [f"| | {' | '.join(sets)} |", "|---" * (len(sets) + 1) + "|"]
    for method in numbers.methods(kind):
        cells = [cell(numbers.each(kind, name, method, metric), metric) for name in sets]
        lines.append(f"| {TITLES[method]} | {' | '.join(cells)} |")
    if kind == "standard" and metric in PUBLISHED:
        for i, source in enumerate(SOURCES):
            found = [PUBLISHED[metric].get(name) for name in sets]
            cells = [f"{f[i][0]:.2f} ± {f[i][1]:.2f}" if f else "" for f in found]
            lines.append(f"| *published: {source}* | {' | '.join(cells)} |")
    return "\n".join(lines)


def _choices(numbers: Numbers) -> str:
    lines = [
        "| | decay λ | dropout | prior, variational | scale, SWAG | ratio σ²δ, full | Kronecker | diagonal | last | "
        "weight draws |",
        "|---" * 10 + "|",
    ]
    for kind, title in NAMES.items():
        for name in numbers.sets(kind):
            units = numbers.chosen[kind][name]
            cells = [_spread([x for unit in units for x in unit["decay"]])]
            cells += [
                _spread([x for unit in units for x in unit["value"][m]]) for m in ("dropout", "variational", "swag")
            ]
            cells += [
                _spread([x for unit in units for x in unit["laplace"][m]["ratio"]])
                for m in ("full", "kron", "diag", "last", "sampled")
            ]
            lines.append(f"| {name}, {title.lower()} | {' | '.join(cells)} |")
    return "Median (lowest to highest) over splits.\n\n" + "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{median(values):.2g} ({min(values):.2g} to {max(values):.2g})"


def _hmc(numbers: Numbers) -> str:
    lines = ["| | splits | method | NLL | RMSE | CRPS | coverage | largest split-R̂ |", "|---" * 8 + "|"]
    for name, value in numbers.hmc.items():
        count = len(value["splits"])
        for method in ("hmc", "plain", "laplace, full", "ensemble"):
            own = value["methods"]["hmc"] if method == "hmc" else None
            cells = []
            for metric in METRICS:
                values = own[metric] if own else (numbers.each("standard", name, method, metric) or [])[:count]
                cells.append(cell(values, metric))
            rhat = f"{max(value['rhat']):.2f}" if own else ""
            lines.append(f"| {name} | {count} | {TITLES[method]} | {' | '.join(cells)} | {rhat} |")
    return "\n".join(lines)
