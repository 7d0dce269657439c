"""How predictions stand an attack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from whence.errors import BadOption
from whence.report.figures.canvas import GREY, layer_colours, legend, numbers, panels, tidy
from whence.robustness.table import Robustness

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORDS = {"untargeted": "step size", "targeted": "updates"}


def robustness(tables: Robustness | Mapping[str, Robustness], ax: Axes | None = None) -> Figure:
    """Entropy, and accuracy (without labels: predictions kept), over steps; with a target also its share.

    Bands are one standard error to each side. Several tables, by name, must be of the same attack.
    """
    given = {"": tables} if isinstance(tables, Robustness) else dict(tables)
    if not given or len({table.attack for table in given.values()}) != 1:
        raise BadOption(
            "robustness draws tables of one attack: {'Laplace': untargeted(…), 'MC dropout': untargeted(…)}."
        )
    attack = next(iter(given.values())).attack
    figure, ((left, right),) = panels(ax, 1, 2, (8.0, 3.4))
    share = "accuracy" if all("accuracy" in table.columns for table in given.values()) else "kept"
    for (name, table), colour in zip(given.items(), layer_colours(len(given)), strict=True):
        _curve(left, table, "entropy", colour, "-", name)
        _curve(right, table, share, colour, "-", name)
        if attack == "targeted":
            _curve(right, table, "target", colour, "--")
    words = {"accuracy": "accuracy", "kept": "share of predictions kept"}[share]
    if attack == "targeted":
        target = next(iter(given.values())).target
        right.plot([], [], "-", color=GREY, label=words)
        right.plot([], [], "--", color=GREY, label=f"predicted as class {target}")
        words = "share of inputs"
    right.set_ylim(-0.02, 1.02)
    left.set_ylim(0, 1.1 * left.dataLim.ymax or 1.0)
    tidy(left, WORDS[attack], "predictive entropy (nats)", grid="both")
    tidy(right, WORDS[attack], words, grid="both")
    if right.get_legend_handles_labels()[1]:
        legend(right, len(given), ax is None)
    return figure


def _curve(ax: Axes, table: Robustness, column: str, colour: str, style: str, label: str = "") -> None:
    steps = numbers([row.step for row in table.rows])
    values = numbers([getattr(row, column) for row in table.rows])
    errors = numbers([getattr(row, f"{column}_se") or 0.0 for row in table.rows])
    ax.plot(steps, values, style, color=colour, linewidth=1.5, label=label or None)
    ax.fill_between(steps, values - errors, values + errors, color=colour, alpha=0.2, linewidth=0)
