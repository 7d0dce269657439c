"""Shares by method, and agreement with the chains."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from reproductions.kniebel2020.methods import tables
from reproductions.kniebel2020.methods.tables import ALL, HMC, WITH_SHARES, Cells
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, layer_colours, layer_handles, save, subplots


def figures(units: Values, folder: Path) -> list[Path]:
    cells = tables.cells_of(units)
    made = [_shares(tables.deeper(cells), folder / "shares.png")] if tables.deeper(cells) else []
    own = tables.reference(cells)
    return made + ([_reference(own, folder / "hmc.png")] if own else [])


def _shares(cells: Cells, path: Path) -> Path:
    """Every method a bar, its layers from the input (dark) to the output (light)."""
    figure, axes = subplots(1, len(cells), size=(2.3, 1.9), squeeze=False, sharey=True)
    for axis, (cell, some) in zip(axes[0], cells.items(), strict=True):
        colours = layer_colours(len(some[0]["1"]["layers"]))
        for row, method in enumerate(WITH_SHARES):
            left = 0.0
            for i, colour in enumerate(colours):
                share = fmean(network["1"]["where"][method]["share"][i] for network in some)
                axis.barh(row, share, left=left, color=colour, height=0.7)
                left += share
        axis.set_title(cell, loc="left", fontsize=9)
        axis.set_xlim(0, 1)
        axis.set_xlabel("share of the variance", fontsize=8)
    axes[0][0].set_yticks(range(len(WITH_SHARES)), WITH_SHARES, fontsize=8)
    axes[0][0].invert_yaxis()
    figure.legend(handles=layer_handles(), loc="outside upper center", ncols=3, fontsize=8)
    return save(figure, path)


def _reference(cells: Cells, path: Path) -> Path:
    """Rank correlation of predictive variance with the chains', and the logarithm of the ratio."""
    figure, axes = subplots(1, 2, size=(3.2, 2.6), sharey=True)
    methods = [m for m in ALL if any(m in some[0]["1"]["scores"] for some in cells.values())]
    for axis, what, label in zip(axes, ("rank", "log ratio"), ("rank correlation", "log ratio"), strict=True):
        for row, method in enumerate(methods):
            own = {n: some for n, some in cells.items() if method in some[0]["1"]["scores"]}
            found = tables.seeds(own, tables.pair("variance", method, HMC, what))
            bar = [[found.mean - found.low], [found.high - found.mean]]
            axis.errorbar(found.mean, row, xerr=bar, fmt="o", color=BLUE, markersize=4)
        axis.axvline(0, color=BLACK, linewidth=0.8, linestyle=":")
        axis.set_xlabel(f"predictive variance, {label} with HMC", fontsize=8)
    axes[0].set_yticks(range(len(methods)), methods, fontsize=8)
    axes[0].invert_yaxis()
    return save(figure, path)
