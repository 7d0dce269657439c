"""Layer tables over seeds, and a paragraph for each kind of network that answers the questions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from reproductions.store import Values

TITLES = {
    "mnist": "MNIST, 784-1024-1024-10",
    "wrn": "Wide residual network",
    "wrn-dropout": "Wide residual network with dropout",
}


def kinds(units: Values) -> dict[str, list[Values]]:
    """The networks of each kind, seed by seed."""
    found: dict[str, list[Values]] = {}
    for name, value in units.items():
        found.setdefault(name.split("/")[0], []).append(value)
    return found


def taus(networks: Sequence[Values]) -> list[str]:
    """The priors that were looked at."""
    return list(networks[0]["sweep"])


def sweep_table(networks: Sequence[Values]) -> str:
    """Shares and explained of test inputs under every τ, and the prior's own shares, which τ leaves alone."""
    every = taus(networks)
    head = [f"{what}, τ = {tau}" for what in ("share", "explained") for tau in every]
    lines = [f"| layer | {' | '.join(head)} | prior share |", "|---" * (len(head) + 2) + "|"]

    def mean(tau: str, layer: int, what: str) -> str:
        return f"{100 * fmean(n['sweep'][tau]['test'][layer][what] for n in networks):.1f} %"

    for i, row in enumerate(networks[0]["layers"]):
        cells = [mean(tau, i, what) for what in ("variance_share", "explained") for tau in every]
        lines.append(f"| {row['name']} | {' | '.join(cells)} | {mean(every[0], i, 'prior_share')} |")
    return "\n".join(lines)


def column(networks: Sequence[Values], layer: int, *path: str) -> float:
    """A figure of a layer, mean over seeds."""
    return fmean(_at(network["layers"][layer], path) for network in networks)


def _at(row: Any, path: Sequence[str]) -> float:
    for key in path:
        row = row[key]
    return float(row)


def tables(units: Values) -> str:
    parts = []
    for kind, networks in kinds(units).items():
        parts += [f"### {TITLES[kind]}", paragraph(networks), "Layers:", layer_table(networks)]
        parts += ["Test inputs under weaker and stronger priors:", sweep_table(networks)]
        parts += ["Units and weights inside them:", unit_table(networks)]
        parts += ["Single weights, quantiles of 5, 50 and 95 %:", weight_table(networks)]
        if all("detectors" in network for network in networks):
            parts += ["Novel inputs against test inputs, AUROC of every seed:", detector_table(networks)]
    return "\n\n".join(parts)


