"""NLL less that of one network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproductions.linearised.classes.numbers import TITLES, Numbers
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, YELLOW, save, subplots

COLOURS = {
    "temperature": BLACK, "laplace, full": RED, "laplace, kron": RED, "laplace, diag": RED, "laplace, last": RED,
    "laplace, evidence": BLUE, "laplace, sampled": SKY, "variational": PURPLE, "dropout": ORANGE, "swag": YELLOW,
    "ensemble": GREEN,
}  # fmt: skip


def figures(units: Values, folder: Path) -> list[Path]:
    numbers = Numbers(units)
    names = [name for name in numbers.sets() if numbers.over(name, "ensemble", "plain", "nll") is not None]
    if not names:
        return []
    columns = min(4, len(names))
    figure, axes = subplots(-(-len(names) // columns), columns, size=(4.2, 2.6), squeeze=False)
    for axis, name in zip(axes.flat, names, strict=False):
        _panel(axis, numbers, name)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    return [save(figure, folder / "classes.png")]


def _panel(axis: Any, numbers: Numbers, name: str) -> None:
    ends = [0.0]
    for place, method in enumerate(COLOURS):
        found = numbers.over(name, method, "plain", "nll")
        assert found is not None
        axis.errorbar(
            found.mean, place, xerr=[[found.mean - found.low], [found.high - found.mean]], fmt="o", markersize=4,
            color=COLOURS[method], capsize=2,
        )  # fmt: skip
        ends.append(found.mean)
    low, high = min(ends), max(ends)  # with few splits intervals may leave the panel
    axis.set_xlim(low - 0.6 * (high - low) - 1e-3, high + 0.6 * (high - low) + 1e-3)
    axis.locator_params(axis="x", nbins=4)
    axis.axvline(0, color=BLACK, linewidth=0.8, linestyle=":")
    axis.set_yticks(range(len(COLOURS)), [TITLES[m].replace("one network, ", "") for m in COLOURS], fontsize=6)
    axis.invert_yaxis()
    axis.set_title(name, loc="left", fontsize=9)
    axis.set_xlabel("NLL − one network's (95% over splits)", fontsize=8)
