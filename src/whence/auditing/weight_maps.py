"""Weight maps as numbers: pixel maps of a first layer on images, filters, matrices.

Index legend: O outputs, D inputs, C channels, k kernel positions, h and w of a tile.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from whence.auditing.context import Context
from whence.engine.batches import Inputs
from whence.posteriors.laplace.posterior import Laplace
from whence.recording.blocks import Block
from whence.recording.units import UnitKind, Units, units_of
from whence.report.record.common import Grid
from whence.report.record.sections import Tile, WeightMap
from whence.where.weights import identified_of
from whence.where.where import Where

TILES = 16
CHANNELS = 16  # of a filter that are shown side by side
LARGEST = (48, 64)  # rows and columns of a matrix
LAYERS = 40
Values = dict[str, Tensor]  # weight, std and identified, in the shape of the parameter or as tiles


def weight_maps(context: Context) -> tuple[WeightMap, ...]:
    """One for each layer: weights, standard deviations and identified fractions at their positions."""
    where = context.where("test")
    posterior = context.profile_posterior.as_laplace("a weight map")
    return tuple(_map(where, posterior, block, first=i == 0) for i, block in enumerate(posterior.blocks[:LAYERS]))


def _map(where: Where, posterior: Laplace, block: Block, first: bool) -> WeightMap:
    flat = {
        "weight": block.gather(posterior.network.params).detach().double().cpu(),
        "std": where.variances[block.name].sqrt(),
        "identified": identified_of(posterior, block),
    }
    largest = max(block.params, key=lambda p: p.numel)
    values = {kind: block.scatter(vector)[largest.name] for kind, vector in flat.items()}
    units = units_of(posterior.network, block)
    kind: Literal["pixels", "filters", "matrix"]
    image = _image_shape(where.inputs, largest.shape) if first and units.kind is not UnitKind.HEAD else None
    if len(largest.shape) > 2 and math.prod(largest.shape[2:]) > 1:
        inputs_first = block.form is not None and block.form.inputs_first
        kind, (tiles, note) = "filters", _filters(values, units, _by_share(where, block), inputs_first)
    elif image is not None:
        shaped = {key: value.reshape(len(value), *image) for key, value in values.items()}
        kind, (tiles, note) = "pixels", _tiles(shaped, units, _by_share(where, block))
    else:
        flat = {key: value.reshape(len(value), -1) if value.dim() > 1 else value[None] for key, value in values.items()}
        kind, (tiles, note) = "matrix", _matrix(flat)
    height, width = len(tiles[0].weight), len(tiles[0].weight[0])
    return WeightMap(block.name, largest.name, kind, height, width, note, tuple(tiles))


def _image_shape(inputs: Inputs, shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Height (channels one above the other) and width, if a row of the matrix reads an image."""
    seen = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()
    if len(shape) != 2 or len(seen) not in (2, 3) or math.prod(seen) != shape[1]:
        return None
    return math.prod(seen[:-1]), seen[-1]


def _by_share(where: Where, block: Block) -> list[int]:
    """Units, the largest share first."""
    share = torch.as_tensor(where.units(block.name)["variance_share"])
    return [int(u) for u in share.argsort(descending=True, stable=True)]


def _filters(values: Values, units: Units, order: list[int], inputs_first: bool) -> tuple[list[Tile], str]:
    """Channels of a filter side by side."""
    pictures, channels = {}, 0
    for kind, value in values.items():
        value = value.transpose(0, 1) if inputs_first else value
        value = value.unsqueeze(2) if value.dim() == 3 else value.flatten(2, -2)  # [O, C, h, w]
        channels = value.shape[1]
        some = value[:, :CHANNELS]
        line = torch.full((*some.shape[:3], 1), math.nan, dtype=some.dtype)
        pictures[kind] = torch.cat([some, line], -1).transpose(1, 2).flatten(2)[..., :-1]  # [O, h, C · (w + 1) − 1]
    tiles, note = _tiles(pictures, units, [u for u in order if u < len(pictures["weight"])])
    if channels > CHANNELS:
        note += f"; the first {CHANNELS} of {channels} input channels, side by side"
    elif channels > 1:
        note += "; input channels side by side"
    return tiles, note


def _tiles(values: Values, units: Units, order: list[int]) -> tuple[list[Tile], str]:
    total, chosen = len(values["weight"]), order[:TILES]
    tiles = [
        Tile(f"{units.kind} {unit}", unit, **{key: _grid(value[unit]) for key, value in values.items()})
        for unit in chosen
    ]
    if len(chosen) == total:
        return tiles, f"all {total} {units.kind}s, the largest share of the variance first"
    return tiles, f"{len(chosen)} of {total} {units.kind}s, those with the largest shares of the variance of test data"


def _matrix(values: Values) -> tuple[list[Tile], str]:
    rows, columns = values["weight"].shape
    note = ""
    if rows > LARGEST[0] or columns > LARGEST[1]:
        values = {**values, "weight": values["weight"].abs()}
        note = f"{rows:,} × {columns:,} weights as means of neighbours; weights as means of their magnitudes"
    return [Tile("all units", None, **{key: _grid(_reduced(value)) for key, value in values.items()})], note


def _reduced(matrix: Tensor) -> Tensor:
    """Average neighbours if it is too large for the page."""
    size = min(matrix.shape[0], LARGEST[0]), min(matrix.shape[1], LARGEST[1])
    return torch.nn.functional.adaptive_avg_pool2d(matrix[None, None], size)[0, 0]


def _grid(values: Tensor) -> Grid:
    return tuple(map(tuple, values.tolist()))