def layer_table(networks: Sequence[Values]) -> str:
    """Shares in percent, for test inputs and novel ones; means over seeds."""
    lines = [
        "| layer | weights | std | identified | signal to noise | share, test | novel | prior "
        "| explained, test | novel |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for i, row in enumerate(networks[0]["layers"]):
        shares = [
            column(networks, i, *path)
            for path in (("test", "variance_share"), ("ood", "variance_share"), ("test", "prior_share"),
                         ("test", "explained"), ("ood", "explained"))
        ]  # fmt: skip
        lines.append(
            f"| {row['name']} | {row['parameters']:,} | {column(networks, i, 'std'):.3g} "
            f"| {column(networks, i, 'identified'):.2g} | {column(networks, i, 'signal_to_noise'):.2f} | "
            + " | ".join(f"{100 * value:.1f} %" for value in shares)
            + " |"
        )
    return "\n".join(lines)


def unit_table(networks: Sequence[Values]) -> str:
    """Units and weights inside a layer: how far they spread, and what has learnt nothing."""
    lines = [
        "| layer | units | unidentified | units' `identified`, 5 to 95 % | ε² between units "
        "| weights weaker than their noise | ρ(size, identified) |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in networks[0]["units"]:
        units = [network["units"][name] for network in networks]
        low, high = (fmean(u["identified"][i] for u in units) for i in (0, -1))
        weak = fmean(network["weights"][name]["weaker_than_noise"] for network in networks)
        inside = [network["differences"]["inside"].get(name) for network in networks]
        size = fmean(network["magnitude"][name] for network in networks)
        spread = "" if None in inside else f"{fmean(inside):.2f}"
        lines.append(
            f"| {name} | {units[0]['units']} | {fmean(u['unidentified'] for u in units):.0f} | {low:.2g} to {high:.2g} "
            f"| {spread} | {100 * weak:.0f} % | {size:.2f} |"
        )
    return "\n".join(lines)


def weight_table(networks: Sequence[Values]) -> str:
    """How single weights of a layer spread; means of quantiles over seeds."""
    columns = ("std", "identified", "signal_to_noise")
    lines = ["| layer | posterior std | identified | signal to noise |", "|---|---|---|---|"]
    for name in networks[0]["weights"]:
        cells = []
        for column in columns:
            each = [network["weights"][name][column] for network in networks]
            cells.append(" / ".join(f"{fmean(values[i] for values in each):.3g}" for i in (0, 2, 4)))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def paragraph(networks: Sequence[Values]) -> str:
    """The thesis's questions, answered from the tables; means over seeds."""
    layers = [row["name"] for row in networks[0]["layers"]]

    def along(*path: str) -> list[float]:
        return [column(networks, i, *path) for i in range(len(layers))]

    share, prior = along("test", "variance_share"), along("test", "prior_share")
    known, strange = along("test", "explained"), along("ood", "explained")
    most = max(range(len(layers)), key=share.__getitem__)
    lost = max(range(len(layers)), key=lambda i: known[i] - strange[i])
    best = max(range(len(layers)), key=along("identified").__getitem__)
    worst = min(range(len(layers)), key=along("identified").__getitem__)
    between = fmean(network["differences"]["between_layers"] for network in networks)
    size = fmean(network["magnitude"]["all layers"] for network in networks)
    units = sum(u["units"] for u in networks[0]["units"].values())
    dead = fmean(sum(u["unidentified"] for u in network["units"].values()) for network in networks)
    moved = sum(abs(a - b) for a, b in zip(share, prior, strict=True)) / 2
    last = [_last(network) for network in networks]
    return (
        f"**Between layers** the weights' standard deviations differ with ε² = {between:.2f}; `{layers[best]}` is the "
        f"best identified layer ({max(along('identified')):.2g}) and `{layers[worst]}` the least "
        f"({min(along('identified')):.2g}). For test inputs most of the variance ({share[most]:.0%}) comes from "
        f"`{layers[most]}`. For novel inputs `explained` falls most in `{layers[lost]}`, from {known[lost]:.0%} to "
        f"{strange[lost]:.0%}. **Inside layers** {dead:.0f} of {units:,} units are identified less than 1 %. "
        f"**Weight size against uncertainty**: rank correlation of |weight| and `identified` over all layers "
        f"{size:+.2f}. **Is the last layer enough?** It causes {share[-1]:.1%} of the variance; with it alone NLL "
        f"goes from {fmean(a['nll'] for a, _ in last):.4f} to {fmean(b['nll'] for _, b in last):.4f} and the AUROC for "
        f"novel inputs from {fmean(a['ood_auroc'] for a, _ in last):.3f} to "
        f"{fmean(b['ood_auroc'] for _, b in last):.3f}. "
        f"**How much is the prior?** Shares differ from those of the prior alone by {moved:.0%} of the variance."
    )


def _last(network: Values) -> tuple[Values, Values]:
    """Quality with all layers, and with the last alone."""
    found = next(a["numbers"] for a in network["answers"] if "last_layer" in a["numbers"])
    return found["whole"], found["last_layer"]


def detector_table(networks: Sequence[Values]) -> str:
    """Every detector of the audit, the best one first."""
    found = {name: [network["detectors"][name] for network in networks] for name in networks[0]["detectors"]}
    lines = ["| detector | AUROC |", "|---|---|"]
    for name, values in sorted(found.items(), key=lambda item: -fmean(item[1])):
        lines.append(f"| {name} | {' / '.join(f'{value:.3f}' for value in values)} |")
    return "\n".join(lines)
