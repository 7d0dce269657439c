"""Rows of J Δ^{-1/2} of some inputs, block by block, and their inner products: the kernel J Δ⁻¹ Jᵀ.

Index legend: N inputs, K rows of J for each, E Kronecker pairs, O outputs and D inputs of a layer, P weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.curvature.diagonals import is_unshared
from whence.engine.options import Execution
from whence.functional import Network
from whence.linalg.ratios import SEPARABLE
from whence.priors import PriorPrecision
from whence.recording.blocks import Block, GradientSource, MatrixForm
from whence.recording.gradients import Gradients
from whence.recording.plan import Plan


@dataclass(frozen=True)
class Scaling:
    """Δ^{-1/2} of one block, in float64."""

    flat: Tensor  # [P], in the block's order
    sides: tuple[Tensor, Tensor] | None  # [E, O] and [E, D], whose product it is; None if it is none

    @classmethod
    def of(cls, prior: PriorPrecision, block: Block, device: torch.device) -> Scaling:
        flat = prior.flat(list(block.params)).rsqrt().to(device)
        if block.form is None:
            return cls(flat, None)
        native = block.form.pack(flat)  # [E, O, D]
        left, right = native[..., 0] / native[..., :1, 0], native[..., 0, :]
        product = left.unsqueeze(-1) * right.unsqueeze(-2)
        return cls(flat, (left, right) if torch.allclose(product, native, rtol=SEPARABLE, atol=0) else None)


class Features(ABC):
    """Rows of J Δ^{-1/2} of one block, in float64."""

    @abstractmethod
    def rows(self) -> Tensor:
        """[N, K, P], in the block's order."""

    @abstractmethod
    def own(self) -> Tensor:
        """The kernel of each input with itself, [N, K, K]."""

    def with_others(self, other: Features) -> Tensor:
        """The kernel between all inputs of both, [N, K, M, L]."""
        one, two = self.rows(), other.rows()
        return (one.flatten(0, 1) @ two.flatten(0, 1).mT).unflatten(1, two.shape[:2]).unflatten(0, one.shape[:2])


@dataclass(frozen=True)
class Whole(Features):
    """The rows themselves."""

    values: Tensor  # [N, K, P]

    def rows(self) -> Tensor:
        return self.values

    def own(self) -> Tensor:
        return self.values @ self.values.mT


@dataclass(frozen=True)
class Products(Features):
    """g aᵀ of a layer with one position per input, of which only the two vectors are kept."""

    a: Tensor  # [E, N, D]
    g: Tensor  # [E, N, K, O]
    form: MatrixForm

    def rows(self) -> Tensor:
        return self.form.unpack(torch.einsum("enko,end->nkeod", self.g, self.a))

    def own(self) -> Tensor:
        return ((self.g @ self.g.mT) * self.a.square().sum(-1)[..., None, None]).sum(0)

    def with_others(self, other: Features) -> Tensor:
        if not isinstance(other, Products):
            return super().with_others(other)
        gradients = torch.einsum("enko,emlo->enkml", self.g, other.g)
        return (gradients * (self.a @ other.a.mT)[:, :, None, :, None]).sum(0)


def features(block: Block, grads: Gradients, scaling: Scaling) -> Features:
    """Of the inputs that were recorded, one row for each column that was sent backward."""
    if block.source is GradientSource.MATRIX and block.form is not None and scaling.sides is not None:
        calls = grads.matrix_calls(block)
        if is_unshared(calls, block.form.pairs):
            (call,), (left, right) = calls, scaling.sides
            a, g = call.a.dense().squeeze(2).double(), call.g.squeeze(3).permute(1, 2, 0, 3).double()
            return Products(a * right.unsqueeze(1), g * left[:, None, None], block.form)
    rows = grads.rows(block, slice(0, grads.recording.size)).transpose(0, 1).double()  # [N, K, P]
    return Whole(rows * scaling.flat)


@dataclass(frozen=True)
class Linearised:
    """A network and its prior: what features need."""

    plan: Plan
    scalings: tuple[Scaling, ...]

    joint = False
    execution = Execution(cuda_graphs=False)

    @classmethod
    def of(cls, plan: Plan, prior: PriorPrecision) -> Linearised:
        return cls(plan, tuple(Scaling.of(prior, block, plan.network.device) for block in plan.blocks))

    @property
    def network(self) -> Network:
        return self.plan.network

    @property
    def blocks(self) -> Sequence[Block]:
        return self.plan.blocks

    def features(self, grads: Gradients) -> list[Features]:
        """Of every block."""
        pairs = zip(self.blocks, self.scalings, strict=True)
        return [features(block, grads, scaling) for block, scaling in pairs]


def kernel(one: Sequence[Features], other: Sequence[Features]) -> Tensor:
    """Σ_b J_b Δ_b⁻¹ J_bᵀ between all inputs of both, [N, K, M, L]."""
    found = one[0].with_others(other[0])
    for mine, theirs in zip(one[1:], other[1:], strict=True):
        found = found + mine.with_others(theirs)
    return found
