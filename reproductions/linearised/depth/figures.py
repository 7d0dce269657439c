"""Evidence against test NLL, the Occam figure, and predictions by depth."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import Any

from reproductions.linearised.depth.measure import ENDS
from reproductions.linearised.depth.numbers import WHERE, Numbers
from reproductions.linearised.depth.subjects import CLUSTERS
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, GREEN, ORANGE, RED, save, subplots

COLOURS, MARKERS = (GREEN, BLUE, RED), ("o", "s", "^")


def figures(units: Values, folder: Path) -> list[Path]:
    numbers = Numbers(units)
    if not numbers.data("depth"):
        return []
    made = [_scatter(numbers, folder), _occam(numbers, folder)]
    panels = [v["curve"][min(v["curve"])] for v in (numbers.units["depth"],) if "curve" in v]
    return [*made, *(_panels(networks, folder) for networks in panels)]


def _scatter(numbers: Numbers, folder: Path) -> Path:
    names = numbers.data("depth")
    figure, axes = subplots(len(WHERE), len(names), size=(2.5, 2.4), squeeze=False)
    for row, where in zip(axes, WHERE, strict=True):
        for axis, name in zip(row, names, strict=True):
            each = numbers.each("depth", name, where)
            axis.set_visible(bool(each))
            for pairs in each:
                depths = list(dict.fromkeys(n.split(", ")[0] for n in pairs))
                widths = list(dict.fromkeys(n.split(", ")[1] for n in pairs))
                centre = [fmean(each) for each in zip(*pairs.values(), strict=True)]  # seeds have other examples
                for network, (evidence, nll) in pairs.items():
                    depth, width = network.split(", ")
                    axis.plot(
                        evidence - centre[0], nll - centre[1], MARKERS[widths.index(width)],
                        color=COLOURS[depths.index(depth)], markersize=5,
                        label=f"depth {depth}, width {width}", alpha=0.8,
                    )  # fmt: skip
            axis.set_title(name if where == "trained" else "", loc="left", fontsize=9)
            axis.set_xlabel("log evidence − mean", fontsize=8)
        row[0].set_ylabel(f"test NLL − mean\n{WHERE[where]}", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=6, fontsize=8)
    return save(figure, folder / "evidence.png")


def _occam(numbers: Numbers, folder: Path) -> Path:
    """Of the largest width, mean over seeds."""
    names = numbers.data("depth")
    figure, axes = subplots(1, len(names), size=(2.5, 2.4), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        rows = list(numbers.units["depth"][name].values())
        width = list(rows[0])[-1].split(", ")[1]
        networks = [n for n in rows[0] if n.split(", ")[1] == width]
        depths = [n.split(", ")[0] for n in networks]
        for key, colour, label in (
            ("fit", BLUE, "fit"), ("occam", ORANGE, "Occam factor"), ("evidence", BLACK, "log evidence"),
        ):  # fmt: skip
            values = [fmean(row[n]["trained"][key] for row in rows) for n in networks]
            axis.plot(range(len(depths)), values, "o-", color=colour, label=label, markersize=4)
        axis.set_xticks(range(len(depths)), depths)
        axis.set_title(name, loc="left", fontsize=9)
        axis.set_xlabel("hidden layers", fontsize=8)
    axes[0][0].set_ylabel("nats")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return save(figure, folder / "occam.png")


def _panels(seeds: Any, folder: Path) -> Path:
    """Mean ± 2 standard deviations of the function, of the largest width."""
    networks = {n: v for n, v in seeds.items() if "panel" in v}
    width = list(networks)[-1].split(", ")[1]
    shown = {n: v for n, v in networks.items() if n.split(", ")[1] == width}
    figure, axes = subplots(1, len(shown), size=(3.2, 2.4), squeeze=False, sharey=True)
    for axis, (network, value) in zip(axes[0], shown.items(), strict=True):
        mean, std = value["panel"]["mean"], value["panel"]["std"]
        step = (ENDS[1] - ENDS[0]) / (len(mean) - 1)
        x = [ENDS[0] + i * step for i in range(len(mean))]
        low, high = ([m + sign * 2 * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        for cluster in CLUSTERS:
            axis.axvspan(*cluster, color="#EEEEEE")
        axis.fill_between(x, low, high, color=BLUE, alpha=0.3, linewidth=0)
        axis.plot(x, mean, color=BLUE)
        axis.plot(x, [math.sin(4 * at) for at in x], color=BLACK, linestyle=":", linewidth=1)
        axis.set_ylim(-3, 3)
        evidence = value["trained"]["evidence"]
        axis.set_title(f"{network.split(', ')[0]} hidden layers: log evidence {evidence:.1f}", loc="left", fontsize=8)
    return save(figure, folder / "panels.png")
