"""NLL less that of the tuned grid, what is learned during training, and images by the number of labels."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from reproductions.linearised.online.numbers import TITLES, Numbers
from reproductions.linearised.panels import differences
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, save, subplots

BASE = "grid, laplace"
COLOURS = {
    "early": SKY, "early, laplace": SKY, "grid": BLACK, "grid, laplace": BLACK, "afterwards, laplace": GREEN,
    "online": ORANGE, "online, laplace": RED, "online, exact": BLUE, "online, kron, laplace": PURPLE,
    "online, relative, laplace": BLUE,
}  # fmt: skip
COMPARED = ("early, laplace", "afterwards, laplace", "online", "online, laplace", "online, kron, laplace",
            "online, relative, laplace")  # fmt: skip
OF_IMAGES = ("grid", "grid, laplace", "early", "online", "online, laplace", "afterwards, laplace")
SHOWN = ("yacht", "energy", "concrete", "wine", "synthetic-1")


def figures(units: Values, folder: Path) -> list[Path]:
    numbers = Numbers(units)
    made = [_against_grid(numbers, kind, folder) for kind in ("standard", "gap") if numbers.cases(kind)]
    if numbers.traces["standard"]:
        made.append(_learning(numbers, folder))
    return [*made, _images(numbers, folder)] if numbers.cases("images") else made


def _against_grid(numbers: Numbers, kind: str, folder: Path) -> Path:
    cases = [c for c in numbers.cases(kind) if numbers.over(kind, c, COMPARED[0], BASE, "nll")]
    return differences(
        cases, lambda case, method: numbers.over(kind, case, method, BASE, "nll"), COMPARED, COLOURS, TITLES,
        "NLL − that of the grid with Laplace (95%)", folder / f"{kind}.png", size=(4.6, 2.0),
        margin=0.2 if kind == "gap" else None,
    )  # fmt: skip


def _learning(numbers: Numbers, folder: Path) -> Path:
    """Evidence, precisions and noise of the first split's network, update by update."""
    cases = [c for c in SHOWN if c in numbers.traces["standard"]]
    figure, axes = subplots(2, len(cases), size=(3.0, 2.1), squeeze=False, sharex="col")
    for column, case in enumerate(cases):
        top, bottom = axes[0][column], axes[1][column]
        for method, colour in (("online", RED), ("online, relative", BLUE)):
            records = numbers.traces["standard"][case][method]
            steps = [r["step"] for r in records]
            top.plot(steps, [r["evidence"] for r in records], "o-", color=colour, markersize=3, label=TITLES[method])
            for layer, style in ((0, "-"), (1, "--")):
                values = [r["precision"][layer] for r in records]
                name = ("hidden", "output")[layer] + (" layer, relative prior" if "relative" in method else " layer")
                bottom.plot(steps, values, style, color=colour, label=name)
            bottom.plot(steps, [r["noise"] for r in records], ":", color=colour)
        bottom.plot([], [], ":", color=BLACK, label="noise σ")
        top.set_title(case, loc="left", fontsize=9)
        bottom.set_yscale("log")
        bottom.set_xlabel("training step", fontsize=8)
    axes[0][0].set_ylabel("log evidence before\nthe update, nats", fontsize=8)
    axes[1][0].set_ylabel("precision, noise", fontsize=8)
    handles, labels = axes[1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    return save(figure, folder / "learning.png")


def _images(numbers: Numbers, folder: Path) -> Path:
    """NLL and accuracy by the number of labels, mean over seeds."""
    parts = [case.rsplit(", ", 2) for case in numbers.cases("images")]
    panels = list(dict.fromkeys((of, network) for of, _, network in parts))
    figure, axes = subplots(2, len(panels), size=(3.0, 2.1), squeeze=False, sharex="col")
    for column, (of, network) in enumerate(panels):
        labels = [words for name, words, own in parts if (name, own) == (of, network)]
        for row, metric in enumerate(("nll", "accuracy")):
            axis = axes[row][column]
            for place, method in enumerate(OF_IMAGES):
                each = [numbers.each("images", f"{of}, {words}, {network}", method, metric) for words in labels]
                at = [x + 0.1 * (place - (len(OF_IMAGES) - 1) / 2) for x in range(len(labels))]
                marker = "o" if "laplace" in method else "x"
                axis.plot(at, [fmean(v or [0.0]) for v in each], marker, color=COLOURS[method], markersize=5,
                          label=TITLES[method])  # fmt: skip
                for x, values in zip(at, each, strict=True):
                    axis.plot([x] * len(values or []), values or [], ".", color=COLOURS[method], markersize=2)
            axis.set_xticks(range(len(labels)), labels, fontsize=8)
        axes[0][column].set_title(f"{of}\n{network}", loc="left", fontsize=8)
    axes[0][0].set_ylabel("test NLL", fontsize=8)
    axes[1][0].set_ylabel("accuracy", fontsize=8)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return save(figure, folder / "images.png")
