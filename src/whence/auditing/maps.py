"""Pictures of weights, as numbers: pixel maps of a first layer on images, filters, matrices.

Index legend: O outputs, D inputs, C channels, k kernel positions, h and w of a tile.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from whence.auditing.context import Context
from whence.auditing.plain import number
from whence.curvature.blocks import Block
from whence.curvature.units import Units, units_of
from whence.where.table import Where
from whence.where.weights import identified_of

TILES = 16
CHANNELS = 16  # of a filter that are shown side by side
LARGEST = (48, 64)  # rows and columns of a matrix
LAYERS = 40
DIGITS = 3
KINDS = ("weight", "std", "identified")


def maps(context: Context) -> list[dict[str, Any]]:
    """One for each layer: weights, standard deviations and identified fractions in their places."""
    where = context.where("test")
    context.need_closed_forms("a weight map")
    blocks = context.where_posterior.blocks[:LAYERS]
    return [_layer(where, block, first=index == 0) for index, block in enumerate(blocks)]


def _layer(where: Where, block: Block, first: bool) -> dict[str, Any]:
    posterior = where.posterior
    variance = where.variances[block.name]
    flat = {
        "weight": block.gather(posterior.network.params).detach().double().cpu(),
        "std": variance.sqrt(),
        "identified": identified_of(posterior, block),
    }
    largest = max(block.params, key=lambda p: p.numel)
    values = {kind: block.scatter(vector)[largest.name] for kind, vector in flat.items()}
    units = units_of(posterior.network, block)
    found: dict[str, Any] = {"layer": block.name, "parameter": largest.name}
    pixels = _pixels(where.inputs, largest.shape) if first else None
    turned = block.form is not None and block.form.inputs_first
    if len(largest.shape) > 2 and math.prod(largest.shape[2:]) > 1:
        return found | _filters(values, units, _order(where, block), turned)
    if pixels is not None and units.kind != "head":
        return found | _tiles(
            "pixels",
            {k: v.reshape(len(v), pixels[0], pixels[1]) for k, v in values.items()},
            units,
            _order(where, block),
        )
    return found | _matrix({k: v.reshape(len(v), -1) if v.dim() > 1 else v.reshape(1, -1) for k, v in values.items()})


def _pixels(inputs: Any, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Height (channels one above the other) and width, if a row of the matrix sees an image."""
    seen = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()
    if len(shape) != 2 or len(seen) not in (2, 3) or math.prod(seen) != shape[1]:
        return None
    return math.prod(seen[:-1]), seen[-1]


def _order(where: Where, block: Block) -> list[int]:
    """Units, the largest share first."""
    share = torch.as_tensor(where.units(block.name)["variance_share"])
    return [int(u) for u in share.argsort(descending=True, stable=True)]


def _filters(values: dict[str, Tensor], units: Units, order: list[int], turned: bool) -> dict[str, Any]:
    """Channels of a filter side by side."""
    tiles = {}
    channels = 0
    for kind, value in values.items():
        value = value.transpose(0, 1) if turned else value
        value = value.unsqueeze(2) if value.dim() == 3 else value.flatten(2, -2)  # [O, C, h, w]
        channels = value.shape[1]
        some = value[:, :CHANNELS]
        gap = torch.full((*some.shape[:3], 1), math.nan, dtype=some.dtype)
        tiles[kind] = torch.cat([some, gap], -1).transpose(1, 2).flatten(2)[..., :-1]  # [O, h, C · (w + 1) − 1]
    found = _tiles("filters", tiles, units, [u for u in order if u < len(tiles["weight"])])
    if channels > CHANNELS:
        found["note"] += f"; the first {CHANNELS} of {channels} input channels, side by side"
    elif channels > 1:
        found["note"] += "; input channels side by side"
    return found


def _tiles(kind: str, values: dict[str, Tensor], units: Units, order: list[int]) -> dict[str, Any]:
    chosen = order[:TILES]
    total = len(values["weight"])
    height, width = values["weight"].shape[1:]
    note = f"{len(chosen)} of {total} {units.kind}s, those with the largest shares of the variance of test data"
    return {
        "kind": kind,
        "height": height,
        "width": width,
        "tiles": [
            {"label": f"{units.kind} {unit}", "unit": unit} | {k: _grid(v[unit]) for k, v in values.items()}
            for unit in chosen
        ],
        "note": note if len(chosen) < total else f"all {total} {units.kind}s, the largest share of the variance first",
    }


def _matrix(values: dict[str, Tensor]) -> dict[str, Any]:
    rows, columns = values["weight"].shape
    small = {k: _reduced(v, LARGEST) for k, v in values.items()}
    height, width = small["weight"].shape
    note = "" if (rows, columns) == (height, width) else f"{rows:,} × {columns:,} weights as means of neighbours"
    if "weight" in small and note:
        small["weight"] = _reduced(values["weight"].abs(), LARGEST)
        note += "; of the weights, means of their sizes"
    tile = {"label": "all units", "unit": None} | {k: _grid(v) for k, v in small.items()}
    return {"kind": "matrix", "height": height, "width": width, "tiles": [tile], "note": note}


def _reduced(matrix: Tensor, most: tuple[int, int]) -> Tensor:
    """Means of neighbours where it is larger."""
    size = min(matrix.shape[0], most[0]), min(matrix.shape[1], most[1])
    return torch.nn.functional.adaptive_avg_pool2d(matrix[None, None], size)[0, 0]


def _grid(values: Tensor) -> list[list[float | None]]:
    return [[number(v, DIGITS) for v in row] for row in values.tolist()]
