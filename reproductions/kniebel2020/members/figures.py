"""Scores as members are added, beside the strong network."""

from __future__ import annotations

from pathlib import Path

from reproductions.kniebel2020.members.config import KINDS
from reproductions.kniebel2020.members.tables import groups
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, ORANGE, save, subplots

SHOWN = {"accuracy": "accuracy", "nll": "NLL", "novel": "AUROC, novel inputs"}


def figures(units: Values, folder: Path) -> list[Path]:
    found = groups(units)
    cells = list(dict.fromkeys(cell for cell, _ in found))
    figure, axes = subplots(len(SHOWN), len(cells), size=(2.8, 1.7), squeeze=False, sharex=True)
    for column, cell in enumerate(cells):
        for row, (score, label) in enumerate(SHOWN.items()):
            axis = axes[row][column]
            for kind, colour in zip(KINDS, (BLUE, ORANGE), strict=True):
                some = found.get((cell, kind), [])
                for value in some:
                    counts = sorted(map(int, value["ensembles"]))
                    y = [value["ensembles"][str(n)][score] for n in counts]
                    axis.plot(counts, y, "-o", color=colour, markersize=2.5, linewidth=1, alpha=0.7)
                for value in some:
                    axis.axhline(value["strong"][score], color=BLACK, linewidth=0.7, alpha=0.6)
                axis.plot([], [], "-o", color=colour, label=f"weak: {kind}", markersize=3)
            axis.plot([], [], color=BLACK, label="strong network")
            axis.set_xscale("log")
            counts = sorted({int(n) for value in found.get((cell, KINDS[0]), []) for n in value["ensembles"]})
            axis.set_xticks(counts, [str(n) for n in counts])
            axis.minorticks_off()
            if column == 0:
                axis.set_ylabel(label, fontsize=8)
        axes[0][column].set_title(cell, loc="left", fontsize=9)
        axes[-1][column].set_xlabel("members", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8)
    return [save(figure, folder / "members.png")]
