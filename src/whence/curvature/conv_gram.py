"""Σ a aᵀ of a convolution's input factor computed without patches where that is cheaper than im2col.

Two methods, chosen by :func:`without_patches`:

**Autocorrelation** (3 × 3 kernels, stride 1, padding 1). With kernel offsets i, j and a product summed over positions,
Σ_s x[s] x[s + Δ] depends on Δ = j − i only: 13 products of C × C instead of 81 (the others are their transposes).
Positions at which the window would lie outside the output are counted too often where i and j both point inwards;
edges and corners correct that. Rows and columns of A are (channel, offset y, offset x).

**Image rows** (other kernels, on a CPU). The input is unfolded along its width only: z at (example, output column x)
holds x[c, y, s x + d] for all y, c, d, so that Z = Σ z zᵀ has every pair of image rows. A sums those that share a
window, A[(c, i, d), (c', j, d')] = Σ_t Z[(s t + i, c, d), (s t + j, c', d')].

Index legend: N examples, C channels, H × W positions (with padding), k × l kernel, T × S output positions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.engine.memory import sizes
from whence.linalg import split
from whence.linalg.dense import SPLIT, add_upper_gram, mirrored
from whence.recording.patches import pad, padding_of, per_dimension
from whence.recording.rules import ConvRule

REACH = 2  # largest distance between two offsets of a 3 × 3 kernel
PLACES = 9  # positions in its window
PRODUCTS, PAIRS = 13, 81  # C × C products at each position: by autocorrelation, and with patches
AUTOCORRELATION_COST = 0.7  # autocorrelation is used below this share of the cost with patches, in products
COPY = 170  # cost of copying one number, in multiplications
IMAGE_ROWS_COST = 0.8  # image rows are used below this share of the cost with patches


def without_patches(rule: ConvRule, x: Tensor, bias: bool) -> list[Autocorrelation] | list[ImageRows]:
    """Objects that add Σ a aᵀ of this input more cheaply than patches do; empty if none does."""
    if type(rule) is not ConvRule or len(rule.kernel) != 2 or rule.pairs != 1 or x.dim() != 4:
        return []
    stride, dilation = (per_dimension(rule.options[key], 2) for key in ("stride", "dilation"))
    padding = padding_of(rule.options["padding"], rule.kernel, dilation)
    if dilation != (1, 1):
        return []
    plain = rule.kernel == (3, 3) and stride == (1, 1) and padding == [(1, 1), (1, 1)]
    if plain and autocorrelation_pays(x):
        return Autocorrelation(x, bias).pieces()
    if not x.is_cpu:
        return []
    padded = pad(x, padding)
    return [ImageRows(padded, rule.kernel, stride, bias)] if image_rows_pay(padded.shape, rule.kernel, stride) else []


def add_appended_one(out: Tensor, sums: Tensor, rows: int | Tensor) -> None:
    """Add the terms of the appended 1 to Σ a aᵀ [D + 1, D + 1]: Σ x, and the number of rows in the corner."""
    out[:-1, -1] += sums
    out[-1, :-1] += sums
    out[-1, -1] += rows


# By autocorrelation


@dataclass(frozen=True)
class Autocorrelation:
    """The input of a 3 × 3 convolution; used in place of patches [1, N, T, 9 C]."""

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
            add_appended_one(out[0], sums, self.rows)

    def squares(self) -> Tensor:
        """The diagonal of Σ a aᵀ, [1, D (+ 1)]."""
        inner = window_sums(self.x.square()).unsqueeze(0)
        return torch.cat([inner, inner.new_full((1, 1), self.rows)], 1) if self.bias else inner

    def pieces(self) -> list[Autocorrelation]:
        """Pieces with few enough examples that float32 sums stay exact."""
        if self.x.device.type != "cpu":
            return [self]
        frame = (self.x.shape[2] + REACH) * (self.x.shape[3] + REACH)
        return [Autocorrelation(some, self.bias) for some in self.x.split(max(1, sizes().rows // frame))]


def autocorrelation_pays(x: Tensor) -> bool:
    """Whether autocorrelation is cheaper than patches, whose Gram matrix may need only its upper half."""
    channels, height, width = x.shape[1:]
    if channels < 8:
        return False  # products with so few channels are no faster than one product of patches
    halved = x.device.type == "cpu" and PLACES * channels > SPLIT
    frames = PRODUCTS * (height + REACH) * (width + REACH) + 6 * (height + width)
    return frames < AUTOCORRELATION_COST * PAIRS * height * width * (0.55 if halved else 1.0)


def autocorrelation_gram(x: Tensor) -> Tensor:
    """Σ over examples and output positions of the products of all pairs of a window's entries, [C, 3, 3, C, 3, 3]."""
    channels = x.shape[1]
    moments = _moments(x.permute(0, 2, 3, 1)).flatten(1)  # [29, C · C]
    plain, mirrored = _assembly(x.device, x.dtype)
    swapped = moments.reshape(-1, channels, channels).mT.flatten(1)
    a = torch.addmm(plain @ moments, mirrored, swapped).reshape(3, 3, 3, 3, channels, channels)
    return a.permute(4, 0, 1, 5, 2, 3)  # from (i_y, i_x, j_y, j_x, c, c')


