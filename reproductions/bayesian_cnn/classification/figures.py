"""Accuracy, NLL and ECE by method."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from reproductions.bayesian_cnn.classification.tables import SHOWN
from reproductions.bayesian_cnn.wording import by_cell
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, ORANGE, PURPLE, SKY, save, subplots

COLOURS = dict(zip(SHOWN, (BLACK, ORANGE, BLUE, PURPLE, SKY), strict=True))
PANELS = {"accuracy": ("accuracy, %", 100), "nll": ("NLL", 1), "ece": ("ECE, %", 100)}


def figures(units: Values, folder: Path) -> list[Path]:
    """Each cell on scales of its own: a point for each seed, a bar at the mean."""
    cells = by_cell(units)
    figure, axes = subplots(len(cells), len(PANELS), size=(3.2, 1.25), squeeze=False)
    for line, (cell, methods) in zip(axes, cells.items(), strict=True):
        for axis, (key, (label, factor)) in zip(line, PANELS.items(), strict=True):
            for place, (method, seeds) in enumerate(methods.items()):
                values = [factor * v[key] for v in seeds.values()]
                axis.plot(values, [place] * len(values), "o", color=COLOURS[method], markersize=3.5, alpha=0.5)
                axis.plot(fmean(values), place, "|", color=COLOURS[method], markersize=9, markeredgewidth=2)
            axis.set_ylim(len(methods) - 0.4, -0.6)
            axis.set_yticks([])
            axis.grid(axis="x", linewidth=0.4)
            axis.set_xlabel(label if line[0] is axes[-1][0] else "")
        line[0].set_ylabel(cell, rotation=0, ha="right", va="center")
    from matplotlib.lines import Line2D

    present = [m for m in SHOWN if any(m in methods for methods in cells.values())]
    handles = [Line2D([], [], color=COLOURS[m], marker="o", linestyle="", label=SHOWN[m]) for m in present]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
    return [save(figure, folder / "accuracy.png")]
