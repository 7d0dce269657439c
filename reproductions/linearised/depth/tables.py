"""Evidence, its parts, and test NLL of every network."""

from __future__ import annotations

from statistics import fmean, median

from reproductions.linearised.depth.numbers import WHERE, Correlation, Numbers, OverMean, Regret, shown
from reproductions.linearised.online.tables import precision
from reproductions.store import Values

TITLES = {"depth": "Depth and width", "activation": "Activation functions", "images": "Networks for images"}


def tables(units: Values) -> str:
    numbers = Numbers(units)
    parts = []
    for kind, title in TITLES.items():
        if numbers.data(kind):
            parts += [f"### {title}", _choices(numbers, kind)]
            rows = _image_networks if kind == "images" else _networks
            parts += [f"**{name}**\n\n{rows(numbers, kind, name)}" for name in numbers.data(kind)]
    return "\n\n".join(parts)


def _choices(numbers: Numbers, kind: str) -> str:
    lines = [
        "| | seeds | evidence | rank correlation with −NLL | chosen − mean NLL | chosen − best NLL |",
        "|---|---|---|---|---|---|",
    ]
    for name in numbers.data(kind):
        for where, words in WHERE.items():
            each = numbers.each(kind, name, where)
            if each:
                cells = [shown([figure(pairs) for pairs in each]) for figure in (Correlation(), OverMean(), Regret())]
                lines.append(f"| {name} | {len(each)} | {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _networks(numbers: Numbers, kind: str, name: str) -> str:
    """Means over seeds."""
    rows = [numbers.units[kind][name][seed] for seed in sorted(numbers.units[kind][name])]
    first = {"depth": "depth, width", "activation": "activation", "images": "network"}[kind]
    lines = [
        f"| {first} | training loss | NLL, network alone | log evidence | fit | Occam factor | effective parameters | "
        "NLL | log evidence, linear optimum | NLL |",
        "|---" * 10 + "|",
    ]
    for network in rows[0]:
        own = [row[network] for row in rows]
        cells = [f"{fmean(v['train loss'] for v in own):.3f}", f"{fmean(v['alone'] for v in own):.2f}"]
        for where, keys in (
            ("trained", ("evidence", "fit", "occam", "gamma", "nll")),
            ("refined", ("evidence", "nll")),
        ):
            cells += [_mean(own, where, key) for key in keys]
        lines.append(f"| {network} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(networks: list[Values], where: str, key: str) -> str:
    values = [v[where][key] for v in networks if where in v and key in v[where]]
    return f"{fmean(values):.{2 if key == 'nll' else 1}f}" if values else ""


def _image_networks(numbers: Numbers, kind: str, name: str) -> str:
    """Means over seeds (precisions: medians); two rows for each network, one for each evidence."""
    rows = [numbers.units[kind][name][seed] for seed in sorted(numbers.units[kind][name])]
    lines = [
        "| network | accuracy | NLL, network alone | evidence | log evidence | fit | −½ Σ δ ‖θ‖² | −½ log det | "
        "effective parameters | precisions by layer | NLL |",
        "|---" * 11 + "|",
    ]
    for network in rows[0]:
        own = [row[network] for row in rows]
        for where, words in WHERE.items():
            cells = [f"{100 * fmean(v['accuracy'] for v in own):.1f}%", f"{fmean(v['alone'] for v in own):.2f}", words]
            cells += [_mean(own, where, key) for key in ("evidence", "fit", "penalty", "volume", "gamma")]
            layers = zip(*[v[where]["precisions"] for v in own], strict=True)
            cells += [", ".join(precision(median(layer)) for layer in layers), _mean(own, where, "nll")]
            lines.append(f"| {network} | {' | '.join(cells)} |")
    return "\n".join(lines)