def window_sums(x: Tensor) -> Tensor:
    """Σ over examples and output positions of a window's entries, [9 C]."""
    frame = F.pad(x.sum(0, dtype=torch.float64), (1, 1, 1, 1))  # [C, H + 2, W + 2]
    lines = frame.unfold(1, x.shape[2], 1).sum(-1)  # [C, 3, W + 2]
    return lines.unfold(2, x.shape[3], 1).sum(-1).flatten().to(x.dtype)


def _moments(last: Tensor) -> Tensor:
    """Σ x[s] x[s + Δ]ᵀ of x [N, H, W, C]: 13 in the plane, 3 along each of 4 edges, 4 corners; [29, C, C]."""
    rows, columns = torch.stack([last[:, 0], last[:, -1]]), torch.stack([last[:, :, 0], last[:, :, -1]])
    if rows.shape == columns.shape:
        edges = _along_edges(torch.cat([rows, columns]))
    else:
        edges = torch.cat([_along_edges(rows), _along_edges(columns)])
    corners = torch.stack([rows[:, :, 0], rows[:, :, -1]], dim=1).flatten(0, 1)  # [4, N, C]
    return torch.cat([_plane(last), edges, corners.mT @ corners])


def _plane(last: Tensor) -> Tensor:
    """Σ x[s] x[s + Δ]ᵀ for Δ in the half plane: [13, C, C].

    Two zero rows and columns at the end of each frame turn a shift in the plane into a shift of the flat sequence.
    """
    size, height, width, channels = last.shape
    shifts = [y * (width + REACH) + x for y, x in _HALF]
    rows = size * (height + REACH) * (width + REACH)
    flat = last.new_zeros(rows + max(shifts), channels)
    flat[:rows].view(size, height + REACH, width + REACH, channels)[:, :height, :width] = last
    if split.shifted_pays(flat, channels):
        return split.shifted_products(flat, rows, shifts)
    return torch.stack([flat[:rows].mT @ flat[by : rows + by] for by in shifts])


def _along_edges(edges: Tensor) -> Tensor:
    """Σ x[s] x[s + Δ]ᵀ along edges [B, N, L, C], for Δ = 0, 1, 2: [B · 3, C, C]."""
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

    An offset of 2 misses the first row (column), an offset of 0 the last.
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


# By image rows


@dataclass(frozen=True)
class ImageRows:
    """The input of a convolution; used in place of patches [1, N, T S, C k l]."""

    x: Tensor  # [N, C, H, W]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    bias: bool

    @property
    def places(self) -> tuple[int, int]:
        """T and S."""
        return places(self.x.shape, self.kernel, self.stride)

    @property
    def rows(self) -> int:
        """Number of (example, position) pairs."""
        high, wide = self.places
        return len(self.x) * high * wide

    def add_gram(self, out: Tensor) -> None:
        """Add Σ a aᵀ to ``out`` [1, D (+ 1), D (+ 1)]."""
        inner, sums = self._moments()
        size = len(inner)
        out[0, :size, :size] += inner
        if self.bias:
            add_appended_one(out[0], sums, self.rows)

    def squares(self) -> Tensor:
        """The diagonal of Σ a aᵀ, [1, D (+ 1)]."""
        inner = self._moments()[0].diagonal().unsqueeze(0)
        return torch.cat([inner, inner.new_full((1, 1), self.rows)], 1) if self.bias else inner

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Σ a aᵀ without the 1, and Σ a: [C k l, C k l], [C k l]."""
        (_, channels, height, _), (k, across) = self.x.shape, self.kernel
        unfolded = self.x.unfold(3, across, self.stride[1]).permute(0, 3, 2, 1, 4)  # [N, S, H, C, l]
        each = unfolded[0].numel() * self.x.element_size()
        width = height * channels * across
        pairs, total = self.x.new_zeros(width, width), self.x.new_zeros(1, width)
        for some in unfolded.split(max(1, sizes().patches // max(each, 1))):
            flat = some.reshape(-1, width)
            add_upper_gram(flat, pairs)
            total += flat.new_ones(1, len(flat)) @ flat
        pairs = mirrored(pairs).view(height, channels * across, height, channels * across)
        total = total.view(height, channels, across)
        seen = [slice(i, i + self.stride[0] * (self.places[0] - 1) + 1, self.stride[0]) for i in range(k)]
        inner = self.x.new_empty(channels, k, across, channels, k, across)
        for i, j in itertools.product(range(k), repeat=2):
            block = pairs[seen[i], :, seen[j]].diagonal(dim1=0, dim2=2).sum(-1)  # [C l, C l]
            inner[:, i, :, :, j] = block.view(channels, across, channels, across)
        sums = torch.stack([total[rows].sum(0) for rows in seen], dim=1)  # [C, k, l]
        return inner.flatten(3).flatten(0, 2), sums.flatten()


def places(shape: torch.Size, kernel: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, int]:
    """Number of output rows and columns for a padded input."""
    high, wide = ((n - k) // s + 1 for n, k, s in zip(shape[2:], kernel, stride, strict=True))
    return high, wide


def image_rows_pay(shape: torch.Size, kernel: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether image rows are cheaper than patches of a padded input."""

    def cost(width: int) -> int:
        """Cost of copying a row and adding its outer product."""
        return width * (COPY + width)

    high, wide = places(shape, kernel, stride)
    patch, row = shape[1] * kernel[0] * kernel[1], shape[1] * shape[2] * kernel[1]
    return kernel[0] > 1 and wide * cost(row) < IMAGE_ROWS_COST * high * wide * cost(patch)
