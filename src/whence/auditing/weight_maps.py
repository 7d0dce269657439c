"""Weight maps as numbers: pixel maps of a first layer on images, filters, matrices.

Index legend: O outputs, D inputs, C channels, k kernel positions, h and w of a tile.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from whence.auditing.context import Context
from whence.posteriors.laplace.posterior import Laplace
from whence.recording.blocks import Block
from whence.recording.units import UnitKind, Units, units_of
from whence.report.record.common import Grid
from whence.report.record.sections import Tile, WeightMap
from whence.where.pixels import channels_first, input_shape
from whence.where.weights import identified_of, std_of
from whence.where.where import Where

TILES = 16
CHANNELS = 16  # of a filter that are shown side by side
LARGEST = (64, 64)  # rows and columns of a matrix
LAYERS = 40
Values = dict[str, Tensor]  # weight, std and identified, in the shape of the parameter or as tiles


def weight_maps(context: Context) -> tuple[WeightMap, ...]:
    """One for each layer: weights, standard deviations and identified fractions at their positions."""
    where = context.where("test")
    posterior = context.profile_posterior.as_laplace("a weight map")
    return tuple(_map(where, posterior, block) for block in posterior.blocks[:LAYERS])


def _map(where: Where, posterior: Laplace, block: Block) -> WeightMap:
    flat = {
        "weight": block.gather(posterior.network.params).detach().double().cpu(),
        "std": std_of(posterior, block),
        "identified": identified_of(posterior, block),
    }
    largest = max(block.params, key=lambda p: p.numel)
    values = {kind: outputs_first(block.scatter(vector)[largest.name], block) for kind, vector in flat.items()}
    units = units_of(posterior.network, block)
    kind: Literal["pixels", "filters", "matrix"]
    shape = values["weight"].shape
    magnitudes = False
    if block.form is not None and len(shape) > 2 and math.prod(shape[2:]) > 1:
        kind, (tiles, note) = "filters", _filters(values, units, _by_share(where, block), block.form.pairs)
    elif (image := _image(where, posterior, block, largest.name, units)) is not None:
        kind, (tiles, note) = "pixels", _pixels(values, image, units, _by_share(where, block))
    else:
        kind, (tiles, note, magnitudes) = "matrix", _matrix(values, block)
    height, width = len(tiles[0].weight), len(tiles[0].weight[0])
    return WeightMap(block.name, largest.name, kind, height, width, note, tuple(tiles), magnitudes or None)


def outputs_first(value: Tensor, block: Block) -> Tensor:
    """A parameter as [O, D, …]: one that is stored by inputs [E · D, O / E, …] turned, group by group."""
    form = block.form
    if form is None or not form.inputs_first or value.dim() < 2:
        return value
    return value.unflatten(0, (form.pairs, -1)).transpose(1, 2).flatten(0, 1)


def _image(where: Where, posterior: Laplace, block: Block, parameter: str, units: Units) -> tuple[int, ...] | None:
    """The shape of an input where each row of the matrix reads its entries; None otherwise."""
    if block.form is None or block.form.inputs_first or units.kind is UnitKind.HEAD:
        return None
    return input_shape(posterior.network, parameter, where.inputs)


def _pixels(values: Values, image: tuple[int, ...], units: Units, order: list[int]) -> tuple[list[Tile], str]:
    """Each row in the shape of an input; channels one above the other, with a line between them."""
    pictures, channels = {}, 1
    for kind, value in values.items():
        shaped = channels_first(value, image)  # [O, C, h, w]
        channels = shaped.shape[1]
        line = torch.full((*shaped.shape[:2], 1, shaped.shape[3]), math.nan, dtype=shaped.dtype)
        pictures[kind] = torch.cat([shaped, line], 2).flatten(1, 2)[:, :-1]  # [O, C · (h + 1) − 1, w]
    tiles, note = _tiles(pictures, units, order)
    size = " × ".join(map(str, image))
    note += f"; in the shape of an input, {size}" + ", channels one above the other" * (channels > 1)
    return tiles, note


def _by_share(where: Where, block: Block) -> list[int]:
    """Units, the largest share first."""
    share = torch.as_tensor(where.units(block.name)["variance_share"])
    return [int(u) for u in share.argsort(descending=True, stable=True)]


def _filters(values: Values, units: Units, order: list[int], groups: int) -> tuple[list[Tile], str]:
    """Channels of a filter side by side."""
    pictures, channels, kernel = {}, 0, values["weight"].shape[2:]
    for kind, value in values.items():
        value = value.unsqueeze(2) if value.dim() == 3 else value.flatten(2, -2)  # [O, C, h, w]
        channels = value.shape[1]
        some = value[:, :CHANNELS]
        line = torch.full((*some.shape[:3], 1), math.nan, dtype=some.dtype)
        pictures[kind] = torch.cat([some, line], -1).transpose(1, 2).flatten(2)[..., :-1]  # [O, h, C · (w + 1) − 1]
    tiles, note = _tiles(pictures, units, order)
    note += f"; kernels of {' × '.join(map(str, kernel))}"
    note += ", depth from top to bottom" * (len(kernel) == 3)
    group = " of its group" * (groups > 1)
    if channels > CHANNELS:
        note += f"; the first {CHANNELS} of {channels} input channels{group}, side by side"
    elif channels > 1:
        note += f"; input channels{group} side by side"
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


def _matrix(values: Values, block: Block) -> tuple[list[Tile], str, bool]:
    """All weights; whether the values of the weights are magnitudes."""
    flat = {key: _as_matrix(value) for key, value in values.items()}
    rows, columns = flat["weight"].shape
    note = "rows are outputs, columns inputs" if block.form is not None and values["weight"].dim() > 1 else ""
    large = rows > LARGEST[0] or columns > LARGEST[1]
    if large:
        flat["weight"] = flat["weight"].abs()
        means = f"{rows:,} × {columns:,} weights as means of neighbours; weights as means of their magnitudes"
        note = f"{note}; {means}" if note else means
    return [Tile("all units", None, **{key: _grid(_reduced(value)) for key, value in flat.items()})], note, large


def _as_matrix(value: Tensor) -> Tensor:
    """A vector as one row; leading dimensions of one element are dropped, those after the first two joined."""
    while value.dim() > 2 and value.shape[0] == 1:
        value = value[0]
    return value.reshape(len(value), -1) if value.dim() > 1 else value.reshape(1, -1)


def _reduced(matrix: Tensor) -> Tensor:
    """Average neighbours if it is too large for the page."""
    size = min(matrix.shape[0], LARGEST[0]), min(matrix.shape[1], LARGEST[1])
    return torch.nn.functional.adaptive_avg_pool2d(matrix[None, None], size)[0, 0]


def _grid(values: Tensor) -> Grid:
    return tuple(map(tuple, values.tolist()))
