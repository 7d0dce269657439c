"""EKFAC: the exact diagonal of the curvature in the eigenvectors of its Kronecker factors (George et al. 2018).

A second pass over the data sums Σ_{n,k} (B_Gᵀ J B_A)², with B relative to the prior of the fit.

Index legend: E Kronecker pairs, O outputs, D inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.curvature.diagonals import matrix_squares
from whence.curvature.sums import CurvatureSums
from whence.engine.ranks import Ranks
from whence.linalg.ratios import Ratio
from whence.linalg.structures import Ekfac, Kronecker
from whence.recording.blocks import Block
from whence.recording.gradients import Gradients


class EkfacSums(CurvatureSums):
    """Σ_{n,k} (B_Gᵀ J B_A)² of one layer."""

    fixed = ("left", "right")

    def __init__(self, block: Block, left: Tensor, right: Tensor, ratio: Ratio | None = None) -> None:
        assert block.form is not None
        self.block, self.name, self.ratio = block, block.name, ratio
        self.left, self.right = left, right
        self.sum = torch.zeros(block.form.native, dtype=right.dtype, device=right.device)

    def add_gradients(self, grads: Gradients) -> None:
        assert self.block.form is not None
        calls = [call.in_basis(self.left, self.right) for call in grads.matrix_calls(self.block)]
        self.sum += matrix_squares(calls, self.block.form.native, grads).to(self.sum.dtype)

    def result(self) -> Ekfac:
        return Ekfac(self.sum, self.left, self.right, ratio=self.ratio)


def eigenvectors(factors: list[tuple[str, Kronecker, Ratio | None]], ranks: Ranks) -> list[list[Tensor]]:
    """B_G and B_A of each block. Ranks share the decompositions, and all hold bitwise equal results."""
    sharing = ranks.sharing()
    owners = [0] * len(factors)
    if sharing is not None:
        owners = sharing.assign([float(f.grads.shape[-1] ** 3 + f.inputs.shape[-1] ** 3) for _, f, _ in factors])
    found = []
    for owner, (name, factor, ratio) in zip(owners, factors, strict=True):
        if owner == ranks.rank:
            spectral: Any = factor.spectral(ratio, name)
            found.append([spectral.left, spectral.right])
        else:
            found.append([torch.empty_like(factor.grads), torch.empty_like(factor.inputs)])
    return found if sharing is None else [sharing.exchange(o, pair) for o, pair in zip(owners, found, strict=True)]
