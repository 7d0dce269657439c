"""The plane: what each network says, and how uncertain it is."""

from __future__ import annotations

from pathlib import Path

from reproductions.kniebel2020.separation.config import NETWORKS, SETS
from reproductions.kniebel2020.separation.run import INSIDE, REACH, VIEW, grid, unpacked
from reproductions.store import Values
from reproductions.style import BLACK, save, subplots

FINE = 201
STYLES = {"map": ("probability", "PuOr_r", BLACK), "epistemic": ("epistemic uncertainty", "cividis", "white")}


def figures(units: Values, folder: Path) -> list[Path]:
    maps = {tuple(name.split("/")[:2]): value for name, value in units.items() if "map" in value}
    figure, axes = subplots(len(SETS), 2 * len(NETWORKS), size=(1.75, 1.85), squeeze=False)
    extent = (-VIEW, VIEW, -VIEW, VIEW)
    shown = {key: {what: unpacked(value[what]) for what in STYLES} for key, value in maps.items()}
    most = max(max(map(max, value["epistemic"])) for value in shown.values())
    for row, which in enumerate(SETS):
        border = INSIDE[which](grid(FINE)).reshape(FINE, FINE).flip(0).numpy()
        for column, network in enumerate(NETWORKS):
            for shift, (what, (label, colours, line)) in enumerate(STYLES.items()):
                axis, top = axes[row][2 * column + shift], most if what == "epistemic" else 1.0
                axis.imshow(shown[which, network][what], extent=extent, interpolation="bilinear", cmap=colours,
                            vmin=0, vmax=top)  # fmt: skip
                axis.contour(border, levels=[0], extent=extent, colors=[line], linewidths=0.9)
                square = [-REACH, REACH, REACH, -REACH, -REACH], [-REACH, -REACH, REACH, REACH, -REACH]
                axis.plot(*square, ":", color=line, linewidth=0.8)
                axis.set_xticks([])
                axis.set_yticks([])
                if row == 0:
                    axis.set_title(f"{network}\n{label}", fontsize=8)
        axes[row][0].set_ylabel(which, fontsize=9)
    for shift, label in enumerate(("probability", "epistemic uncertainty (share of ln 2)")):
        bar = figure.colorbar(axes[0][shift].images[0], ax=axes, shrink=0.6, aspect=40, pad=0.01)
        bar.set_label(label, fontsize=8)
        bar.ax.tick_params(labelsize=7)
    return [save(figure, folder / "planes.png")]
