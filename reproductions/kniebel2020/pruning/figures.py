"""Accuracy against what is pruned, by order."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from reproductions.kniebel2020.pruning.tables import LOSS, PIECES, SHOWN, Cells, cells_of, curves
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, YELLOW, save, subplots

COLOURS = dict(zip(SHOWN, (BLUE, SKY, RED, GREEN, YELLOW, BLACK, "#AAAAAA", PURPLE, ORANGE), strict=True))


def figures(units: Values, folder: Path) -> list[Path]:
    made = []
    for pieces in PIECES:
        cells = cells_of(units, pieces)
        if cells:
            made.append(_curves(cells, pieces, folder / f"{pieces}.png"))
    return made


def _curves(cells: Cells, pieces: str, path: Path) -> Path:
    width = 2.7 if len(cells) > 1 else 5.4  # the legend needs it
    figure, axes = subplots(1, len(cells), size=(width, 2.4), squeeze=False)
    column = "fraction" if pieces == "layers" else "sparsity"
    for axis, (name, some) in zip(axes[0], cells.items(), strict=True):
        for order, label in SHOWN.items():
            each = [curve for network in some for curve in curves(network, pieces, order, ("kron", "1"))]
            if each:
                x, y = (
                    [fmean(values) for values in zip(*(curve[what] for curve in each), strict=True)]
                    for what in (column, "test")
                )
                axis.plot(x, y, "-o", color=COLOURS[order], markersize=2.5, linewidth=1.2, label=label)
        axis.axhline(fmean(n["whole"]["test"] for n in some) - LOSS, color=BLACK, linewidth=0.7, linestyle=":")
        axis.set_title(name, loc="left", fontsize=9)
        axis.set_xlabel("fraction of layers pruned" if pieces == "layers" else "sparsity", fontsize=8)
    axes[0][0].set_ylabel("test accuracy")
    pairs = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes[0]]
    handles = {label: handle for each in pairs for handle, label in each}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(5, 2 * len(cells)), fontsize=7)
    return save(figure, path)
