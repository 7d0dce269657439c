"""Figure 2 and its like for other sets; detectors; how the result settles with the number of copies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from reproductions import style
from reproductions.ritter2018.mnist import DETERMINISTIC, METHODS, PAPER
from reproductions.ritter2018.ood.names import DETECTORS, copy_counts, label, outside, over_seeds, seeds
from reproductions.ritter2018.ood.tables import settling
from reproductions.store import Values


def figures(values: Values, folder: Path) -> list[Path]:
    made = []
    if seeds(values):
        first, *others = outside(values)
        made += [_curves(values, [first], folder / "figure2.png"), _curves(values, others, folder / "others.png")]
        made.append(_detectors(values, folder / "detectors.png"))
    if copy_counts(values):
        made.append(_copies(values, folder / "copies.png"))
    return made


def _curves(values: Values, sets: list[str], path: Path) -> Path:
    """Share of inputs with at least the entropy on the x axis; lines are means over seeds, bands their range."""
    figure, axes = style.subplots(1, len(sets), size=(6.0 if len(sets) == 1 else 4.4, 3.6), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], sets, strict=True):
        for method in METHODS:
            curves = np.array([values[f"{seed}/{method}"]["outside"][name]["curve"] for seed in seeds(values)])
            grid = np.linspace(0, math.log(10), curves.shape[1])
            line = ":" if method == DETERMINISTIC else "-" if method in PAPER else (0, (5, 1.5))
            over = 4 if method == DETERMINISTIC else 3  # dotted, so that what it coincides with is seen
            axis.plot(
                grid, curves.mean(0), color=style.COLOURS[method], label=method, linestyle=line, linewidth=1.6,
                zorder=over,
            )  # fmt: skip
            axis.fill_between(grid, curves.min(0), curves.max(0), color=style.COLOURS[method], alpha=0.18, linewidth=0)
        axis.set(xlabel="predictive entropy h (nats)", xlim=(0, math.log(10)), ylim=(0, 1.02), title=label(name))
    axes[0, 0].set_ylabel("share of inputs with entropy ≥ h")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", title="dashed: not in the paper")
    return style.save(figure, path)


def _detectors(values: Values, path: Path) -> Path:
    """AUROC of methods by their entropy, and of the detectors below them; a dot for each seed, a bar at the mean."""
    sets = outside(values)
    rows = [(method, style.COLOURS[method], method, ("by_entropy", "auroc")) for method in METHODS]
    known = values[f"{seeds(values)[0]}/detectors"][sets[0]]
    rows += [(text, "#777777", key, None) for key, text in DETECTORS.items() if key in known]
    figure, axes = style.subplots(1, len(sets), size=(3.3, 4.6), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], sets, strict=True):
        for place, (_, colour, key, entry) in enumerate(rows):
            if entry is None:
                found = over_seeds(values, "detectors", name, key, "auroc")
            else:
                found = over_seeds(values, key, "outside", name, *entry)
            axis.plot(found, [place] * len(found), "o", color=colour, markersize=4, alpha=0.7, markeredgewidth=0)
            axis.plot([np.mean(found)] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2)
        axis.axhline(len(METHODS) - 0.5, color="#BBBBBB", linewidth=0.8)
        axis.axvline(0.5, color="#BBBBBB", linewidth=0.8, linestyle=":")
        axis.set(title=label(name), xlabel="AUROC")
        axis.grid(axis="x", color="#EEEEEE")
        axis.set_axisbelow(True)
    texts = [f"entropy, {text}" if key in METHODS else text for text, _, key, _ in rows]
    axes[0, 0].set_yticks(range(len(rows)), texts)
    axes[0, 0].invert_yaxis()
    return style.save(figure, path)


def _copies(values: Values, path: Path) -> Path:
    counts = copy_counts(values)
    units = [values[f"copies/{count}"] for count in counts]
    x = range(len(counts))
    figure, axes = style.subplots(1, 4, size=(2.9, 2.8))
    _settling(axes[0], values, counts)
    test, out = [unit["test"] for unit in units], [unit["outside"] for unit in units]
    _with_intervals(axes[1], x, [t["nll"] for t in test], "NLL on test digits")
    entropies = [
        {"value": o["mean_entropy"], "low": o["mean_entropy"] - 2 * o["mean_entropy_se"],
         "high": o["mean_entropy"] + 2 * o["mean_entropy_se"]}
        for o in out
    ]  # fmt: skip
    name = label(outside(values)[0]) if seeds(values) else "outside"
    _with_intervals(axes[2], x, entropies, f"mean entropy on {name} (nats)")
    _with_intervals(axes[3], x, [o["by_entropy"]["auroc"] for o in out], f"AUROC, {name} against digits")
    for axis in axes:
        axis.set_xticks(list(x), [f"{count:,}" if count else "grey\nimages" for count in counts])
        axis.set_xlabel("binarised copies of each image")
        axis.grid(axis="y", color="#EEEEEE")
    return style.save(figure, path)


def _settling(axis: Any, values: Values, counts: list[int]) -> None:
    """Relative difference of each layer's curvature from that over the most copies."""
    found = settling(values)
    colours = (style.BLUE, style.RED, style.GREEN, style.PURPLE)
    for colour, layer in zip(colours, next(iter(found.values())), strict=False):
        rows = [found[count][layer] for count in counts[:-1]]
        axis.plot(range(len(rows)), [row["trace"] for row in rows], "o-", color=colour, markersize=3.5, label=layer)
        axis.plot(range(len(rows)), [row["eigenvalues"] for row in rows], "s:", color=colour, markersize=3.5)
    axis.set_yscale("log")
    axis.set_title(
        f"relative difference from {counts[-1]:,} copies:\ntrace (solid), eigenvalues (dotted)", fontsize=8.5
    )
    axis.legend(fontsize=7.5, loc="lower left")


def _with_intervals(axis: Any, x: range, found: list[Values], title: str) -> None:
    middle = [f["value"] for f in found]
    spans = [[f["value"] - f["low"] for f in found], [f["high"] - f["value"] for f in found]]
    axis.errorbar(
        list(x), middle, yerr=spans, fmt="o-", color=style.COLOURS["Kronecker Laplace"], capsize=2.5, markersize=4
    )
    axis.set_title(title, fontsize=8.5)
