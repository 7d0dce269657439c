"""The training examples that a Gaussian process is given: their inputs, and a root of the curvature of their loss.

Index legend: M examples, K root columns of each, r = M K.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import torch
from torch import Tensor

from whence.engine.batches import Inputs, size_of, take
from whence.engine.memory import readable, sizes
from whence.errors import TooLarge
from whence.posteriors.function_space.features import Features, Linearised, kernel
from whence.predictive.linearised import piece_size

COPIES = 4  # matrices [r, r] that exist at the same time while the kernel is decomposed


@dataclass(frozen=True)
class Subset:
    """Features of R_nᵀ J_n, with Λ_n = R_n R_nᵀ times how often an example counts."""

    linear: Linearised
    inputs: Inputs
    columns: Tensor  # [K, M, *outputs]
    step: int  # examples at a time
    kept: tuple[list[Features], ...] | None = field(default=None, repr=False)  # of all pieces, if memory allows

    @classmethod
    def of(cls, linear: Linearised, inputs: Inputs, columns: Tensor) -> Subset:
        """With features that are kept where memory allows."""
        size = len(columns) * size_of(inputs)
        needed = COPIES * 8 * size**2
        if needed > sizes().joint:
            raise TooLarge(
                f"{size_of(inputs):,} examples with {len(columns):,} columns each give a kernel matrix of {size:,} "
                f"rows, which takes {readable(needed)} (limit {readable(sizes().joint)}). Take fewer with examples=…."
            )
        step = piece_size(cast("Any", linear), inputs, columns=len(columns))
        found, kept, used = cls(linear, inputs, columns, step), [], 0
        for piece in found.each():
            used += sum(_bytes(part) for part in piece)
            if used > sizes().features:
                return found
            kept.append(piece)
        return replace(found, kept=tuple(kept))

    @property
    def size(self) -> int:
        """r."""
        return len(self.columns) * size_of(self.inputs)

    def pieces(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Inputs and columns of some examples at a time."""
        for start in range(0, size_of(self.inputs), self.step):
            which = slice(start, start + self.step)
            yield take(self.inputs, which), self.columns[:, which]

    def each(self) -> Iterator[list[Features]]:
        """Features of every block, for some examples at a time."""
        if self.kept is not None:
            yield from self.kept
            return
        for inputs, columns in self.pieces():
            yield self._features(inputs, columns)

    def _features(self, inputs: Inputs, columns: Tensor) -> list[Features]:
        recording = self.linear.plan.record(inputs, size_of(inputs))
        return self.linear.features(recording.differentiate(columns.to(recording.outputs.dtype)))

    def with_inputs(self, given: Sequence[Features]) -> Tensor:
        """The kernel of some inputs and these examples, [N, C, r]."""
        return torch.cat([kernel(given, piece).flatten(2) for piece in self.each()], 2)

    def by_block(self, given: Sequence[Features]) -> Iterator[Tensor]:
        """The same of each block, [N, C, r] each."""
        pieces = list(self.each())
        for i, mine in enumerate(given):
            yield torch.cat([mine.with_others(piece[i]).flatten(2) for piece in pieces], 2)

    def gram(self) -> Tensor:
        """The kernel of these examples, [r, r]."""
        found = torch.cat([self.with_inputs(piece).flatten(0, 1) for piece in self.each()])
        return (found + found.mT) / 2


def _bytes(part: Features) -> int:
    values = [getattr(part, f.name) for f in fields(part)]  # type: ignore[arg-type]
    return sum(v.numel() * v.element_size() for v in values if isinstance(v, Tensor))
