"""Every cell's course, and what each stopping rule costs."""

from __future__ import annotations

from pathlib import Path

from reproductions.claims import interval
from reproductions.kniebel2020.stability import REFERENCE
from reproductions.kniebel2020.training.rules import FAMILIES, Runs, optimum, series
from reproductions.kniebel2020.training.tables import OURS, regrets, runs_of
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, ORANGE, layer_colours, layer_handles, save, subplots


def figures(units: Values, folder: Path) -> list[Path]:
    runs = runs_of(units)
    return [_courses(runs, folder / "courses.png"), *([_costs(runs, folder / "stopping.png")] if len(runs) > 1 else [])]


def _courses(runs: Runs, path: Path) -> Path:
    """Explained of every layer (first seed), over the validation loss; the optimum and where all have settled."""
    from matplotlib.lines import Line2D

    figure, axes = subplots(2, len(runs), size=(2.3, 1.7), squeeze=False, sharex="col")
    stops = regrets(OURS, runs) if len(runs) > 1 else {}
    for column, (cell, some) in enumerate(runs.items()):
        run, (top, bottom) = some[0], (axes[0][column], axes[1][column])
        layers = list(zip(*series(run, REFERENCE, "explained"), strict=True))
        for values, colour in zip(layers, layer_colours(len(layers)), strict=True):
            top.plot(values, color=colour, linewidth=1.3)
        bottom.plot(run["validation"], color=BLUE, linewidth=1.2)
        bottom.set_ylim(min(run["validation"]) * 0.95, min(max(run["validation"]), min(run["validation"]) * 2.2))
        for axis in (top, bottom):
            axis.axvline(optimum(run), color=BLACK, linewidth=0.8, linestyle=":")
            if stops:
                axis.axvline(stops[cell].stops[0].after, color=ORANGE, linewidth=1.0)
        top.set_title(cell, loc="left", fontsize=8)
        top.set_ylim(0, 1)
        bottom.set_xlabel("epoch", fontsize=8)
    axes[0][0].set_ylabel("explained")
    axes[1][0].set_ylabel("validation loss")
    handles = [
        *layer_handles(),
        Line2D([], [], color=BLACK, linestyle=":", label="validation optimum"),
        Line2D([], [], color=ORANGE, label="all layers have settled"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=5, fontsize=8)
    return save(figure, path)


def _costs(runs: Runs, path: Path) -> Path:
    """Test loss of each rule less that at the validation optimum: dots for cells, the mean with its interval."""
    figure, axes = subplots(1, 1, size=(5.6, 2.4))
    for row, family in enumerate(FAMILIES):
        values = [sum(j.regrets) / len(j.regrets) for j in regrets(family, runs).values()]
        found = interval(values)
        axes.plot(values, [row] * len(values), ".", color="#BBBBBB")
        axes.errorbar(found.mean, row, xerr=[[found.mean - found.low], [found.high - found.mean]], fmt="o", color=BLUE,
                      capsize=2)  # fmt: skip
    axes.axvline(0, color=BLACK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(FAMILIES)), list(FAMILIES), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("test loss − that at the validation optimum (nats)")
    return save(figure, path)
