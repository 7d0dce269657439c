"""A = Σ a aᵀ of a convolution on the CPU from lines of its input, where that copies less than patches.

The input is unfolded along its width only: z at (example, output column x) holds x[c, y, s x + d] for all y, c, d, so
that Z = Σ z zᵀ has every pair of lines. A adds up those that windows see together,
A[(c, i, d), (c', j, d')] = Σ_t Z[(s t + i, c, d), (s t + j, c', d')].

Index legend: N examples, C channels, H × W places with their padding, k × l kernel, T × S output places.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.curvature.affine import add_the_one
from whence.linalg.dense import add_upper_gram, mirrored

PIECE = 16 * 2**20  # bytes of lines that are made at a time
COPY = 170  # a number that is copied, in multiplications
WORTH = 0.8  # of the other way's cost


@dataclass(frozen=True)
class Lines:
    """What the output places of such a convolution see, by example; stands in for patches [1, N, T S, C k l]."""

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
            add_the_one(out[0], sums, self.rows)

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
        for some in unfolded.split(max(1, PIECE // max(each, 1))):
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
        sums = torch.stack([total[lines].sum(0) for lines in seen], dim=1)  # [C, k, l]
        return inner.flatten(3).flatten(0, 2), sums.flatten()


def places(shape: torch.Size, kernel: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, int]:
    """Output places of a padded input, down and across."""
    high, wide = ((n - k) // s + 1 for n, k, s in zip(shape[2:], kernel, stride, strict=True))
    return high, wide


def lines_pay(shape: torch.Size, kernel: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether this is cheaper than patches of a padded input."""
    high, wide = places(shape, kernel, stride)
    patch, line = shape[1] * kernel[0] * kernel[1], shape[1] * shape[2] * kernel[1]
    return kernel[0] > 1 and wide * _cost(line) < WORTH * high * wide * _cost(patch)


def _cost(width: int) -> int:
    """Of copying a row and adding its outer product."""
    return width * (COPY + width)
