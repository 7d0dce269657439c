"""Novelty in a served module: forward passes only, with a reference of its own.

Per layer ``unexplained`` = tr V_b(x) / tr V_b(x; prior), as in :mod:`whence.where.novelty`, here estimated along K
fixed directions: Σ_k |J_b z_k|² / Σ_k |J_b z'_k|², with z of the posterior and z' of the prior made from the same
random numbers. The reference inputs are scored by the same module, so p-values stay valid whatever K is; few
directions only make the score less sharp.

Index legend: N inputs, B layers, K directions, n reference inputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.curvature.traced import traced_tangents
from whence.engine.batches import bare, cut
from whence.engine.memory import readable, sizes
from whence.errors import BadData, NotDefined, TooLarge, notice
from whence.likelihoods import Categorical, Likelihood
from whence.predictive.difference import PIECE
from whence.predictive.sampled import BATCH
from whence.where.novelty import ENOUGH
from whence.where.novelty_prior import novelty_precision, with_novelty_prior
from whence.where.p_values import ROUNDING, Tail, fisher

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

DIRECTIONS = 32  # of each layer
NO_DATA = 1e-12  # data scale at which the posterior is the prior


class Unexplained(nn.Module):
    """x → the unexplained fraction of every layer [N, B], from derivatives along [2 B K] directions."""

    def __init__(self, tangents: nn.Module, layers: int, class_dim: int | None) -> None:
        super().__init__()
        self.tangents, self.layers, self.class_dim = tangents, layers, class_dim

    def forward(self, x: Tensor) -> Tensor:
        _, moved = self.tangents(x)  # [2 B K, N, …]
        if self.class_dim is not None:  # a common shift of the logits changes no probability
            moved = moved - moved.mean(self.class_dim, keepdim=True)
        squares = moved.double().square().flatten(2).sum(2)
        ours, prior = squares.unflatten(0, (2, self.layers, -1)).sum(2)  # [B, N]
        return torch.where(prior > 0, ours / prior, 1.0).clamp(max=1.0).mT


class NoveltyScore(nn.Module):
    """x → (score, p-value), [N] each: Fisher's combination of the layers' evidence, ranked among the reference's."""

    def __init__(self, unexplained: Unexplained, reference: Tensor) -> None:
        super().__init__()
        self.unexplained = unexplained
        self.reference: Tensor
        self.top: Tensor
        self.own: Tensor
        tail = Tail.of(reference)
        for name, value in (
            ("reference", reference),  # [n, B]
            ("top", tail.top),
            ("own", fisher(tail.evidence_of_reference())),  # [n], each without itself
        ):
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values = self.unexplained(x)
        p_values = at_least(self.reference, values)
        score = fisher(Tail(self.reference, self.top).evidence(values, p_values))
        return score, at_least(self.own.unsqueeze(1), score.unsqueeze(1)).squeeze(1)


def at_least(reference: Tensor, values: Tensor) -> Tensor:
    """P-values (1 + #{reference ≥ value}) / (n + 1) of [N, B] among [n, B], by comparison: sorting does not export."""
    lower = values - ROUNDING * values.abs()
    return (1 + (reference >= lower.unsqueeze(1)).double().sum(1)) / (reference.shape[0] + 1)


def served_novelty(posterior: Laplace, data: Any, example: Tensor | None, directions: int = DIRECTIONS) -> NoveltyScore:
    """A module that scores inputs relative to the reference inputs ``data``, by so many directions of each layer."""
    pieces = [p for p in posterior.network.pieces(bare(data), BATCH) if isinstance(p, Tensor)]
    if not pieces:
        raise NotDefined("as_module(novelty=…) takes reference inputs of one tensor.")
    drawn = _directions(posterior, directions)
    tangents = traced_tangents(posterior.network, pieces[0] if example is None else example, drawn)
    unexplained = Unexplained(tangents, len(posterior.blocks), _class_dim(posterior.likelihood)).eval()
    with torch.no_grad():
        reference = torch.cat([unexplained(some) for piece in pieces for some in cut(piece, PIECE)])
    if len(reference) < 2:
        raise BadData(f"a reference needs at least two inputs, not {len(reference)}; use {ENOUGH} or more.")
    if len(reference) < ENOUGH:
        notice(f"the reference has {len(reference)} inputs, so no p-value is below {1 / (len(reference) + 1):.2g}.")
    return NoveltyScore(unexplained, reference)


def _class_dim(likelihood: Likelihood) -> int | None:
    """Dimension of the derivatives [2 B K, N, …] along which a common shift does not count."""
    if not (likelihood.shift_invariant and isinstance(likelihood, Categorical)):
        return None
    return likelihood.class_dim if likelihood.class_dim < 0 else likelihood.class_dim + 1


def _directions(posterior: Laplace, count: int) -> dict[str, Tensor]:
    """Directions [2 B K, …]: of the posterior, then of the prior; each changes one layer only."""
    needed = 2 * len(posterior.blocks) * count * posterior.parameters * posterior.network.dtype.itemsize
    if needed > sizes().dense_covariance:
        raise TooLarge(
            f"a served novelty score of {len(posterior.blocks)} layers and {posterior.parameters:,} weights takes "
            f"{readable(needed)} (limit {readable(sizes().dense_covariance)}). Score inputs with whence.novelty, or "
            "serve a posterior of fewer layers=…."
        )
    weak = with_novelty_prior(posterior, novelty_precision(posterior))
    prior = replace(weak, data_scale=NO_DATA)
    seed = torch.Generator(posterior.network.device)
    drawn = [p.deviations(count, seed.manual_seed(0)) for p in (weak, prior)]
    found: dict[str, Tensor] = {}
    for place, block in enumerate(posterior.blocks):
        for param in block.params:
            values = torch.stack([part[param.name] for part in drawn])  # [2, K, …]
            whole = values.new_zeros(2, len(posterior.blocks), *values.shape[1:])
            whole[:, place] = values
            found[param.name] = whole.flatten(0, 2)
    return found
