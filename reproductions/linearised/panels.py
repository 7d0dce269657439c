"""Differences in NLL from a baseline, one panel for each data set, one line for each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reproductions.claims import Interval
from reproductions.style import BLACK, save, subplots

Found = Callable[[str, str], Interval | None]  # case, method → difference in NLL


def differences(
    cases: Sequence[str],
    found: Found,
    methods: Sequence[str],
    colours: Mapping[str, str],
    titles: Mapping[str, str],
    label: str,
    path: Path,
    *,
    size: tuple[float, float],
    columns: int = 3,
    margin: float | None = None,
) -> Path:
    """Intervals of all methods. With ``margin`` only means decide the limits: intervals of few splits are wide."""
    columns = min(columns, max(len(cases), 1))
    figure, axes = subplots(-(-max(len(cases), 1) // columns), columns, size=size, squeeze=False)
    for axis, case in zip(axes.flat, cases, strict=False):
        known = {m: interval for m in methods if (interval := found(case, m)) is not None}
        _panel(axis, known, colours, margin)
        axis.set_yticks(range(len(known)), [titles[m].replace("one network, ", "") for m in known], fontsize=6)
        axis.invert_yaxis()
        axis.set_title(case, loc="left", fontsize=9)
        axis.set_xlabel(label, fontsize=8)
    for axis in axes.flat[len(cases) :]:
        axis.set_visible(False)
    return save(figure, path)


def _panel(axis: Any, known: Mapping[str, Interval], colours: Mapping[str, str], margin: float | None) -> None:
    for place, (method, found) in enumerate(known.items()):
        axis.errorbar(
            found.mean, place, xerr=[[found.mean - found.low], [found.high - found.mean]], fmt="o", markersize=4,
            color=colours[method], capsize=2,
        )  # fmt: skip
    if margin is not None:
        ends = [0.0, *(found.mean for found in known.values())]
        room = margin * (max(ends) - min(ends)) + 1e-3
        axis.set_xlim(min(ends) - room, max(ends) + room)
        axis.locator_params(axis="x", nbins=4)
    axis.axvline(0, color=BLACK, linewidth=0.8, linestyle=":")
