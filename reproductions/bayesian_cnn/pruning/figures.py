"""Accuracy against the fraction of weights pruned."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from reproductions.bayesian_cnn.pruning.tables import NAMES
from reproductions.bayesian_cnn.wording import by_cell
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, YELLOW, save, subplots

COLOURS = dict(zip(NAMES, (SKY, GREEN, BLACK, ORANGE, BLUE, PURPLE, RED, YELLOW), strict=True))


def figures(units: Values, folder: Path) -> list[Path]:
    cells = by_cell(units)
    figure, axes = subplots(1, len(cells), size=(3.3, 2.9), squeeze=False)
    for axis, (cell, sources) in zip(axes[0], cells.items(), strict=True):
        for (source, by), label in NAMES.items():
            curves = [v["curves"][by] for v in sources.get(source, {}).values()]
            if curves:
                mean = [100 * fmean(values) for values in zip(*(c["test"] for c in curves), strict=True)]
                left = [max(1 - f, 1e-3) for f in curves[0]["fraction"]]
                axis.plot(left, mean, "-o", color=COLOURS[source, by], markersize=2.5, linewidth=1.2, label=label)
        halves = list(sources.get("half", {}).values())
        wholes = [v["parameters"] for source in sources if source != "half" for v in sources[source].values()]
        if halves and wholes:
            point = fmean(v["whole"]["test"] for v in halves)
            axis.plot(
                halves[0]["parameters"] / wholes[0], 100 * point, "*", color=BLACK, markersize=10, label="half width"
            )
        axis.set(xscale="log", title=cell, xlabel="share of the weights that is left")
        axis.invert_xaxis()
    axes[0][0].set_ylabel("test accuracy, %")
    pairs = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes[0]]
    handles = {label: handle for each in pairs for handle, label in each}
    figure.legend(handles.values(), handles, loc="outside right center", fontsize=7)
    return [save(figure, folder / "curves.png")]
