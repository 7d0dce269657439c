"""Which part of the output's variance each layer and each unit causes, input by input.

V_b(x) = J_b Σ_b J_bᵀ. For class labels the logits are centred first, since softmax ignores a common shift. Where blocks
are correlated (full, low rank) a block's part is the covariance share tr[J_b (Σ Jᵀ)_b]; units have covariance shares
always. They add up at every level; a covariance share may be negative.

Index legend: N inputs, B blocks, K columns (what the trace is over), C outputs, U units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from whence.batches import Inputs, check_finite, size_of
from whence.curvature.blocks import Block
from whence.curvature.columns import identity_columns
from whence.curvature.jacobian import Gradients, widened
from whence.curvature.units import Units, units_of
from whence.errors import NotDefined, one_of
from whence.posteriors.block import BlockGaussian
from whence.predictive import linearised
from whence.predictive.projection import Projection, project

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

T = TypeVar("T")
Measure = Literal["variance", "information"]


@dataclass(frozen=True)
class Shares:
    """tr V_b(x) of every input and block, under the posterior and under the prior alone."""

    names: tuple[str, ...]  # of the blocks
    variance: Tensor  # [N, B], float64 on the CPU
    prior: Tensor  # [N, B]
    outputs: Tensor  # [N, C]

    @property
    def total(self) -> Tensor:
        """Variance of each input, [N]."""
        return self.variance.sum(1)

    @property
    def unexplained(self) -> Tensor:
        """What of the prior's variance is left, in (0, 1] for blocks that are not correlated, [N, B]."""
        return self.variance / self.prior.clamp(min=torch.finfo(self.prior.dtype).tiny)


@dataclass(frozen=True)
class UnitShares:
    """Σₓ of each unit's part of tr V, under the posterior and under the prior alone."""

    units: Units
    variance: Tensor  # [U], float64 on the CPU
    prior: Tensor  # [U]


@torch.inference_mode(False)
def shares(posterior: Laplace, x: Any, measure: Measure = "variance") -> Shares:
    """The part of every block, input by input.

    ``measure="information"`` takes ½ tr(Λ V), the mutual information to second order, instead of tr V.
    """

    def parts(outputs: Tensor, grads: Gradients) -> tuple[Tensor, Tensor, Tensor]:
        by_block = [_both(posterior, g, blocks, grads) for g, blocks in posterior.gaussians()]
        return torch.cat([v for v, _ in by_block], 1), torch.cat([p for _, p in by_block], 1), outputs

    variance, prior, outputs = zip(*by_pieces(posterior, x, measure, parts), strict=True)
    names = tuple(b.name for b in posterior.blocks)
    return Shares(names, torch.cat(variance).cpu(), torch.cat(prior).cpu(), torch.cat(outputs))


@torch.inference_mode(False)
def shares_with_units(
    posterior: Laplace, x: Any, measure: Measure = "variance"
) -> tuple[Shares, dict[str, UnitShares]]:
    """The parts of blocks, input by input, and of all their units over all inputs, in one pass."""
    units = {b.name: units_of(posterior.network, b) for b in posterior.blocks}
    sums: dict[str, Tensor] = {}
    variance, prior, outputs = [], [], []

    def parts(mean: Tensor, grads: Gradients) -> tuple[Tensor, list[_Parts]]:
        return mean, [_split(posterior, gaussian, blocks, grads, units) for gaussian, blocks in posterior.gaussians()]

    for mean, found in by_pieces(posterior, x, measure, parts):
        variance.append(torch.cat([part.variance for part in found], 1))
        prior.append(torch.cat([part.prior for part in found], 1))
        outputs.append(mean)
        for name, values in ((name, values) for part in found for name, values in part.units.items()):
            sums[name] = sums[name] + values if name in sums else values
    names = tuple(b.name for b in posterior.blocks)
    every = Shares(names, torch.cat(variance).cpu(), torch.cat(prior).cpu(), torch.cat(outputs))
    return every, {name: UnitShares(units[name], *sums[name].cpu()) for name in names}


