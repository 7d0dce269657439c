"""Accuracy, NLL and ECE by method."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from reproductions.bayesian_cnn.classification.tables import SHOWN, grouped
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, ORANGE, PURPLE, SKY, save, subplots

COLOURS = dict(zip(SHOWN, (BLACK, ORANGE, BLUE, PURPLE, SKY), strict=True))
PANELS = {"accuracy": ("accuracy, %", 100), "nll": ("NLL", 1), "ece": ("ECE, %", 100)}


def figures(units: Values, folder: Path) -> list[Path]:
    cells = grouped(units)
    figure, axes = subplots(1, len(PANELS), size=(3.4, 0.9 + 0.55 * len(cells)), squeeze=False)
    for axis, (key, (label, factor)) in zip(axes[0], PANELS.items(), strict=True):
        for row, methods in enumerate(cells.values()):
            for place, (method, seeds) in enumerate(methods.items()):
                values = [factor * v[key] for v in seeds.values()]
                y = [row + 0.14 * (place - 2)] * len(values)
                axis.plot(values, y, "o", color=COLOURS[method], markersize=3, alpha=0.5)
                axis.plot(fmean(values), y[0], "|", color=COLOURS[method], markersize=11, markeredgewidth=2)
        axis.set_yticks(range(len(cells)), list(cells) if axis is axes[0][0] else [""] * len(cells))
        axis.set_ylim(len(cells) - 0.5, -0.5)
        axis.set_xlabel(label)
        axis.grid(axis="x", linewidth=0.4)
    present = [m for m in SHOWN if any(m in methods for methods in cells.values())]
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=COLOURS[m], marker="o", linestyle="", label=SHOWN[m]) for m in present]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    return [save(figure, folder / "accuracy.png")]
