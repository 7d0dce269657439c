"""Every metric by method and case, and what was chosen."""

from __future__ import annotations

import math
from statistics import fmean, median, stdev

from reproductions.linearised.online.numbers import KINDS, TITLES, VALIDATED, Numbers
from reproductions.linearised.uci.tables import cell
from reproductions.store import Values

METRICS = {"nll": "NLL", "rmse": "RMSE", "crps": "CRPS", "coverage": "coverage of 95% intervals"}
WIDENING = {"widening": "predicted deviation in the gap over that for training inputs"}
OF_IMAGES = {"nll": "NLL", "accuracy": "accuracy", "ece": "ECE"}
NAMES = {"standard": "Standard splits", "gap": "Gap splits", "images": "Images with few labels"}
SHARES = ("accuracy", "ece")


def tables(units: Values) -> str:
    numbers = Numbers(units)
    parts = []
    for kind in KINDS:
        if not numbers.cases(kind):
            continue
        shown = OF_IMAGES if kind == "images" else METRICS | WIDENING if kind == "gap" else METRICS
        parts += [f"### {NAMES[kind]}", _counts(numbers, kind)]
        for metric, name in shown.items():
            over = "seeds" if kind == "images" else "splits"
            parts += [f"**{name}**, mean ± standard error over {over}", _table(numbers, kind, metric)]
    if numbers.starts:
        parts += ["### Where it starts", _starts(numbers)]
    return "\n\n".join([*parts, "### What was chosen", *_choices(numbers)])


def _starts(numbers: Numbers) -> str:
    """By the prior at the start of the training."""
    metrics = {"nll": "NLL", "rmse": "RMSE", "idle": "idle units", "gamma": "effective parameters"}
    names = list(numbers.starts)
    heads = [f"{name}: {title}" for name in names for title in metrics.values()]
    lines = [f"| prior at the start | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for begin in numbers.starts[names[0]]:
        own = [numbers.starts[name][begin] for name in names]
        lines.append(f"| {begin} | {' | '.join(_counted(each[m], m) for each in own for m in metrics)} |")
    splits = len(numbers.starts[names[0]][begin]["nll"])
    about = f"The first {splits} standard splits, mean ± standard error; units that change nothing are idle."
    return f"{about}\n\n" + "\n".join(lines)


def _counted(values: list[float], metric: str) -> str:
    """Units and effective parameters with one digit."""
    if metric not in ("idle", "gamma"):
        return cell(values, metric)
    return f"{fmean(values):.1f}" + (f" ± {stdev(values) / math.sqrt(len(values)):.1f}" if len(values) > 1 else "")


def _counts(numbers: Numbers, kind: str) -> str:
    count = {case: len(numbers.each(kind, case, "grid", "nll") or []) for case in numbers.cases(kind)}
    what = "Seeds" if kind == "images" else "Splits"
    return f"{what} measured: " + "; ".join(f"{case} {n}" for case, n in count.items()) + "."


def _table(numbers: Numbers, kind: str, metric: str) -> str:
    cases, methods = numbers.cases(kind), numbers.methods(kind)
    if kind == "images":  # cases have long names, and are the rows
        lines = [f"| | {' | '.join(_titled(m) for m in methods)} |", "|---" * (len(methods) + 1) + "|"]
        for case in cases:
            lines.append(
                f"| {case} | {' | '.join(_cell(numbers.each(kind, case, m, metric), metric) for m in methods)} |"
            )
        return "\n".join(lines)
    lines = [f"| | {' | '.join(cases)} |", "|---" * (len(cases) + 1) + "|"]
    for method in methods:
        cells = [cell(numbers.each(kind, case, method, metric), metric) for case in cases]
        lines.append(f"| {_titled(method)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _titled(method: str) -> str:
    """Those that need validation data in italics."""
    return f"*{TITLES[method]}*" if method in VALIDATED else TITLES[method]


def _cell(values: list[float] | None, metric: str) -> str:
    return cell(values, "coverage" if metric in SHARES else metric)


def _choices(numbers: Numbers) -> list[str]:
    parts = []
    rows = [(kind, case) for kind in ("standard", "gap") for case in numbers.cases(kind)]
    if rows:
        lines = [
            "| | decay λ, grid | step, early stopping | noise, grid | noise, online | precisions, online | Kronecker | "
            "relative | effective parameters, online | Kronecker | relative | seconds for all updates, online | "
            "Kronecker | relative |",
            "|---" * 14 + "|",
        ]
        lines += [f"| {case}, {kind} | {' | '.join(_chosen(numbers.chosen[kind][case]))} |" for kind, case in rows]
        parts += ["Medians over splits (standardised units; precisions of the hidden and of the output layer)."]
        parts += ["\n".join(lines)]
    if numbers.cases("images"):
        lines = [
            "| | precision, grid | step, early stopping | precisions by layer, online | relative |", "|---" * 5 + "|",
        ]  # fmt: skip
        for case in numbers.cases("images"):
            each, trace = numbers.chosen["images"][case], numbers.traces["images"][case]
            cells = [f"{median(e[key] for e in each):g}" for key in ("precision", "stop")]
            cells += [_precisions(trace[m][-1]["precision"]) for m in ("online", "online, relative")]
            lines.append(f"| {case} | {' | '.join(cells)} |")
        parts += ["Images: medians over seeds; precisions of the first seed.", "\n".join(lines)]
    return parts


def _chosen(groups: list[Values]) -> list[str]:
    def of(key: str, method: str = "") -> list[float]:
        return [v for g in groups for v in (g[key][method] if method else g[key])]

    variants = ("online", "online, kron", "online, relative")
    online = {m: [g["online"][m] for g in groups] for m in variants}
    cells = [f"{median(of('decay')):.1g}", f"{median(of('stop')):,.0f}"]
    cells += [f"{median(of('noise', m)):.3f}" for m in ("grid", "online")]
    for method in variants:
        layers = zip(*[row for g in online[method] for row in g["precision"]], strict=True)
        cells.append(_precisions([median(layer) for layer in layers]))
    cells += [f"{median(v for g in online[m] for v in g['gamma']):.0f}" for m in variants]
    return cells + [f"{fmean(g['seconds'] for g in online[m]):.1f}" for m in variants]


def _precisions(values: list[float]) -> str:
    return ", ".join(precision(value) for value in values)


def precision(value: float) -> str:
    if value >= 1e5:
        return f"10^{math.log10(value):.0f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
