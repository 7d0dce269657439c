"""Figures of single inputs: which of their parts an uncertainty comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import BadOption
from whence.report.figures import canvas
from whence.where.attribution import Attribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 20  # columns or tokens in one figure
WIDE = (7.0, 3.2)


def attribution(found: Attribution, index: int = 0, names: Any = None, ax: Axes | None = None) -> Axes:
    """One input: a map beside the image, or bars for the columns or tokens with the largest attributions."""
    count = len(found.values)
    if not -count <= index < count:
        raise BadOption(f"index={index} must be one of the {count} inputs: 0..{count - 1}.")
    values = found.map[index].detach().cpu().double().numpy()
    words = f"{found.of.value} uncertainty {float(found.uncertainty[index]):.3g}"
    if values.ndim == 1:
        ax = canvas.single(ax)
        _bars(ax, values, names)
        ax.set_title(f"input {index}: {words}", fontsize=canvas.TEXT)
        return ax
    if values.ndim != 2:
        raise BadOption(f"attributions {list(values.shape)} of one input have no figure; pass a slice of .map to one.")
    _, ((left, right),) = canvas.panels(ax, 1, 2, size=WIDE)
    _image(left, found.looked_at[index].detach().cpu().double().numpy())
    _map(right, values)
    left.set_title(f"input {index}", fontsize=canvas.TEXT)
    right.set_title(words, fontsize=canvas.TEXT)
    return right


def _bars(ax: Axes, values: np.ndarray, names: Any) -> None:
    """Columns or tokens in their order, without those of the smallest attributions."""
    chosen = np.sort(np.argsort(-np.abs(values))[:MOST])[::-1]
    labels = [canvas.short(str(i if names is None else names[i])) for i in chosen]
    colours = [canvas.PALETTE[3] if values[i] > 0 else canvas.PALETTE[0] for i in chosen]
    ax.barh(range(len(chosen)), values[chosen], color=colours)
    ax.set_yticks(range(len(chosen)), labels)
    ax.axvline(0, color=canvas.GREY, linewidth=0.8)
    canvas.tidy(ax, "attribution (orange: more uncertain)", grid="x")


def _image(ax: Axes, image: np.ndarray) -> None:
    """In grey, or in colour, from its smallest to its largest value."""
    shown = image if image.ndim == 2 else image.mean(0) if len(image) != 3 else image.transpose(1, 2, 0)
    low, high = float(shown.min()), float(shown.max())
    ax.imshow((shown - low) / ((high - low) or 1.0), cmap="gray")
    ax.set_axis_off()


def _map(ax: Axes, values: np.ndarray) -> None:
    """Colour by sign; the scale ends at the 99.5th percentile of the absolute values."""
    limit = float(np.quantile(np.abs(values), 0.995)) or 1.0
    drawn = ax.imshow(values, cmap=canvas.SIGNED + "_r", vmin=-limit, vmax=limit)
    canvas.colour_bar(ax, drawn, "attribution (orange: more uncertain)")
    ax.set_xticks([])
    ax.set_yticks([])
