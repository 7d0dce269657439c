"""Figures 1 and 8 of the paper, the same panels linearised, and every method's distance to HMC."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from reproductions.claims import interval
from reproductions.ritter2018.toy.names import (
    DETERMINISTIC,
    DIAGONAL,
    DIAGONAL_FISHER,
    EXACT,
    FULL,
    FULL_FISHER,
    HMC,
    KRONECKER,
    PAPER,
    TUNINGS,
    WAYS,
)
from reproductions.ritter2018.toy.run import NETWORK
from reproductions.ritter2018.toy.views import View, activations
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, COLOURS, ORANGE, PURPLE, RED, save, subplots

MINE = {
    KRONECKER: BLUE, EXACT: BLUE, DIAGONAL: COLOURS[DIAGONAL], DIAGONAL_FISHER: COLOURS[DIAGONAL], FULL: PURPLE,
    FULL_FISHER: PURPLE, DETERMINISTIC: BLACK, HMC: ORANGE,
}  # fmt: skip
SHADES = 3  # standard deviations
NARROW, WIDE = 130.0, 400.0  # reach of y in figures 1 and 8
LABELS = {"relu": "ReLU", "tanh": "tanh"}


def figures(units: Values, folder: Path) -> list[Path]:
    made = [distances(units, folder / "distances.png")]
    view = View(units, activations(units)[0])
    made.append(panels(view, ["tuned sampled"], NARROW, folder / "figure1.png"))
    made.append(panels(view, ["untuned sampled"], WIDE, folder / "figure8.png"))
    made.append(panels(view, ["untuned linearised", "tuned linearised"], NARROW, folder / "linearised.png"))
    return made


def panels(view: View, cases: list[str], reach: float, path: Path) -> Path:
    """One row for each case: the three Laplace posteriors of the paper and HMC, of the first seed."""
    figure, axes = subplots(len(cases), 4, size=(2.9, 2.9), sharex=True, sharey=True, squeeze=False)
    for row, case in zip(axes, cases, strict=True):
        for axis, method in zip(row, (*PAPER, HMC), strict=True):
            panel(axis, view, method, case)
            title = method if len(cases) == 1 or method == HMC else f"{method}, {case.split()[0]}"
            axis.set_title(title, fontsize=9)
            axis.set_ylim(-reach, reach)
            axis.set_xlim(-6, 6)
        row[0].set_ylabel("y")
    for axis in axes[-1]:
        axis.set_xlabel("x")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    return save(figure, path)


def panel(axis: Any, view: View, method: str, case: str) -> None:
    """Data, the noiseless function, the network's prediction, and mean with its standard deviations."""
    seed = view.seeds[0]
    network, found = view.unit(seed, NETWORK), view.one(seed, method, case)
    x, mean, std = network["grid"], found["mean"], found["std"]
    for k in range(SHADES, 0, -1):
        low, high = ([m + sign * k * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axis.fill_between(x, low, high, color=BLUE, alpha=0.22, linewidth=0, label="1, 2, 3 std" if k == 1 else None)
    axis.plot(x, mean, color=BLUE, linewidth=1.5, label="mean output")
    axis.plot(x, view.one(seed, DETERMINISTIC)["mean"], color=RED, linewidth=1.2, label="deterministic")
    axis.plot(x, [v**3 for v in x], color="black", linewidth=1.0, label="x³")
    axis.plot(network["train"]["x"], network["train"]["y"], "o", color="black", markersize=3, label="data")


def distances(units: Values, path: Path) -> Path:
    """Geometric mean over seeds with its 95 % interval; seeds as dots."""
    names = activations(units)
    figure, axes = subplots(1, len(names), size=(4.6, 4.4), sharey=True, squeeze=False)
    for axis, activation in zip(axes[0], names, strict=True):
        view = View(units, activation)
        axis.set_xscale("log")
        axis.set_xlim(*_limits(view))
        _rows(axis, view)
        axis.set_title(f"{LABELS[activation]} network", fontsize=9)
        axis.set_xlabel("Wasserstein distance to HMC (unit of y)")
        axis.grid(axis="x", which="both", color="0.92", linewidth=0.6)
    axes[0][0].set_yticks(range(len(view.methods) + 1), [*view.methods, DETERMINISTIC])
    axes[0][0].invert_yaxis()
    _legend(figure)
    return save(figure, path)


def _limits(view: View) -> tuple[float, float]:
    """Around the middles of all methods; what lies beyond is cut, and seeds are marked at the edge."""
    found = [view.distance(method, case) for method in view.methods for case in OFFSETS]
    floor = [view.unit(seed, HMC)["again"]["wasserstein"]["all"] for seed in view.seeds]
    return 0.6 * min(floor), 3 * max(math.exp(interval([math.log(v) for v in values]).mean) for values in found)


MARKS = {"sampled": "o", "linearised": "s"}
OFFSETS = {"untuned sampled": -0.27, "untuned linearised": -0.09, "tuned sampled": 0.09, "tuned linearised": 0.27}


def _rows(axis: Any, view: View) -> None:
    for place, method in enumerate(view.methods):
        for case, offset in OFFSETS.items():
            tuning, way = case.split()
            face = MINE[method] if tuning == "tuned" else "white"
            _mark(axis, view.distance(method, case), place + offset, MINE[method], face, MARKS[way])
    _mark(axis, view.distance(DETERMINISTIC), len(view.methods), BLACK, BLACK, "D")
    floor = interval([math.log(view.unit(seed, HMC)["again"]["wasserstein"]["all"]) for seed in view.seeds])
    axis.axvline(math.exp(floor.mean), color=MINE[HMC], linestyle="--", linewidth=1.2)


def _mark(axis: Any, values: list[float], place: float, colour: str, face: str, mark: str) -> None:
    found = interval([math.log(v) for v in values])
    middle = math.exp(found.mean)
    error = [[middle - math.exp(found.low)], [math.exp(found.high) - middle]]
    edge = axis.get_xlim()[1]
    axis.plot(values, [place] * len(values), ".", color=colour, alpha=0.4, markersize=3, zorder=1)
    if max(values) > edge:
        axis.plot([edge], [place], ">", color=colour, markersize=4, clip_on=False, zorder=3)
    look = {"color": colour, "markerfacecolor": face, "markersize": 5, "elinewidth": 1}
    axis.errorbar([middle], [place], xerr=error, fmt=mark, zorder=2, **look)


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color="0.3", marker=MARKS[way], markerfacecolor="0.3" if tuning == "tuned" else "white",
               linestyle="", markersize=5, label=f"{tuning}, {way}")
        for tuning in TUNINGS for way in WAYS
    ]  # fmt: skip
    handles.append(Line2D([], [], color=MINE[HMC], linestyle="--", linewidth=1.2, label="other draws of HMC"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
