"""AUROC on unseen classes against AUROC on the other novel sets."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from reproductions.own.detectors.choose import areas, mean
from reproductions.own.detectors.combine import SHOWN
from reproductions.own.detectors.subjects import HELD_OUT
from reproductions.own.detectors.tables import SHORT, named
from reproductions.store import Values
from reproductions.style import BLUE, ORANGE, save, subplots


def figures(units: Values, folder: Path) -> list[Path]:
    found = areas(units)
    figure, axes = subplots(1, len(found), size=(4.0, 4.0), squeeze=False)
    for axis, (network, sets) in zip(axes[0], found.items(), strict=True):
        others = [place for place in sets if place != HELD_OUT]
        for number, name in enumerate(SHOWN, 1):
            x = mean(found, network, HELD_OUT, name)
            y = fmean(mean(found, network, place, name) for place in others)
            axis.plot(x, y, "o", color=BLUE if "+" in name or "four" in name else ORANGE)
            axis.annotate(str(number), (x, y), fontsize=7, xytext=(3, 2), textcoords="offset points")
        axis.set_title(SHORT[network], loc="left", fontsize=9)
        axis.set_xlabel("AUROC, unseen classes")
        axis.set_ylabel("AUROC, other novel sets")
    titles = [f"{number} {named(name)}" for number, name in enumerate(SHOWN, 1)]
    half = (len(titles) + 1) // 2
    words = "\n".join("     ".join(part) for part in (titles[:half], titles[half:]))
    figure.supxlabel(words, fontsize=8)
    return [save(figure, folder / "auroc.png")]
