"""The input of a matrix call with its 1 appended, without writing the ones down where they can be spared.

Index legend: K root columns, E Kronecker pairs, N examples, T positions, D inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whence.linalg import split
from whence.linalg.dense import add_upper_gram, gram, is_narrow


@dataclass(frozen=True)
class Affine:
    """a = (x, 1) at every position; ``weight`` and ``bias`` say which of the two are there."""

    x: Tensor  # [E, N, T, D]
    weight: bool = True
    bias: bool = False
    live: Tensor | None = None  # which positions count in sums over them, [N, T]; None for all

    @property
    def positions(self) -> int:
        return self.x.shape[2]

    @property
    def rows(self) -> int | Tensor:
        """Number of (example, position) pairs that count."""
        return self.x.shape[1] * self.x.shape[2] if self.live is None else self.live.sum()

    @property
    def rows_of_examples(self) -> int | Tensor:
        """The same for each example, [N, 1]."""
        return self.x.shape[2] if self.live is None else self.live.sum(1, keepdim=True)

    def take(self, which: slice) -> Affine:
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

    def gram(self, coarse: bool = False) -> Tensor:
        """Σ a aᵀ, [E, D (+ 1), D (+ 1)], of which the upper triangle is meant."""
        if not self.weight:
            dtype = torch.promote_types(self.x.dtype, torch.float32)
            return self.x.new_ones((self.x.shape[0], 1, 1), dtype=dtype) * self.rows
        if self.live is None and self.bias and self.x.is_cuda and not self._fast_alone(coarse):
            return gram_of_positions(self.dense(), coarse)  # two launches
        if self.adds_in_place:
            size = self.x.shape[-1] + self.bias
            out = self.x.new_zeros(1, size, size)
            self.add_gram(out)
            return out
        x = self.counted()
        inner = gram_of_positions(x, coarse)
        if not self.bias:
            return inner
        size = inner.shape[-1]
        out = inner.new_empty(inner.shape[0], size + 1, size + 1)
        flat = x.flatten(1, 2)  # [E, N · T, D]
        narrow = flat.dtype != inner.dtype
        sums = flat.sum(1, dtype=inner.dtype) if narrow else (flat.new_ones(1, flat.shape[1]) @ flat).squeeze(1)
        out[:, :size, :size] = inner
        out[:, :size, size] = sums
        out[:, size, :size] = sums
        out[:, size, size] = self.rows
        return out

    def _fast_alone(self, coarse: bool) -> bool:
        """Whether tensor cores multiply x: a width made odd by the 1 costs them most of their speed."""
        return is_narrow(self.x) or (
            coarse and len(self.x) == 1 and split.gram_pays(self.x, self.x[0, ..., 0].numel(), self.x.shape[-1])
        )

    @property
    def adds_in_place(self) -> bool:
        """Whether :meth:`add_gram` is there: wide products on a CPU are better written where they belong."""
        return self.weight and len(self.x) == 1 and self.x.device.type == "cpu" and not is_narrow(self.x)

    def add_gram(self, out: Tensor) -> None:
        """Add the upper triangle of :meth:`gram` to ``out`` [1, D (+ 1), D (+ 1)]."""
        flat = self.counted()[0].flatten(0, 1)  # [N · T, D]
        if not (flat.is_contiguous() or flat.mT.is_contiguous()):
            flat = flat.contiguous()  # now, while nothing has been added: products would copy it, each for itself
        size = flat.shape[1]
        sums = (flat.new_ones(1, len(flat)) @ flat)[0] if self.bias else None
        add_upper_gram(flat, out[0, :size, :size])
        if sums is not None:
            add_the_one(out[0], sums, self.rows)

    def squares(self) -> Tensor:
        """The diagonal of :meth:`gram`, [E, D (+ 1)]."""
        inner = squares_of_positions(self.counted())
        count = inner.new_ones((self.x.shape[0], 1)) * self.rows
        if not self.weight:
            return count
        return torch.cat([inner, count], dim=-1) if self.bias else inner

    def summed(self) -> Tensor:
        """Σ_t a, [E, N, D (+ 1)]."""
        total = self.counted().sum(2)
        count = total.new_ones((*total.shape[:-1], 1)) * self.rows_of_examples
        if not self.weight:
            return count
        return torch.cat([total, count], dim=-1) if self.bias else total

    def turned(self, basis: Tensor) -> Tensor:
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


def add_the_one(out: Tensor, sums: Tensor, rows: int | Tensor) -> None:
    """Add what the appended 1 gives to Σ a aᵀ [D + 1, D + 1]: Σ x beside, and the number of rows in the corner."""
    out[:-1, -1] += sums
    out[-1, :-1] += sums
    out[-1, -1] += rows


def times(t: Tensor, basis: Tensor) -> Tensor:
    """t · basis for t [E, …, D] and basis [E, D, D'] as one product for each pair, or its diagonal [E, D]."""
    if basis.dim() == 2:
        return t * basis.reshape(len(basis), *(1,) * (t.dim() - 2), -1)
    return (t.flatten(1, -2) @ basis).unflatten(1, t.shape[1:-1])


def gram_of_positions(x: Tensor, coarse: bool = False) -> Tensor:
    """Σ x xᵀ over examples and positions of x [..., E, N, T, D], summed over what stands before E too: [E, D, D].

    Where positions outnumber features, example by example: their layout is kept, and nothing is copied.
    """
    *before, _, _, positions, features = x.shape
    if positions >= 2 * features and x.stride(-1) != 1 and not is_narrow(x):
        per_example = (x.mT @ x).sum(-3)
        return per_example.sum(tuple(range(len(before)))) if before else per_example
    return gram(x.movedim(-4, 0).flatten(1, -2), coarse)


def squares_of_positions(x: Tensor) -> Tensor:
    """Σ x² over all but pairs and features of x [..., E, N, T, D], without writing the squares down: [E, D]."""
    flat = x.movedim(-4, 0).flatten(1, -2)  # [E, R, D]
    dtype = torch.promote_types(flat.dtype, torch.float32)
    return torch.linalg.vector_norm(flat, dim=1, dtype=dtype).square()


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
