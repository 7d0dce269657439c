"""Curves: predictions, training, spectra, slices of the loss, pruning, attacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor

from whence.errors import BadOption, one_of
from whence.extras.pruning.curve import PruneCurve
from whence.extras.robustness import Robustness
from whence.extras.tracking.track import Track
from whence.metrics.calibration import Reliability
from whence.metrics.selective import RiskCoverage
from whence.posteriors.variational import History
from whence.report.figures import canvas
from whence.tables import Table
from whence.where.where import Where

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "osD^vP*"
POINTS = 5_000  # of a curve
STYLES = ("-", "--", "-.", ":")
STEPS = {"untargeted": "step size", "targeted": "updates"}


# Predictions


def reliability(reliability: Reliability, ece: float | None = None, ax: Axes | None = None) -> Figure:
    """Reliability diagram: accuracy against confidence with its intervals; below, the number of predictions."""
    figure, grid = canvas.panels(ax, 2, 1, (4.8, 4.8), sharex=True, height_ratios=(3, 1))
    (upper,), (lower,) = grid
    kept = canvas.numbers(reliability.count) > 0
    columns = ("confidence", "accuracy", "accuracy_low", "accuracy_high", "count", "low", "high")
    sure, right, least, greatest, count, low, high = (
        canvas.numbers(getattr(reliability, name))[kept] for name in columns
    )
    upper.plot([0, 1], [0, 1], "--", color=canvas.GREY, linewidth=1, label="perfectly calibrated")
    upper.vlines(sure, least, greatest, color=canvas.PALETTE[0], linewidth=1.3, label="interval of the accuracy")
    upper.plot(sure, right, "o", color=canvas.PALETTE[0], markersize=5, label="accuracy of a bin")
    lower.bar(
        low,
        count,
        np.maximum(high - low, 1e-3),
        align="edge",
        color=canvas.PALETTE[5],
        edgecolor="white",
        linewidth=0.6,
    )
    upper.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    upper.legend(
        frameon=False, fontsize=7.5, ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), columnspacing=1, borderpad=0
    )
    if ece is not None:
        upper.text(0.98, 0.04, f"ECE {ece if hasattr(ece, 'low') else f'{ece:.4f}'}", fontsize=9, ha="right")
    canvas.tidy(upper, y="accuracy", grid="both")
    canvas.tidy(lower, "confidence (predicted probability)", "predictions", grid="y")
    return figure


def entropies(values: Mapping[str, Tensor], ax: Axes | None = None) -> Axes:
    """The share of inputs whose predictive entropy is above each value (as in Ritter et al. 2018, figure 2)."""
    if not values:
        raise BadOption("entropies needs at least one set: {'test': prediction.entropy, …}.")
    ax = canvas.single(ax)
    for i, (name, colour) in enumerate(zip(values, canvas.layer_colours(len(values)), strict=True)):
        found = np.sort(canvas.numbers(values[name]).ravel())
        above = 1 - np.arange(1, len(found) + 1) / max(len(found), 1)
        points = np.stack([np.concatenate([[0.0], found]), np.concatenate([[1.0], above])], 1)
        points = np.concatenate([canvas.thinned(points[:-1], POINTS), points[-1:]])
        style = STYLES[i % len(STYLES)]
        ax.plot(*points.T, style, color=colour, drawstyle="steps-post", linewidth=1.6, label=f"{name} ({len(found):,})")
    ax.set_ylim(-0.02, 1.02)
    ax.set_xlim(left=0)
    canvas.tidy(ax, "predictive entropy (nats)", "share of inputs with a larger entropy", grid="both")
    ax.legend(frameon=False, fontsize=8)
    return ax


def risk_coverage(curves: Mapping[str, RiskCoverage], ax: Axes | None = None) -> Axes:
    """Error of the kept predictions, the most certain first."""
    if not curves:
        raise BadOption("risk_coverage needs at least one curve: {'laplace': metrics.risk_coverage(p, y), …}.")
    ax = canvas.single(ax)
    for i, (name, colour) in enumerate(zip(curves, canvas.layer_colours(len(curves)), strict=True)):
        points = np.stack([canvas.numbers(curves[name].coverage), canvas.numbers(curves[name].risk)], 1)
        points = np.concatenate([canvas.thinned(points[:-1], POINTS), points[-1:]])
        ax.plot(*points.T, STYLES[i % len(STYLES)], color=colour, linewidth=1.5, label=name)
    ax.set_xlim(0, 1.01)
    ax.set_ylim(bottom=-0.02 * ax.get_ylim()[1])
    canvas.tidy(ax, "coverage (share of predictions kept)", "risk (share of errors among the kept)", grid="both")
    ax.legend(frameon=False, fontsize=8)
    return ax


# Training and weights


def track(track: Track, ax: Axes | None = None) -> Figure:
    """Each layer during training, and the aleatoric and epistemic uncertainty on the probe."""
    if not any(record.layers for record in track.records):
        raise BadOption("the track has no record of a layer yet: call step() in the training loop.")
    table = track.layers
    names = canvas.ordered(table["name"])
    figure, grid = canvas.panels(ax, 2, 2, (7.0, canvas.grid_height(len(names), 4.6)), sharex=True)
    axes = [panel for line in grid for panel in line]
    for panel, column in zip(axes, ("std", "identified", "explained"), strict=False):
        for name, colour in zip(names, canvas.layer_colours(len(names)), strict=True):
            rows = [row for row in table.rows() if row["name"] == name]
            values = canvas.numbers([row.get(column) for row in rows])
            panel.plot([row["step"] for row in rows], values, color=colour, linewidth=1.3, label=canvas.short(name))
        canvas.tidy(panel, y="posterior std\nof the weights" if column == "std" else column, grid="y")
    canvas.log_axis(axes[0], "y")
    axes[0].tick_params(which="both", labelsize=8)
    _probe(axes[3], track)
    for panel in grid[1]:
        panel.set_xlabel("step", fontsize=9)
    canvas.legend(axes[0] if ax is None else axes[1], len(names), ax is None, "layer")
    return figure


def _probe(ax: Axes, track: Track) -> None:
    """Means over the probe; without quantities that the task does not have."""
    nats = any(record.entropy is not None for record in track.records)
    for name, colour, style in (("aleatoric", canvas.PALETTE[0], "-"), ("epistemic", canvas.PALETTE[3], "--")):
        pairs = [(r.step, getattr(r, name)) for r in track.records if getattr(r, name) is not None]
        if pairs:
            ax.plot(*zip(*pairs, strict=True), style, color=colour, linewidth=1.5, label=name)
            ax.legend(frameon=False, fontsize=8)
    canvas.tidy(ax, y="on the probe (nats)" if nats else "on the probe (variance)", grid="y")


def variational(history: History, ax: Axes | None = None) -> Figure:
    """A variational training: the bound, medians and 5–95% of μ and σ by layer, and uncertainties on the probe."""
    if not len(history):
        raise BadOption("the history has no epoch; pass posterior.history of a trained posterior.")
    table, epochs = history.layers, [row.epoch for row in history]
    names = canvas.ordered(table["name"])
    probed = [row for row in history if row.aleatoric is not None and row.epistemic is not None]
    figure, grid = canvas.panels(ax, 2, 2, (7.0, canvas.grid_height(len(names), 4.6)), sharex=True)
    axes = [panel for line in grid for panel in line]
    axes[0].plot(epochs, [-row.nll for row in history], "--", color=canvas.PALETTE[0], label="log likelihood")
    axes[0].plot(epochs, [row.elbo for row in history], color=canvas.PALETTE[0], label="ELBO")
    axes[0].legend(frameon=False, fontsize=8)
    canvas.tidy(axes[0], y="nats, all data", grid="y")
    for panel, column in zip(axes[1:3], ("mean", "std"), strict=True):
        for name, colour in zip(names, canvas.layer_colours(len(names)), strict=True):
            rows = [row for row in table.rows() if row["name"] == name]
            at, low, middle, high = (
                [row[k] for row in rows] for k in ("epoch", *(f"{column}_q{q}" for q in ("05", "50", "95")))
            )
            panel.plot(at, middle, color=colour, linewidth=1.3, label=canvas.short(name))
            panel.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
        canvas.tidy(panel, y="μ (median, 5–95%)" if column == "mean" else "σ (median, 5–95%)", grid="y")
    canvas.log_axis(axes[2], "y")
    if probed:
        for what, colour, style in (("aleatoric", canvas.PALETTE[0], "-"), ("epistemic", canvas.PALETTE[3], "--")):
            values = canvas.numbers([getattr(row, what) for row in probed])
            axes[3].plot([row.epoch for row in probed], values, style, color=colour, label=what)
        axes[3].legend(frameon=False, fontsize=8)
        canvas.tidy(axes[3], y="on the probe", grid="y")
    elif ax is None:
        axes[3].remove()
    for panel in axes[2:]:
        panel.set_xlabel("epoch", fontsize=9)
    canvas.legend(axes[1], len(names), ax is None, "layer")
    return figure


def spectrum(where: Where, ax: Axes | None = None) -> Axes:
    """Eigenvalues of the curvature of each layer; those above the prior precision are determined by the data.

    Eigenvalues of 0, and those far below the prior, are not shown.
    """
    fresh, table = ax is None, where.spectrum
    names = canvas.ordered(table["name"])
    ax = canvas.single(ax, (6.0, canvas.grid_height(len(names))))
    ranks, values = canvas.numbers(table["rank"]), canvas.numbers(table["curvature"])
    precisions = _precisions(where)
    for name, colour in zip(names, canvas.layer_colours(len(names)), strict=True):
        mine = np.array([other == name for other in table["name"]])
        ax.plot(ranks[mine], values[mine], color=colour, linewidth=1.5, label=canvas.short(name))
        if len(set(precisions.values())) > 1 and name in precisions:
            ax.axhline(precisions[name], color=colour, linewidth=0.9, linestyle=":")
    if len(set(precisions.values())) == 1:
        ax.axhline(next(iter(precisions.values())), color="black", linewidth=1, linestyle="--", label="prior precision")
    else:
        ax.plot([], [], ":", color=canvas.GREY, label="prior precision")
    ax.set(xscale="log", yscale="log")
    shown = values[values > 0]
    if len(shown):
        lowest = max(float(shown.min()), min(precisions.values()) * 1e-4)
        ax.set_ylim(min(lowest, min(precisions.values())) / 2, max(float(shown.max()), *precisions.values()) * 3)
    canvas.tidy(ax, "rank", "eigenvalue of the curvature (precision of a weight)", grid="y")
    canvas.legend(ax, len(names), fresh, "layer")
    return ax


def _precisions(where: Where) -> dict[str, float]:
    """Prior precision by layer."""
    posterior = where.posterior.as_laplace("the spectrum")
    return {block.name: posterior.prior.of([block]).delta for block in posterior.blocks}


def slices(table: Table, ax: Axes | None = None) -> Figure:
    """The true loss along each direction and the Gaussian's, both 0 at the trained weights; one row per layer.

    λ is the curvature of the direction. The axis ends at three times the Gaussian: a loss that leaves the panel is far
    from it.
    """
    names, kinds = canvas.ordered(table["name"]), canvas.ordered(table["direction"])
    size = (2.0 * len(kinds), max(2.6, 0.7 + 1.15 * len(names)))
    figure, grid = canvas.panels(ax, len(names), len(kinds), size, sharex=True)
    rows = list(table.rows())
    for name, line in zip(names, grid, strict=True):
        for kind, panel in zip(kinds, line, strict=True):
            mine = sorted((r for r in rows if (r["name"], r["direction"]) == (name, kind)), key=lambda r: r["step"])
            _slice(panel, mine)
            if mine:
                panel.set_title(f"{canvas.short(name)}, {kind} (λ = {mine[0]['curvature']:.2g})", fontsize=7.5, pad=3)
        line[0].set_ylabel("loss (nats)", fontsize=8)
    for panel in grid[-1]:
        panel.set_xlabel("posterior\nstandard deviations", fontsize=8)
    if ax is None:
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=8)
    else:
        grid[0][0].legend(frameon=False, fontsize=7)
    return figure


def _slice(ax: Axes, rows: list[dict[str, Any]]) -> None:
    steps = [row["step"] for row in rows]
    loss, gaussian = canvas.numbers([r["loss"] for r in rows]), canvas.numbers([r["gaussian"] for r in rows])
    ax.plot(steps, gaussian, "--", color=canvas.PALETTE[1], linewidth=1.6, label="Gaussian")
    ax.plot(steps, loss, "o-", color=canvas.PALETTE[0], linewidth=1.2, markersize=2.5, label="true loss")
    canvas.tidy(ax)
    ax.tick_params(labelsize=7)
    high = 3 * float(np.nanmax(gaussian, initial=0.0)) or 1.0
    seen = loss[np.isfinite(loss)]
    low, top = min(0.0, float(seen.min(initial=0.0))), float(seen.max(initial=0.0))
    high = min(high, max(top, high / 3))
    low = max(low, -high)
    ax.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))


def pruning(curve: PruneCurve, of: Literal["accuracy", "nll", "rmse"] = "accuracy", ax: Axes | None = None) -> Axes:
    """Score of a network against its sparsity, by criterion."""
    one_of(of, ("accuracy", "nll", "rmse"), "of")
    if of not in curve.columns:
        raise BadOption(f"this curve has no {of}; it has {', '.join(curve.columns)}.")
    ax = canvas.single(ax)
    names = canvas.ordered(row.by for row in curve.rows)
    for i, (name, colour) in enumerate(zip(names, canvas.layer_colours(len(names)), strict=True)):
        rows = sorted((row for row in curve.rows if row.by == name), key=lambda row: row.sparsity)
        style = {"color": colour, "marker": MARKERS[i % len(MARKERS)], "markersize": 4, "linewidth": 1.3}
        values = canvas.numbers([getattr(row, of) for row in rows])
        ax.plot([row.sparsity for row in rows], values, label=name, **style)  # type: ignore[arg-type]
    words = {"accuracy": "accuracy", "nll": "negative log likelihood (nats)", "rmse": "root mean squared error"}
    canvas.tidy(ax, "sparsity (share of prunable weights removed)", words[of], grid="y")
    ax.legend(frameon=False, fontsize=8, title="pruned by", title_fontsize=8)
    return ax


def robustness(tables: Robustness | Mapping[str, Robustness], ax: Axes | None = None) -> Figure:
    """Entropy, and accuracy (without labels: predictions kept), over steps; with a target also its share.

    Bands are one standard error to each side. Several tables, by name, must have the same attack.
    """
    given = {"": tables} if isinstance(tables, Robustness) else dict(tables)
    if not given or len({table.attack for table in given.values()}) != 1:
        raise BadOption(
            "robustness draws tables of one attack: {'Laplace': untargeted(…), 'MC dropout': untargeted(…)}."
        )
    attack = next(iter(given.values())).attack
    figure, ((left, right),) = canvas.panels(ax, 1, 2, (8.0, 3.4))
    share = "accuracy" if all("accuracy" in table.columns for table in given.values()) else "kept"
    for (name, table), colour in zip(given.items(), canvas.layer_colours(len(given)), strict=True):
        _attack_curve(left, table, "entropy", colour, "-", name)
        _attack_curve(right, table, share, colour, "-", name)
        if attack == "targeted":
            _attack_curve(right, table, "target", colour, "--")
    words = {"accuracy": "accuracy", "kept": "share of predictions kept"}[share]
    if attack == "targeted":
        target = next(iter(given.values())).target
        right.plot([], [], "-", color=canvas.GREY, label=words)
        right.plot([], [], "--", color=canvas.GREY, label=f"predicted as class {target}")
        words = "share of inputs"
    right.set_ylim(-0.02, 1.02)
    left.set_ylim(0, 1.1 * left.dataLim.ymax or 1.0)
    canvas.tidy(left, STEPS[attack], "predictive entropy (nats)", grid="both")
    canvas.tidy(right, STEPS[attack], words, grid="both")
    if right.get_legend_handles_labels()[1]:
        canvas.legend(right, len(given), ax is None)
    return figure


def _attack_curve(ax: Axes, table: Robustness, column: str, colour: str, style: str, label: str = "") -> None:
    steps = canvas.numbers([row.step for row in table.rows])
    values = canvas.numbers([getattr(row, column) for row in table.rows])
    errors = canvas.numbers([getattr(row, f"{column}_se") or 0.0 for row in table.rows])
    ax.plot(steps, values, style, color=colour, linewidth=1.5, label=label or None)
    ax.fill_between(steps, values - errors, values + errors, color=colour, alpha=0.2, linewidth=0)
