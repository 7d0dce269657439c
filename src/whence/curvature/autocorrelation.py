"""A = Σ a aᵀ of a 3 × 3 convolution from the spatial autocorrelation of its input, without patches.

Stride 1, padding 1. With kernel offsets i, j and a product summed over all places, Σ_s x[s] x[s + Δ] depends on
Δ = j − i only: 13 products of C × C instead of 81 (the others are their transposes). Places at which the window
would stand outside the output are counted too much where i and j both look inwards; edges and corners correct that.

Index legend: N examples, C channels, H × W places; rows and columns of A are (channel, offset y, offset x).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.curvature.affine import add_the_one
from whence.linalg import split

REACH = 2  # the largest distance of two offsets
PLACES = 9  # of a window
PRODUCTS, PAIRS = 13, 81  # products of C × C at each place: here, and with patches
ROWS = 32768  # places in one product on the CPU: longer float32 sums lose digits
WORTH = 0.7  # of the other way's cost, counted in products


@dataclass(frozen=True)
class Windows:
    """What the output places of such a convolution see, by example; stands in for patches [1, N, T, 9 C]."""

    x: Tensor  # [N, C, H, W]
    bias: bool

    @property
    def rows(self) -> int:
        """Number of (example, position) pairs."""
        return self.x.shape[0] * self.x.shape[2] * self.x.shape[3]

    def add_gram(self, out: Tensor) -> None:
        """Add Σ a aᵀ to ``out`` [1, D (+ 1), D (+ 1)]."""
        channels = self.x.shape[1]
        inner = autocorrelation_gram(self.x)  # [C, 3, 3, C, 3, 3]
        sums = window_sums(self.x) if self.bias else None
        size = PLACES * channels
        whole = out[0, :size, :size].unflatten(0, inner.shape[:3]).unflatten(-1, inner.shape[3:])
        whole += inner
        if sums is not None:
            add_the_one(out[0], sums, self.rows)

    def squares(self) -> Tensor:
        """The diagonal of Σ a aᵀ, [1, D (+ 1)]."""
        inner = window_sums(self.x.square()).unsqueeze(0)
        return torch.cat([inner, inner.new_full((1, 1), self.rows)], 1) if self.bias else inner

    def pieces(self) -> list[Windows]:
        """Few enough examples at a time that sums stay exact."""
        if self.x.device.type != "cpu":
            return [self]
        frame = (self.x.shape[2] + REACH) * (self.x.shape[3] + REACH)
        return [Windows(some, self.bias) for some in self.x.split(max(1, ROWS // frame))]


def pays(channels: int, height: int, width: int, halved: bool) -> bool:
    """Whether this is cheaper than patches, whose Gram matrix may be computed by its upper half."""
    if channels < 8:
        return False  # products this thin are no faster than one of patches
    frames = PRODUCTS * (height + REACH) * (width + REACH) + 6 * (height + width)
    return frames < WORTH * PAIRS * height * width * (0.55 if halved else 1.0)


def autocorrelation_gram(x: Tensor) -> Tensor:
    """Σ over examples and output places of the products of all pairs of a window's entries, [C, 3, 3, C, 3, 3]."""
    channels = x.shape[1]
    moments = _moments(x.permute(0, 2, 3, 1)).flatten(1)  # [29, C · C]
    plain, mirrored = _assembly(x.device, x.dtype)
    swapped = moments.reshape(-1, channels, channels).mT.flatten(1)
    a = torch.addmm(plain @ moments, mirrored, swapped).reshape(3, 3, 3, 3, channels, channels)
    return a.permute(4, 0, 1, 5, 2, 3)  # from (i_y, i_x, j_y, j_x, c, c')


