"""Dense curvature Σ Jᵀ Λ J, of one block or of several jointly.

Index legend: K root columns, n examples, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whence.curvature.sums import CurvatureSums, PendingSums
from whence.engine.memory import chunks
from whence.linalg.dense import accumulation_dtype, gram
from whence.linalg.structures import Dense
from whence.recording.blocks import Block
from whence.recording.gradients import Gradients


class DenseSums(CurvatureSums):
    """Σ Jᵀ Λ J over the concatenated vector of some blocks; ``keep`` selects entries of it."""

    def __init__(self, blocks: Sequence[Block], like: Tensor, keep: Tensor | None = None) -> None:
        self.blocks, self.keep = blocks, keep
        size = sum(b.size for b in blocks) if keep is None else len(keep)
        self.sum = torch.zeros(size, size, dtype=accumulation_dtype(like.dtype), device=like.device)
        self.name = blocks[0].name if len(blocks) == 1 else self.name

    def add_gradients(self, grads: Gradients) -> None:
        pending = PendingSums()
        each = sum(b.size for b in self.blocks) * grads.count * grads.columns.element_size()
        for which in chunks(grads.recording.size, each, grads.columns.device):
            rows = torch.cat([grads.rows(block, which) for block in self.blocks], dim=-1)  # [K, n, P]
            rows = rows if self.keep is None else rows[..., self.keep]
            pending.add(slice(0, len(self.sum)), gram(rows.flatten(0, 1).to(self.sum.dtype)))
        pending.commit(self.sum)

    def result(self) -> Dense:
        return Dense(self.sum)