def by_pieces(posterior: Laplace, x: Any, measure: Measure, compute: Callable[[Tensor, Gradients], T]) -> Iterator[T]:
    """What is computed from outputs [N, C] and gradients of the measure's columns, of pieces that fit into memory."""
    one_of(measure, ("variance", "information"), "measure")
    if posterior.curvature.keep is not None:
        raise NotDefined("the shares of a subnetwork mask are not defined; use variance().")

    def one(inputs: Inputs) -> T:
        return compute(*_differentiate(posterior, inputs, measure))

    for piece in linearised.pieces(posterior, x):
        yield from linearised.fitting(posterior, one, piece, "where()")


def _differentiate(posterior: Laplace, inputs: Inputs, measure: Measure) -> tuple[Tensor, Gradients]:
    recording = posterior.plan.record(inputs, size_of(inputs))
    outputs = recording.outputs.detach()
    linearised.require_flat(outputs)
    check_finite(outputs, "the outputs of the network", 0)
    return widened(outputs), recording.differentiate(columns_of(posterior, outputs, measure))


def columns_of(posterior: Laplace, outputs: Tensor, measure: Measure) -> Tensor:
    """T with Σ_k (T V Tᵀ)_kk the measure: [K, N, C]."""
    likelihood = posterior.likelihood
    if measure == "information":
        targets = likelihood.sample(outputs, torch.full_like(likelihood.flatten(outputs), 0.5))
        root = likelihood.root(outputs, likelihood.check(outputs, targets))  # [N, 1, C, K]
        return root.squeeze(1).movedim(-1, 0).to(outputs.dtype) / 2**0.5
    eye = identity_columns(outputs)
    return eye - 1 / outputs.shape[1] if likelihood.task == "classification" else eye


@dataclass(frozen=True)
class _Parts:
    variance: Tensor  # [N, b]
    prior: Tensor  # [N, b]
    units: dict[str, Tensor]  # [2, U] by block: posterior, prior


def _split(
    posterior: Laplace, gaussian: BlockGaussian, blocks: list[Block], grads: Gradients, units: dict[str, Units]
) -> _Parts:
    if posterior.curvature.joint:
        moved, alone = elements(gaussian, blocks, grads)
        sizes = [b.size for b in blocks]
        found = {}
        for block, v, p in zip(blocks, moved.split(sizes, -1), alone.split(sizes, -1), strict=True):
            found[block.name] = torch.stack([units[block.name].total(part.sum(0)) for part in (v, p)])
        return _Parts(_by_block(moved, sizes), _by_block(alone, sizes), found)
    projection = project(gaussian, blocks, grads, None)
    by_unit = projection.units(*gaussian.weights(), units[blocks[0].name])
    variance, prior = _traces(projection, gaussian)
    return _Parts(variance, prior, {blocks[0].name: by_unit})


def _both(posterior: Laplace, gaussian: BlockGaussian, blocks: list[Block], grads: Gradients) -> tuple[Tensor, Tensor]:
    """tr V and tr V under the prior for every input, [N, b] each."""
    if not posterior.curvature.joint:
        return _traces(project(gaussian, blocks, grads, None), gaussian)
    moved, alone = elements(gaussian, blocks, grads)
    sizes = [b.size for b in blocks]
    return _by_block(moved, sizes), _by_block(alone, sizes)


def _traces(projection: Projection, gaussian: BlockGaussian) -> tuple[Tensor, Tensor]:
    """tr V and tr V under the prior, [N, 1] each."""
    own, prior = projection.diagonals(*gaussian.weights())
    return own.double().sum(1, keepdim=True), prior.double().sum(1, keepdim=True)


def elements(gaussian: BlockGaussian, blocks: list[Block], grads: Gradients) -> tuple[Tensor, Tensor]:
    """Σ_k J_p (Σ Jᵀ)_p of every weight, under the posterior and the prior, [N, P] each."""
    every = slice(0, grads.recording.size)
    rows = torch.cat([grads.rows(b, every) for b in blocks], dim=-1)  # [K, N, P]
    moved, alone = gaussian.solve(rows), rows * gaussian.prior_variance()
    return (rows * moved).double().sum(0), (rows * alone).double().sum(0)


def _by_block(elements: Tensor, sizes: list[int]) -> Tensor:
    return torch.stack([part.sum(1) for part in elements.split(sizes, -1)], 1)
