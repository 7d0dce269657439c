"""Samples of each kind, of the first seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from reproductions.bayesian_cnn.gan.tables import NAMES
from reproductions.store import Values
from reproductions.style import save, subplots


def figures(units: Values, folder: Path) -> list[Path]:
    drawn = {label: units[f"{kind}/0"]["samples"] for kind, label in NAMES.items() if f"{kind}/0" in units}
    if not drawn:
        return []
    most = max(len(images) for images in drawn.values())
    figure, axes = subplots(len(drawn), 1, size=(0.55 * most + 0.6, 0.85), squeeze=False)
    for (axis,), (label, images) in zip(axes, drawn.items(), strict=True):
        axis.imshow(np.concatenate([np.asarray(image)[0] for image in images], 1), cmap="gray", vmin=0, vmax=255)
        axis.set_title(label, loc="left", fontsize=8)
        axis.axis("off")
    return [save(figure, folder / "samples.png")]
