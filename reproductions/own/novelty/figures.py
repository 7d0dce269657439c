"""AUROC of detectors, network by network."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from reproductions.own.novelty.tables import by_network, detectors
from reproductions.own.priors.tables import TITLES
from reproductions.store import Values
from reproductions.style import BLUE, ORANGE, save, subplots


def figures(units: Values, folder: Path) -> list[Path]:
    found = by_network(units)
    figure, axes = subplots(1, len(found), size=(3.4, 3.2), squeeze=False, sharey=True)
    for axis, (network, each) in zip(axes[0], found.items(), strict=True):
        names = detectors(each)
        for place, name in enumerate(names):
            values = [fmean(scores[name] for scores in value["auroc"].values()) for value in each]
            colour = BLUE if name.startswith("novelty") else ORANGE
            axis.plot(values, [place] * len(values), ".", color=colour, alpha=0.6)
            axis.plot(fmean(values), place, "o", color=colour)
        axis.set_yticks(range(len(names)), names, fontsize=7)
        axis.set_title(TITLES[network], loc="left", fontsize=6)
        axis.set_xlabel("AUROC", fontsize=8)
    axes[0][0].invert_yaxis()
    return [save(figure, folder / "auroc.png")]
