"""NLL less that of the honest baseline, and what happens in the gaps."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from reproductions.linearised.panels import differences
from reproductions.linearised.uci.numbers import TITLES, Numbers
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, YELLOW, save, subplots

COLOURS = {
    "laplace, full": RED, "laplace, kron": RED, "laplace, diag": RED, "laplace, last": RED, "laplace, refined": BLUE,
    "laplace, evidence": BLUE, "laplace, sampled": SKY, "variational": PURPLE, "dropout": ORANGE, "swag": YELLOW,
    "ensemble": GREEN, "longer": BLACK, "longer, laplace": RED,
}  # fmt: skip
IN_GAPS = {
    "plain": BLACK, "laplace, full": RED, "laplace, kron": BLUE, "laplace, evidence": SKY, "variational": PURPLE,
    "dropout": ORANGE, "swag": YELLOW, "ensemble": GREEN,
}  # fmt: skip


def figures(units: Values, folder: Path) -> list[Path]:
    numbers = Numbers(units)
    made = [_against_plain(numbers, kind, folder) for kind in ("standard", "gap") if numbers.sets(kind)]
    return [*made, _gaps(numbers, folder)] if numbers.sets("gap") else made


def _against_plain(numbers: Numbers, kind: str, folder: Path) -> Path:
    return differences(
        numbers.sets(kind), lambda name, method: numbers.over(kind, name, method, "plain", "nll"), tuple(COLOURS),
        COLOURS, TITLES, "NLL − one network's (95% over splits)", folder / f"{kind}.png", size=(4.6, 3.0),
        margin=0.2 if kind == "gap" else None,
    )  # fmt: skip


def _gaps(numbers: Numbers, folder: Path) -> Path:
    """Coverage in the gap, and how much wider predictions are there than for training inputs."""
    figure, axes = subplots(1, 2, size=(5.2, 3.4), squeeze=False)
    sets = numbers.sets("gap")
    for axis, metric, label in zip(
        axes[0], ("coverage", "widening"),
        ("coverage of 95% intervals in the gap", "deviation in the gap / for training inputs"), strict=True,
    ):  # fmt: skip
        shown = [m for m in IN_GAPS if m in numbers.methods("gap")]
        for i, method in enumerate(shown):
            means = [fmean(numbers.each("gap", name, method, metric) or [0.0]) for name in sets]
            places = [x + 0.09 * (i - (len(shown) - 1) / 2) for x in range(len(sets))]
            axis.plot(places, means, "o", color=IN_GAPS[method], markersize=4, label=TITLES[method])
        axis.set_xticks(range(len(sets)), sets, rotation=30, fontsize=7)
        axis.set_ylabel(label, fontsize=8)
    axes[0][0].axhline(0.95, color=BLACK, linewidth=0.8, linestyle=":")
    axes[0][1].axhline(1.0, color=BLACK, linewidth=0.8, linestyle=":")
    axes[0][1].set_yscale("log")
    axes[0][1].yaxis.set_major_formatter("{x:g}")
    axes[0][1].yaxis.set_minor_formatter("{x:g}")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=7)
    return save(figure, folder / "gaps.png")