def window_sums(x: Tensor) -> Tensor:
    """Σ over examples and output places of a window's entries, [9 C]."""
    frame = F.pad(x.sum(0, dtype=torch.float64), (1, 1, 1, 1))  # [C, H + 2, W + 2]
    lines = frame.unfold(1, x.shape[2], 1).sum(-1)  # [C, 3, W + 2]
    return lines.unfold(2, x.shape[3], 1).sum(-1).flatten().to(x.dtype)


def _moments(last: Tensor) -> Tensor:
    """Σ x[s] x[s + Δ]ᵀ of x [N, H, W, C]: 13 in the plane, 3 along each of 4 edges, 4 corners; [29, C, C]."""
    rows, columns = torch.stack([last[:, 0], last[:, -1]]), torch.stack([last[:, :, 0], last[:, :, -1]])
    if rows.shape == columns.shape:
        edges = _lines(torch.cat([rows, columns]))
    else:
        edges = torch.cat([_lines(rows), _lines(columns)])
    corners = torch.stack([rows[:, :, 0], rows[:, :, -1]], dim=1).flatten(0, 1)  # [4, N, C]
    return torch.cat([_plane(last), edges, corners.mT @ corners])


def _plane(last: Tensor) -> Tensor:
    """For Δ in the half plane: [13, C, C].

    Two zero rows and columns at the end of each frame make a shift in the plane a shift of the flat sequence of places.
    """
    size, height, width, channels = last.shape
    shifts = [y * (width + REACH) + x for y, x in _HALF]
    rows = size * (height + REACH) * (width + REACH)
    flat = last.new_zeros(rows + max(shifts), channels)
    flat[:rows].view(size, height + REACH, width + REACH, channels)[:, :height, :width] = last
    if split.shifted_pays(flat, channels):
        return split.shifted_products(flat, rows, shifts)
    return torch.stack([flat[:rows].mT @ flat[by : rows + by] for by in shifts])


def _lines(edges: Tensor) -> Tensor:
    """Along edges [B, N, L, C], for Δ = 0, 1, 2: [B · 3, C, C]."""
    count, size, length, channels = edges.shape
    padded = edges.new_zeros(count, size, length + REACH, channels)
    padded[:, :, :length] = edges
    flat = padded.flatten(1, 2)
    found = [flat[:, : flat.shape[1] - by].mT @ flat[:, by:] for by in range(REACH + 1)]
    return torch.stack(found, dim=1).flatten(0, 1)


_EDGE = {2: 0, 0: 1}  # which of the two outermost rows (columns) an offset does not reach everywhere
_HALF = [(0, 0), (0, 1), (0, 2)] + [(y, x) for y in (1, 2) for x in (-2, -1, 0, 1, 2)]


@cache
def _assembly(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A as a combination of the moments and of their transposes: [81, 29] each, rows in the order (i_y, i_x, j_y, j_x).

    An offset of 2 looks past the first row (column), one of 0 past the last.
    """
    plain, mirrored = torch.zeros(81, 29), torch.zeros(81, 29)

    def put(pair: int, base: int, shifts: list[Any], apart: Any, opposite: Any, sign: int) -> None:
        if apart in shifts:
            plain[pair, base + shifts.index(apart)] += sign
        else:
            mirrored[pair, base + shifts.index(opposite)] += sign

    for pair, (iy, ix, jy, jx) in enumerate(itertools.product(range(3), repeat=4)):
        y, x = jy - iy, jx - ix
        put(pair, 0, _HALF, (y, x), (-y, -x), 1)
        if iy == jy and iy in _EDGE:
            put(pair, 13 + 3 * _EDGE[iy], [0, 1, 2], x, -x, -1)
        if ix == jx and ix in _EDGE:
            put(pair, 19 + 3 * _EDGE[ix], [0, 1, 2], y, -y, -1)
        if iy == jy and ix == jx and iy in _EDGE and ix in _EDGE:
            plain[pair, 25 + 2 * _EDGE[iy] + _EDGE[ix]] += 1
    return plain.to(device, dtype), mirrored.to(device, dtype)
