"""Pixels of the record as PNG data, ready for an ``img``."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

from whence.errors import need

LARGEST = 256  # pixels of a side that are kept


def data_uri(pixels: list[Any]) -> str:
    """Grey (h × w) or colour (h × w × 3) levels from 0 to 255."""
    image = need("PIL.Image", "report")
    levels = np.clip(np.asarray(pixels, dtype=float), 0, 255).astype(np.uint8)
    if levels.ndim == 3 and levels.shape[2] == 1:
        levels = levels[:, :, 0]
    step = max(1, -(-max(levels.shape[:2]) // LARGEST))
    store = io.BytesIO()
    image.fromarray(np.ascontiguousarray(levels[::step, ::step])).save(store, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(store.getvalue()).decode()
