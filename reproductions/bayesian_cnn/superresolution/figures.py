"""Sparsification curves, and maps of reconstruction, error and uncertainty."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from reproductions.bayesian_cnn.superresolution.tables import SHOWN
from reproductions.bayesian_cnn.wording import by_cell
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, ORANGE, RED, save, subplots

COLOURS = {"plain": BLACK, "dropout": ORANGE, "variational": BLUE, "laplace": RED}


def figures(units: Values, folder: Path) -> list[Path]:
    tasks = by_cell(units)
    made = [_curves(tasks, folder / "sparsification.png")]
    return [*made, _maps(tasks, folder / "maps.png")]


def _curves(tasks: Any, path: Path) -> Path:
    figure, axes = subplots(1, len(tasks), size=(3.9, 3.3), squeeze=False)
    for axis, (task, methods) in zip(axes[0], tasks.items(), strict=True):
        for method, colour in COLOURS.items():
            curves = [v["curve"] for v in methods.get(method, {}).values()]
            if curves:
                mean = [fmean(values) for values in zip(*curves, strict=True)]
                left = [i / len(mean) for i in range(len(mean))]
                axis.plot(left, mean, color=colour, label=SHOWN[method], linewidth=1.4)
        some = [v["oracle"] for m in methods.values() for v in m.values() if "oracle" in v]
        if some:
            mean = [fmean(values) for values in zip(*some, strict=True)]
            axis.plot([i / len(mean) for i in range(len(mean))], mean, ":", color="grey", label="oracle")
        axis.set(title=task, xlabel="pixels removed, most uncertain first", ylim=(0, None))
    axes[0][0].set_ylabel("RMSE of the rest, relative")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=7)
    return save(figure, path)


def _maps(tasks: Any, path: Path) -> Path:
    """The first mapped image of each task: truth and input, then each method's mean, error and uncertainty."""
    rows = [
        (task, method, value["maps"])
        for task, methods in tasks.items() for method, seeds in methods.items() for value in seeds.values()
        if "maps" in value and method != "bicubic"
    ]  # fmt: skip
    figure, axes = subplots(len(rows), 5, size=(1.35, 1.45), squeeze=False)
    for line, (task, method, maps) in zip(axes, rows, strict=True):
        high, mean = (np.asarray(maps[k][0], dtype=float) / 255 for k in ("high", "mean"))
        error = np.abs(high - mean).mean(0)
        shown = (maps["low"][0], maps["high"][0], maps["mean"][0])
        for axis, image, title in zip(line[:3], shown, ("input", "truth", "reconstruction"), strict=True):
            picture = np.asarray(image, dtype=float) / 255
            axis.imshow(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=1)
            axis.set_title(title if line[0] is axes[0][0] else "", fontsize=8)
        for axis, values, title in (
            (line[3], error, "error"),
            (line[4], np.asarray(maps["std"][0]) / 1e4, "uncertainty"),
        ):
            axis.imshow(values, cmap="magma", vmin=0, vmax=np.quantile(values, 0.99) + 1e-9)
            axis.set_title(title if line[0] is axes[0][0] else "", fontsize=8)
        name = SHOWN[method].replace("; ", ":\n")
        line[0].set_ylabel(f"{task}\n{name}", fontsize=6)
        for axis in line:
            axis.set_xticks([])
            axis.set_yticks([])
    return save(figure, path)
