"""Uncertainty by data; accuracy, uncertainty, μ and σ by epoch."""

from __future__ import annotations

from pathlib import Path

from reproductions.bayesian_cnn.wording import by_cell
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, RED, layer_colours, save, subplots

KINDS = {"aleatoric": BLUE, "epistemic": RED}


def figures(units: Values, folder: Path) -> list[Path]:
    cells = by_cell(units, ", ")
    figure, axes = subplots(1, len(cells), size=(3.6, 2.8), squeeze=False)
    for axis, (cell, fractions) in zip(axes[0], cells.items(), strict=True):
        for kind, colour in KINDS.items():
            points = [(v["train"], v[kind]) for seeds in fractions.values() for v in seeds.values()]
            means = {n: [u for m, u in points if m == n] for n, _ in points}
            axis.plot(*zip(*points, strict=True), "o", color=colour, markersize=3, alpha=0.6)
            axis.plot(list(means), [sum(v) / len(v) for v in means.values()], color=colour, label=kind)
        axis.set(xscale="log", yscale="log", xlabel="training images", title=cell)
    axes[0][0].set_ylabel("mean over test images, nats")
    axes[0][0].legend(fontsize=8)
    return [save(figure, folder / "data.png"), _courses(cells, folder / "courses.png")]


def _courses(cells: dict, path: Path) -> Path:  # type: ignore[type-arg]
    """Of the first seed of each cell and fraction."""
    runs = {
        f"{cell}, {fraction}": next(iter(seeds.values()))["history"]
        for cell, fractions in cells.items() for fraction, seeds in fractions.items()
    }  # fmt: skip
    figure, axes = subplots(3, len(runs), size=(2.5, 1.9), squeeze=False)
    for column, (name, course) in enumerate(runs.items()):
        upper, middle, lower = (axes[row][column] for row in range(3))
        upper.plot(course["epoch"], course["accuracy"], color=BLACK, label="training accuracy")
        for kind, colour in KINDS.items():
            upper.plot(course["epoch"], course[kind], color=colour, label=kind)
        upper.set_title(name, fontsize=8)
        for axis, what in ((middle, "mean"), (lower, "std")):
            layers = course[what]
            for colour, (layer, rows) in zip(layer_colours(len(layers)), layers.items(), strict=True):
                axis.plot(course["epoch"], [row[2] for row in rows], color=colour, label=layer, linewidth=1.2)
                low, high = [row[0] for row in rows], [row[4] for row in rows]
                axis.fill_between(course["epoch"], low, high, color=colour, alpha=0.12, linewidth=0)
        lower.set(yscale="log", xlabel="epoch")
    for row, words in enumerate(("accuracy; nats", "μ (median, 5–95%)", "σ (median, 5–95%)")):
        axes[row][0].set_ylabel(words, fontsize=8)
    axes[0][0].legend(fontsize=6)
    handles, labels = axes[1][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=7)
    return save(figure, path)
