"""Shares and what is explained, along the network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproductions.ritter2018.where.tables import TITLES, column, kinds
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, ORANGE, save, subplots

VIEWS = {"test": ("test inputs", BLUE), "ood": ("novel inputs", ORANGE)}


def figures(units: Values, folder: Path) -> list[Path]:
    found = kinds(units)
    figure, axes = subplots(len(found), 2, size=(5.2, 3.2), squeeze=False)
    for row, (kind, networks) in zip(axes, found.items(), strict=True):
        _shares(row[0], networks)
        _explained(row[1], networks)
        row[0].set_title(TITLES[kind], loc="left", fontsize=9)
    return [save(figure, folder / "layers.png")]


def _shares(axes: Any, networks: Sequence[Values]) -> None:
    names = _axis(axes, networks)
    for view, (label, colour) in VIEWS.items():
        _line(axes, networks, (view, "variance_share"), label, colour)
    prior = [column(networks, i, "test", "prior_share") for i in range(len(names))]
    axes.plot(prior, color=BLACK, linestyle=":", label="prior alone, test inputs")
    axes.set_ylabel("share of the variance")
    axes.set_ylim(0, None)
    axes.legend(fontsize=7)


def _explained(axes: Any, networks: Sequence[Values]) -> None:
    _axis(axes, networks)
    for view, (label, colour) in VIEWS.items():
        _line(axes, networks, (view, "explained"), label, colour)
    axes.set_ylabel("explained by the data")
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1)
    axes.legend(fontsize=7)


def _line(axes: Any, networks: Sequence[Values], path: Sequence[str], label: str, colour: str) -> None:
    """The mean over seeds, and every seed as dots."""
    view, field = path
    each = [[row[view][field] for row in network["layers"]] for network in networks]
    mean = [sum(values) / len(values) for values in zip(*each, strict=True)]
    axes.plot(mean, color=colour, label=label)
    for values in each:
        axes.plot(values, ".", color=colour, markersize=4, alpha=0.6)


def _axis(axes: Any, networks: Sequence[Values]) -> list[str]:
    names = [row["name"] for row in networks[0]["layers"]]
    axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 4 else 0, fontsize=8 if len(names) < 9 else 5)
    return names
