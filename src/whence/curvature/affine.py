"""The input of a matrix call with its 1 appended, without writing the ones down where they can be spared.

Index legend: K root columns, E Kronecker pairs, N examples, T positions, D inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whence.linalg.dense import gram


@dataclass(frozen=True)
class Affine:
    """a = (x, 1) at every position; ``weight`` and ``bias`` say which of the two are there."""

    x: Tensor  # [E, N, T, D]
    weight: bool = True
    bias: bool = False

    @property
    def positions(self) -> int:
        return self.x.shape[2]

    @property
    def rows(self) -> int:
        """Number of (example, position) pairs."""
        return self.x.shape[1] * self.x.shape[2]

    def take(self, which: slice) -> Affine:
        """Some examples."""
        return replace(self, x=self.x[:, which])

    def dense(self) -> Tensor:
        """[E, N, T, D (+ 1)]."""
        ones = self.x.new_ones(*self.x.shape[:-1], 1)
        if not self.weight:
            return ones
        return torch.cat([self.x, ones], dim=-1) if self.bias else self.x

    def gram(self) -> Tensor:
        """Σ a aᵀ, [E, D (+ 1), D (+ 1)]."""
        if not self.weight:
            return self.x.new_full((self.x.shape[0], 1, 1), self.rows)
        inner = gram_of_positions(self.x)
        if not self.bias:
            return inner
        size = inner.shape[-1]
        out = inner.new_empty(inner.shape[0], size + 1, size + 1)
        flat = self.x.flatten(1, 2)  # [E, N · T, D]
        sums = (flat.new_ones(1, flat.shape[1]) @ flat).squeeze(1)
        out[:, :size, :size] = inner
        out[:, :size, size] = sums
        out[:, size, :size] = sums
        out[:, size, size] = self.rows
        return out

    def summed(self) -> Tensor:
        """Σ_t a, [E, N, D (+ 1)]."""
        total = self.x.sum(2)
        count = total.new_full((*total.shape[:-1], 1), self.positions)
        if not self.weight:
            return count
        return torch.cat([total, count], dim=-1) if self.bias else total

    def turned(self, basis: Tensor) -> Tensor:
        """a · basis for basis [E, D (+ 1), D (+ 1)]: [E, N, T, D (+ 1)]."""
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
    """t · basis for t [E, …, D] and basis [E, D, D'], as one product for each pair."""
    return (t.flatten(1, -2) @ basis).unflatten(1, t.shape[1:-1])


def gram_of_positions(x: Tensor) -> Tensor:
    """Σ x xᵀ over examples and positions of x [..., E, N, T, D], summed over what stands before E too: [E, D, D].

    Where positions outnumber features, example by example: their layout is kept, and nothing is copied.
    """
    *before, _, _, positions, features = x.shape
    if positions >= 2 * features and x.device.type == "cpu" and x.stride(-1) != 1:
        per_example = (x.mT @ x).sum(-3)
        return per_example.sum(tuple(range(len(before)))) if before else per_example
    return gram(x.movedim(-4, 0).flatten(1, -2))


def outer_sum(g: Tensor, x: Tensor) -> Tensor:
    """Σ_t g xᵀ for g [K, E, N, T, O] and x [E, N, T, D]: [K, N, E, O, D]."""
    if x.shape[2] == 1:
        return (g.squeeze(3).unsqueeze(-1) * x.squeeze(2).unsqueeze(-2)).transpose(1, 2)
    columns, pairs, size, positions, outputs = g.shape
    side_by_side = g.permute(1, 2, 0, 4, 3)  # [E, N, K, O, T]
    if g.device.type == "cpu" and columns > 1 and not mergeable(side_by_side):
        return torch.stack([column.mT @ x for column in g]).transpose(1, 2)
    merged = side_by_side.reshape(pairs, size, columns * outputs, positions) @ x
    return merged.unflatten(2, (columns, outputs)).permute(2, 1, 0, 3, 4)


def mergeable(t: Tensor) -> bool:
    """Whether K and O of [E, N, K, O, T] can be read as one dimension without a copy."""
    return t.stride(2) == t.shape[3] * t.stride(3)
