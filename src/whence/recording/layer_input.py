"""The input of a matrix call: x with a 1 appended for the bias, which is not stored where it can be avoided.

Index legend: K root columns, E Kronecker pairs, N examples, T positions, D inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whence.linalg.dense import matmul


@dataclass(frozen=True)
class LayerInput:
    """a = (x, 1) at every position; ``weight`` and ``bias`` say which of the two are present."""

    x: Tensor  # [E, N, T, D]
    weight: bool = True
    bias: bool = False
    live: Tensor | None = None  # positions that count in sums, [N, T]; None for all

    @property
    def positions(self) -> int:
        return self.x.shape[2]

    @property
    def rows(self) -> int | Tensor:
        """Number of (example, position) pairs that count."""
        return self.x.shape[1] * self.x.shape[2] if self.live is None else self.live.sum()

    @property
    def rows_of_examples(self) -> int | Tensor:
        """Number of positions that count, for each example, [N, 1]."""
        return self.x.shape[2] if self.live is None else self.live.sum(1, keepdim=True)

    def take(self, which: slice) -> LayerInput:
        """Some examples."""
        return replace(self, x=self.x[:, which], live=None if self.live is None else self.live[which])

    def counted(self) -> Tensor:
        """x with zeros at positions that do not count."""
        return self.x if self.live is None else self.x * self.live.unsqueeze(-1).to(self.x.dtype)

    def dense(self) -> Tensor:
        """[E, N, T, D (+ 1)]."""
        ones = self.x.new_ones(*self.x.shape[:-1], 1)
        if not self.weight:
            return ones
        return torch.cat([self.x, ones], dim=-1) if self.bias else self.x

    def summed(self) -> Tensor:
        """Σ_t a, [E, N, D (+ 1)]."""
        total = self.counted().sum(2)
        count = total.new_ones((*total.shape[:-1], 1)) * self.rows_of_examples
        if not self.weight:
            return count
        return torch.cat([total, count], dim=-1) if self.bias else total

    def in_basis(self, basis: Tensor) -> Tensor:
        """a · basis for basis [E, D (+ 1), D (+ 1)], or its diagonal: [E, N, T, D (+ 1)]."""
        if basis.dim() == 2:  # a diagonal
            return self.dense().to(basis.dtype) * basis[:, None, None]
        if not self.weight:
            return basis.unsqueeze(1).expand(*self.x.shape[:3], -1)
        size = self.x.shape[-1]
        found = times(self.x.to(basis.dtype), basis[:, :size])
        return found + basis[:, size:].unsqueeze(1) if self.bias else found

    def outer(self, g: Tensor) -> Tensor:
        """Σ_t g aᵀ for g [K, E, N, T, O]: [K, N, E, O, D (+ 1)]."""
        parts = []
        if self.weight:
            parts.append(outer_sum(g, self.x))
        if self.bias:
            parts.append(g.sum(3).transpose(1, 2).unsqueeze(-1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def times(t: Tensor, basis: Tensor) -> Tensor:
    """t · basis for t [E, …, D] and basis [E, D, D'] as one product for each pair, or its diagonal [E, D]."""
    if basis.dim() == 2:
        return t * basis.reshape(len(basis), *(1,) * (t.dim() - 2), -1)
    return matmul(t.flatten(1, -2), basis).unflatten(1, t.shape[1:-1])


def outer_sum(g: Tensor, x: Tensor) -> Tensor:
    """Σ_t g xᵀ for g [K, E, N, T, O] and x [E, N, T, D]: [K, N, E, O, D]."""
    if x.shape[2] == 1:
        return (g.squeeze(3).unsqueeze(-1) * x.squeeze(2).unsqueeze(-2)).transpose(1, 2)
    columns, pairs, size, positions, outputs = g.shape
    side_by_side = g.permute(1, 2, 0, 4, 3)  # [E, N, K, O, T]
    mergeable = side_by_side.stride(2) == side_by_side.shape[3] * side_by_side.stride(3)  # K and O merge as a view
    if g.device.type == "cpu" and columns > 1 and not mergeable:
        return torch.stack([column.mT @ x for column in g]).transpose(1, 2)
    if mergeable or g.stride(3) == 1:
        merged = side_by_side.reshape(pairs * size, columns * outputs, positions)
    else:  # the copy keeps the order of memory
        merged = g.permute(1, 2, 3, 0, 4).reshape(pairs * size, positions, columns * outputs).mT
    found = matmul(merged, x.flatten(0, 1)).unflatten(0, (pairs, size))
    return found.unflatten(2, (columns, outputs)).permute(2, 1, 0, 3, 4)
