"""One picture for each question."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from reproductions.kniebel2020.grid import numbers
from reproductions.kniebel2020.grid.numbers import Cells, cells_of, deeper, main
from reproductions.kniebel2020.grid.regression import everywhere
from reproductions.kniebel2020.grid.tables import MEASURES, SCORES, SIZES, TUNED
from reproductions.kniebel2020.stability import FACTORS, Get, Stable
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, GREEN, ORANGE, save, subplots

COLOURS = {"kron": BLUE, "diag": ORANGE}
NAMES = {"kron": "Kronecker factors", "diag": "diagonal"}


def figures(units: Values, folder: Path) -> list[Path]:
    cells = cells_of(units)
    made = [_profiles(deeper(main(cells)), folder / "layers.png")]
    gets = {name: get for name, (_, get) in MEASURES.items()}
    made += [_dots(deeper(main(cells)), gets, "ε² between layers", folder / "between.png", 0.14)]
    made += [_dots(main(cells), SIZES, "rank correlation with |w|", folder / "size.png", 0.0)]
    maps = {name: networks[0]["pixels"]["map"] for name, networks in main(cells).items() if networks[0]["pixels"]}
    made += [_pixels(maps, folder / "pixels.png")] if maps else []
    made += [_enough(deeper(main(cells)), folder / "enough.png")]
    return made + ([_regression(cells, folder / "regression.png")] if len(deeper(cells)) >= 6 else [])


def _profiles(cells: Cells, path: Path) -> Path:
    """Explained along every network: lines at τ = 1, bands from τ = 0.1 to 10."""
    columns = min(4, len(cells))
    rows = math.ceil(len(cells) / columns)
    figure, axes = subplots(rows, columns, size=(2.6, 1.9), squeeze=False, sharex=True, sharey=True)
    for axis, (name, networks) in zip(axes.flat, cells.items(), strict=False):
        places = [layer["place"] for layer in networks[0]["network"]["layers"] if layer["place"] is not None]
        for structure, colour in COLOURS.items():
            weak, middle, strong = (_mean(networks, (structure, factor)) for factor in FACTORS)
            axis.fill_between(places, strong, weak, color=colour, alpha=0.15, linewidth=0)
            axis.plot(places, middle, "-o", color=colour, markersize=3, linewidth=1.4, label=NAMES[structure])
        axis.set_title(name, loc="left", fontsize=9)
        axis.set_ylim(-0.02, 1.02)
    for axis in axes.flat[len(cells) :]:
        axis.set_axis_off()
    for axis in axes[-1]:
        axis.set_xlabel("relative depth")
    for line in axes:
        line[0].set_ylabel("explained")
    axes.flat[0].fill_between([], [], [], color="#999999", alpha=0.3, label="prior ten times weaker to stronger")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=9)
    return save(figure, path)


def _mean(networks: list[Values], condition: tuple[str, str]) -> list[float]:
    each = [numbers.column(network, condition, "explained") for network in networks]
    return [sum(values) / len(values) for values in zip(*each, strict=True)]


def _dots(cells: Cells, gets: dict[str, Get], label: str, path: Path, bound: float) -> Path:
    """Every cell a row, every measure a panel: the mean and its interval, and the range over conditions in grey."""
    figure, axes = subplots(1, len(gets), size=(2.5, 0.8 + 0.21 * len(cells)), sharey=True, squeeze=False)
    for axis, (name, get) in zip(axes[0], gets.items(), strict=True):
        for row, networks in enumerate(cells.values()):
            found = Stable.of(networks, get)
            axis.plot([found.lowest, found.highest], [row, row], color="#CCCCCC", linewidth=4, solid_capstyle="round")
            _dot(axis, found, row)
        axis.axvline(bound, color=BLACK, linewidth=0.8, linestyle=":")
        axis.set_title(name, loc="left", fontsize=9)
        axis.set_xlabel(label, fontsize=8)
    axes[0][0].set_yticks(range(len(cells)), list(cells), fontsize=7)
    axes[0][0].invert_yaxis()
    axes[0][0].errorbar([], [], xerr=[], fmt="o", color=BLUE, markersize=3.5, label="mean over seeds, 95% interval")
    axes[0][0].plot([], [], color="#CCCCCC", linewidth=4, label="range over priors and structures")
    axes[0][0].plot([], [], ":", color=BLACK, linewidth=0.8, label=f"{bound:g}")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return save(figure, path)


def _dot(axis: Any, found: Stable, row: float, colour: str = BLUE) -> None:
    own = found.reference
    axis.errorbar(own.mean, row, xerr=[[own.mean - own.low], [own.high - own.mean]], fmt="o", color=colour,
                  markersize=3.5, linewidth=1.1)  # fmt: skip


def _pixels(shown: dict[str, list[float]], path: Path) -> Path:
    """How well weights from every pixel are identified, mean over units."""
    figure, axes = subplots(1, len(shown), size=(1.9, 1.9), squeeze=False)
    for axis, (name, values) in zip(axes[0], shown.items(), strict=True):
        side = math.isqrt(len(values))
        axis.imshow([values[i * side : (i + 1) * side] for i in range(side)], cmap="cividis")
        axis.set_title(name, loc="left", fontsize=8)
        axis.set_axis_off()
    bar = figure.colorbar(axes[0][-1].images[0], ax=axes, shrink=0.85, ticks=axes[0][-1].images[0].get_clim())
    bar.ax.set_yticklabels(["least", "best"], fontsize=8)
    bar.set_label("identified, on a scale of its own", fontsize=8)
    return save(figure, path)


def _enough(cells: Cells, path: Path) -> Path:
    """What the last layer alone changes, and what the layers change that validation data choose."""
    sets = {"last layer": ("last, tuned by itself", ORANGE), "as good, by validation": ("as good", GREEN)}
    figure, axes = subplots(1, len(SCORES), size=(2.5, 0.9 + 0.24 * len(cells)), sharey=True, squeeze=False)
    for axis, (score, label) in zip(axes[0], SCORES.items(), strict=True):
        for shift, (name, (which, colour)) in zip((-0.15, 0.15), sets.items(), strict=True):
            for row, networks in enumerate(cells.values()):
                _dot(axis, Stable.of(networks, numbers.set_less_all(which, score), TUNED), row + shift, colour)
            axis.plot([], [], "o", color=colour, markersize=3.5, label=name)
        axis.axvline(0, color=BLACK, linewidth=0.8, linestyle=":")
        axis.set_xlabel(f"{label}: change against all layers", fontsize=8)
    axes[0][0].set_yticks(range(len(cells)), list(cells), fontsize=7)
    axes[0][0].invert_yaxis()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8)
    return save(figure, path)


def _regression(cells: Cells, path: Path) -> Path:
    """Coefficients under every condition; factors that no cell varies are left out."""
    found = {n: s for n, s in everywhere(cells, numbers.slope).items() if s.lowest or s.highest}
    figure, axes = subplots(1, 1, size=(5.6, 1.2 + 0.3 * len(found)))
    shades = {"0.1": 0.35, "1": 1.0, "10": 0.6}
    for row, stable in enumerate(found.values()):
        for place, ((structure, factor), own) in enumerate(stable.found.items()):
            label = f"{NAMES[structure]}, τ = {factor}" if row == 0 else None
            axes.errorbar(own.mean, row + 0.12 * (place - 2.5), xerr=[[own.mean - own.low], [own.high - own.mean]],
                          fmt="o", markersize=3, linewidth=1, color=COLOURS[structure], alpha=shades[factor],
                          label=label)  # fmt: skip
    axes.axvline(0, color=BLACK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(found)), list(found), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("change of the slope of explained over relative depth")
    figure.legend(loc="outside right upper", fontsize=7)
    return save(figure, path)
