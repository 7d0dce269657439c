"""NLL less that of one network."""

from __future__ import annotations

from pathlib import Path

from reproductions.linearised.classes.numbers import TITLES, Numbers
from reproductions.linearised.panels import differences
from reproductions.store import Values
from reproductions.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY, YELLOW

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
    return [
        differences(
            names, lambda name, method: numbers.over(name, method, "plain", "nll"), tuple(COLOURS), COLOURS, TITLES,
            "NLL − one network's (95% over splits)", folder / "classes.png", size=(4.2, 2.6), columns=4, margin=0.6,
        )
    ]  # fmt: skip
