"""Figure 5, and what the network thinks of images of another kind, before and after."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproductions import style
from reproductions.ritter2018.mnist import DETERMINISTIC, DIAGONAL, KRONECKER, LINEARISED
from reproductions.ritter2018.wrn.measure import LEAST, doubts, unpacked
from reproductions.ritter2018.wrn.values import NETWORKS, measured, methods, networks, seeds
from reproductions.store import Values

SETS = {"cifar10": "CIFAR-10", "svhn-recropped": "SVHN"}
GROUPS = {"wrong": "-", "correct": "--"}


def figures(units: Values, folder: Path) -> list[Path]:
    found = [figure5(units, folder / "figure5.png"), overconfidence(units, folder / "overconfidence.png")]
    return found


def figure5(units: Values, path: Path) -> Path:
    """Inverse ECDF of the entropy for wrong and correct predictions; bands are the range over seeds."""
    present = networks(units)
    figure, axes = style.subplots(1, len(present), (4.4, 3.6), sharey=True, squeeze=False)
    for axis, network in zip(axes[0], present, strict=True):
        for method in methods(units, network):
            for group, line in GROUPS.items():
                curves = np.array(measured(units, network, method, "inside", f"curve_{group}"))
                grid = np.linspace(0, math.log(10), curves.shape[1])
                _band(axis, grid, curves, style.COLOURS[method], line, method if group == "wrong" else None)
        axis.set(title=NETWORKS[network], xlabel="entropy h, nats", xlim=(0, math.log(10)), ylim=(0, 1.02))
    axes[0, 0].set_ylabel("share of predictions with entropy ≥ h")
    _legend(figure, axes[0, 0], GROUPS)
    return style.save(figure, path)


def _legend(figure: Any, axis: Any, lines: dict[str, str]) -> None:
    """Below all panels: colours of methods as in ``axis``, then kinds of lines."""
    from matplotlib.lines import Line2D

    handles, labels = axis.get_legend_handles_labels()
    handles += [Line2D([], [], color="grey", linestyle=line) for line in lines.values()]
    figure.legend(handles, [*labels, *lines], loc="outside lower center", ncols=len(handles), fontsize=8)


def _band(axis: Any, x: NDArray[Any], curves: NDArray[Any], colour: str, line: str, label: str | None) -> None:
    axis.plot(x, curves.mean(0), color=colour, linestyle=line, label=label, linewidth=1.4)
    axis.fill_between(x, curves.min(0), curves.max(0), color=colour, alpha=0.15, linewidth=0)


def overconfidence(units: Values, path: Path) -> Path:
    """Share of images with at least some confidence; below them those that the network is most sure about."""
    present = networks(units)
    network = "plain" if "plain" in present else present[0]
    surest = units[f"{network}/{seeds(units, network)[0]}/surest"]
    count = len(surest["images"])
    figure = style.subplots(1, 1, (9.0, 5.4))[0]
    figure.clear()
    grid = figure.add_gridspec(2, 2, height_ratios=(1.9, 1), hspace=0.12)
    axes = [figure.add_subplot(grid[0, i]) for i in (0, 1)]
    for axis, part, title in zip(axes, ("inside", "outside"), ("trained on", "another kind"), strict=True):
        _confidence(axis, units, network, part)
        axis.set_title(f"{SETS.get(surest['sets'][part], surest['sets'][part])} ({title})")
    axes[0].set_ylabel("share of images")
    _legend(figure, axes[0], {})
    strip = grid[1, :].subgridspec(1, count)
    for i in range(count):
        _image(figure.add_subplot(strip[0, i]), surest, i)
    return style.save(figure, path)


def _confidence(axis: Any, units: Values, network: str, part: str) -> None:
    """Shares against confidence, with 0.9, 0.99 … evenly apart."""
    doubt = doubts().numpy()
    for method in methods(units, network):
        if method != DIAGONAL:
            curves = np.array(measured(units, network, method, part, "doubt"))
            _band(axis, doubt, curves, style.COLOURS[method], "-", method)
    axis.set(xscale="log", xlim=(1, LEAST), ylim=(0, 1.02), xlabel="confidence of at least")
    ticks = [0.5, 0.1, 1e-2, 1e-3, 1e-4]
    axis.set_xticks(ticks, [f"{1 - t:g}" for t in ticks])
    axis.minorticks_off()


def _image(axis: Any, surest: Values, i: int) -> None:
    pixels = unpacked(surest["images"][i], surest["shape"]).permute(1, 2, 0).numpy()
    axis.imshow(pixels if pixels.shape[2] == 3 else pixels[..., 0], cmap="gray")
    axis.set_axis_off()
    lines = [f"{surest['labels'][DETERMINISTIC][i]} {_percent(surest['confidence'][DETERMINISTIC][i])}"]
    for method, short in ((KRONECKER, "sampled"), (LINEARISED, "linearised")):
        changed = surest["labels"][method][i] != surest["labels"][DETERMINISTIC][i]
        name = f" {surest['labels'][method][i]}" if changed else ""
        lines.append(f"{short}{name} {_percent(surest['confidence'][method][i])}")
    axis.set_title("\n".join(lines), fontsize=7.5)


def _percent(value: float) -> str:
    """Never rounded up to certainty."""
    return f"{math.floor(value * 1000) / 10:.1f} %"
