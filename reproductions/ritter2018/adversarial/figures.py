"""The paper's figures 3, 4, 6 and 7."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproductions.ritter2018.adversarial.config import PLAIN
from reproductions.ritter2018.adversarial.curves import curve, names, plain_methods, steps
from reproductions.ritter2018.mnist import DETERMINISTIC, KRONECKER, METHODS
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, COLOURS, ORANGE, SKY, save, subplots

VARIANTS = (BLUE, ORANGE, SKY, BLACK)
LABELS = {
    "entropy": "mean entropy [nats]",
    "accuracy": "accuracy, original class",
    "target": "predicted as the target",
}


def figures(units: Values, folder: Path) -> list[Path]:
    own = {name: COLOURS[name] for name in METHODS if name in names(units)}
    variants = [name for name in names(units) if "(" in name]
    compared = dict(zip([KRONECKER, *variants], VARIANTS, strict=True))
    return [
        _drawn(units, folder / "figure3.png", "untargeted", own),
        _drawn(units, folder / "figure4.png", "targeted", own),
        _drawn(units, folder / "figure6.png", "untargeted", compared),
        _drawn(units, folder / "figure7.png", "targeted", compared),
    ]


def _drawn(units: Values, path: Path, attack: str, colours: dict[str, str]) -> Path:
    columns = ("entropy", "accuracy") if attack == "untargeted" else ("entropy", "accuracy", "target")
    figure, axes = subplots(1, len(columns))
    for ax, column in zip(axes, columns, strict=True):
        for name, colour in colours.items():
            over = name == KRONECKER and DETERMINISTIC not in colours  # it lies on one of its variants
            _line(ax, steps(units, attack), curve(units, attack, name, column), _label(name), colour, over)
        if attack == "untargeted" and DETERMINISTIC in colours:
            for name in plain_methods(units):
                mean = [sum(c) / len(c) for c in zip(*curve(units, PLAIN, name, column), strict=True)]
                ax.plot(steps(units, attack), mean, color=colours[name], linestyle=":", linewidth=1.2)
        ax.set_xlabel("step size, in a pixel's range" if attack == "untargeted" else "updates")
        ax.set_ylabel(LABELS[column])
        ax.set_ylim(0, 2.35 if column == "entropy" else 1.02)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return save(figure, path)


def _label(name: str) -> str:
    if "(" in name:
        return name.partition("(")[2].rstrip(")")
    return name


def _line(ax: Any, x: Sequence[float], each: Sequence[Sequence[float]], label: str, colour: str, over: bool) -> None:
    """Mean over seeds, and their range as a band; dashed above the others if it lies ``over`` one of them."""
    columns = list(zip(*each, strict=True))
    shown = {"linestyle": (0, (4, 4)), "zorder": 3} if over else {}
    ax.plot(x, [sum(c) / len(c) for c in columns], color=colour, label=label, linewidth=1.6, **shown)
    ax.fill_between(x, [min(c) for c in columns], [max(c) for c in columns], color=colour, alpha=0.15, linewidth=0)
