"""Tuned NLL against the isotropic prior's, and shares by layer, under each prior."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproductions.own.priors.tables import TITLES, Numbers, at
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, save, subplots

COLOURS = {
    "signal": BLUE, "signal, r = variance": GREEN, "by layer": ORANGE, "by size": PURPLE, "g-prior": RED,
    "isotropic": BLACK,
}  # fmt: skip


def figures(units: Values, folder: Path) -> list[Path]:
    numbers = Numbers(units)
    count = len(numbers.networks)
    columns = min(3, count)
    rows = -(-count // columns)
    figure, axes = subplots(rows, columns, size=(4.4, 2.6), squeeze=False)
    for axis, network in zip(axes.flat, numbers.networks, strict=False):
        _differences(axis, numbers, network)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    made = [save(figure, folder / "nll.png")]
    figure, axes = subplots(rows, columns, size=(4.4, 2.8), squeeze=False)
    for axis, network in zip(axes.flat, numbers.networks, strict=False):
        _shares(axis, numbers, network)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    axes.flat[0].legend(fontsize=7)
    return [*made, save(figure, folder / "shares.png")]


def _rules(numbers: Numbers, network: str) -> list[str]:
    return [rule for rule in COLOURS if numbers.has(network, rule)]


def _differences(axis: Any, numbers: Numbers, network: str) -> None:
    rules = [rule for rule in _rules(numbers, network) if rule != "isotropic"]
    for place, rule in enumerate(rules):
        found = numbers.over(network, rule, "isotropic", at("tuned", "nll"))
        axis.errorbar(found.mean, place, xerr=[[found.mean - found.low], [found.high - found.mean]], fmt="o",
                      color=COLOURS[rule], capsize=2)  # fmt: skip
    axis.axvline(0, color=BLACK, linewidth=0.8, linestyle=":")
    axis.set_yticks(range(len(rules)), rules, fontsize=7)
    axis.invert_yaxis()
    axis.set_title(TITLES[network], loc="left", fontsize=8)
    axis.set_xlabel("tuned NLL − isotropic (95% over seeds)", fontsize=8)


def _shares(axis: Any, numbers: Numbers, network: str) -> None:
    for rule in ("signal", "isotropic"):
        if not numbers.has(network, rule):
            continue
        each = numbers.each_layer(network, rule, "variance_share")
        mean = [sum(values) / len(values) for values in zip(*each, strict=True)]
        axis.plot(mean, color=COLOURS[rule], label=rule)
        for values in each:
            axis.plot(values, ".", color=COLOURS[rule], markersize=4, alpha=0.6)
    names = numbers.layers(network)
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8 if len(names) < 9 else 4)
    axis.set_ylim(0, None)
    axis.set_ylabel("share of the variance")
    axis.set_title(TITLES[network], loc="left", fontsize=8)
