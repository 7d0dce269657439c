"""Pictures of predictions: calibration, entropies, risk against coverage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from whence.errors import BadOption
from whence.metrics.calibration import Reliability
from whence.metrics.selective import RiskCoverage
from whence.report.figures.canvas import GREY, PALETTE, layer_colours, numbers, panels, single, thinned, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 5_000  # of a curve
STYLES = ("-", "--", "-.", ":")


def reliability(reliability: Reliability, ece: float | None = None, ax: Axes | None = None) -> Figure:
    """How often predictions are right, by how sure they are, with Wilson intervals; below, how many there are."""
    figure, grid = panels(ax, 2, 1, (4.8, 4.8), sharex=True, height_ratios=(3, 1))
    (upper,), (lower,) = grid
    kept = numbers(reliability.count) > 0
    columns = ("confidence", "accuracy", "accuracy_low", "accuracy_high", "count", "low", "high")
    sure, right, least, greatest, count, low, high = (numbers(getattr(reliability, name))[kept] for name in columns)
    upper.plot([0, 1], [0, 1], "--", color=GREY, linewidth=1, label="perfectly calibrated")
    upper.vlines(sure, least, greatest, color=PALETTE[0], linewidth=1.3, label="Wilson interval")
    upper.plot(sure, right, "o", color=PALETTE[0], markersize=5, label="accuracy of a bin")
    lower.bar(
        low, count, np.maximum(high - low, 1e-3), align="edge", color=PALETTE[5], edgecolor="white", linewidth=0.6
    )
    upper.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    upper.legend(
        frameon=False, fontsize=7.5, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), columnspacing=1, borderpad=0
    )
    if ece is not None:
        upper.text(0.98, 0.04, f"ECE {ece if hasattr(ece, 'low') else f'{ece:.4f}'}", fontsize=9, ha="right")
    tidy(upper, y="accuracy (share that is right)", grid="both")
    tidy(lower, "confidence (predicted probability)", "predictions", grid="y")
    return figure


def entropies(values: Mapping[str, Tensor], ax: Axes | None = None) -> Axes:
    """The share of inputs whose predictive entropy is above each value (as in Ritter et al. 2018, figure 2)."""
    if not values:
        raise BadOption("entropies needs at least one set: {'test': prediction.entropy, …}.")
    ax = single(ax)
    for i, (name, colour) in enumerate(zip(values, layer_colours(len(values)), strict=True)):
        found = np.sort(numbers(values[name]).ravel())
        above = 1 - np.arange(1, len(found) + 1) / max(len(found), 1)
        points = np.stack([np.concatenate([[0.0], found]), np.concatenate([[1.0], above])], 1)
        points = np.concatenate([thinned(points[:-1], POINTS), points[-1:]])
        style = STYLES[i % len(STYLES)]
        ax.plot(*points.T, style, color=colour, drawstyle="steps-post", linewidth=1.6, label=f"{name} ({len(found):,})")
    ax.set_ylim(-0.02, 1.02)
    ax.set_xlim(left=0)
    tidy(ax, "predictive entropy (nats)", "share of inputs with a larger entropy", grid="both")
    ax.legend(frameon=False, fontsize=8)
    return ax


def risk_coverage(curves: Mapping[str, RiskCoverage], ax: Axes | None = None) -> Axes:
    """Error among the predictions that are kept, the most certain first."""
    if not curves:
        raise BadOption("risk_coverage needs at least one curve: {'laplace': metrics.risk_coverage(p, y), …}.")
    ax = single(ax)
    for i, (name, colour) in enumerate(zip(curves, layer_colours(len(curves)), strict=True)):
        points = np.stack([numbers(curves[name].coverage), numbers(curves[name].risk)], 1)
        points = np.concatenate([thinned(points[:-1], POINTS), points[-1:]])
        ax.plot(*points.T, STYLES[i % len(STYLES)], color=colour, linewidth=1.5, label=name)
    ax.set_xlim(0, 1.01)
    ax.set_ylim(bottom=-0.02 * ax.get_ylim()[1])
    tidy(ax, "coverage (share of predictions that is kept)", "risk (share of errors among the kept)", grid="both")
    ax.legend(frameon=False, fontsize=8)
    return ax
