"""Shares of the output variance by layer and unit, computed in one pass over the inputs.

V_b(x) = J_b Σ_b J_bᵀ is the variance due to block b. For class labels the logits are centred first, since softmax
ignores a common shift. Where blocks are correlated (full, low rank), and below the block, a part w of the weights has
the covariance share tr[J_w (Σ Jᵀ)_w]. Parts sum to the whole at every level; a covariance share may be negative.

With random columns (see ``question.py``) every trace is the mean over K independent estimates u_nk of each input n. The
standard error of a ratio r = Σ u / Σ t follows from e_nk = u_nk − r t_nk:

    SE² = Σ_n Σ_k (e_nk − ē_n)² / [K (K − 1)] / (Σ_n t_n)²

Index legend: N inputs, B blocks, K columns, C outputs, U units, P weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from whence.engine.batches import Inputs, check_finite, size_of
from whence.errors import BadOption, EmptyData, NotDefined
from whence.linalg.dense import widened
from whence.linalg.gaussian import BlockGaussian
from whence.predictive import linearised
from whence.predictive.projection import Projection, project
from whence.recording.blocks import Block
from whence.recording.calls import Recording
from whence.recording.gradients import Gradients
from whence.recording.units import Units, units_of
from whence.where.question import Question

if TYPE_CHECKING:
    from whence.posteriors.laplace.posterior import Laplace

T = TypeVar("T")
TINY = torch.finfo(torch.float64).tiny
EXACTLY = Question(probes="exact")


@dataclass(frozen=True)
class UnitShares:
    """Σₓ of each unit's part of tr V, under the posterior and the prior."""

    units: Units
    variance: Tensor  # [U], float64 on the CPU
    prior: Tensor  # [U]
    share_error: Tensor | None = None  # [U], standard error of its share of the whole variance, with random columns


@dataclass(frozen=True)
class ProbeSpread:
    """Σ_k (a_k − ā)(b_k − b̄) K / (K − 1) over the columns of each input; a, b are variance u, its total t, or prior p.

    The u_k add up to tr V_b over the columns, so a sum of ``uu`` over inputs is the squared standard error of Σ_n u_n.
    """

    uu: Tensor  # [N, B]
    ut: Tensor  # [N, B]
    tt: Tensor  # [N]
    up: Tensor  # [N, B]
    pp: Tensor  # [N, B]

    @classmethod
    def of(cls, variance: Tensor, prior: Tensor) -> ProbeSpread:
        """From the estimates by column, [N, B, K] each."""
        count = variance.shape[-1]
        u, p = (v - v.mean(-1, keepdim=True) for v in (variance, prior))
        t = u.sum(1, keepdim=True)
        scale = count / (count - 1)
        products = (u * u, u * t, (t * t).squeeze(1), u * p, p * p)
        return cls(*(scale * product.sum(-1).cpu() for product in products))

    @classmethod
    def joined(cls, parts: Sequence[ProbeSpread]) -> ProbeSpread:
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("uu", "ut", "tt", "up", "pp")))

    def over_inputs(self, which: Tensor | None) -> ProbeSpread:
        """Sums over inputs: [B], and a number for ``tt``."""
        fields = (self.uu, self.ut, self.tt, self.up, self.pp)
        return ProbeSpread(*((v if which is None else v[which]).sum(0) for v in fields))


@dataclass(frozen=True)
class Shares:
    """tr V_b(x) of every input and block, under the posterior and the prior."""

    names: tuple[str, ...]  # of the blocks
    variance: Tensor  # [N, B], float64 on the CPU
    prior: Tensor  # [N, B]
    outputs: Tensor | None  # [N, C]; None for dense outputs
    units: dict[str, UnitShares] = field(default_factory=dict)  # by block, if they were asked for
    question: Question = EXACTLY
    spread: ProbeSpread | None = None  # with random columns

    @property
    def total(self) -> Tensor:
        """Variance of each input, [N]."""
        return self.variance.sum(1)

    @property
    def unexplained(self) -> Tensor:
        """The fraction of the prior variance that is left, in (0, 1] for uncorrelated blocks, [N, B]."""
        return torch.where(self.prior > 0, self.variance / self.prior.clamp(min=TINY), 1.0)

    def over_inputs(self, which: Tensor | None = None) -> BlockShares:
        """Ratios of sums over the inputs, or over some of them."""
        variance, prior = (v if which is None else v[which] for v in (self.variance, self.prior))
        spread = None if self.spread is None else self.spread.over_inputs(which)
        return BlockShares(variance.sum(0), prior.sum(0), spread)


@dataclass(frozen=True)
class BlockShares:
    """Σₓ tr V of each block, under the posterior and the prior, [B] each."""

    variance: Tensor
    prior: Tensor
    spread: ProbeSpread | None = None

    @property
    def variance_share(self) -> Tensor:
        return self.variance / self.variance.sum().clamp(min=TINY)

    @property
    def variance_share_error(self) -> Tensor | None:
        """Standard error with random columns; None where the share is exact."""
        if self.spread is None:
            return None
        s, share = self.spread, self.variance_share
        squares = s.uu - 2 * share * s.ut + share.square() * s.tt
        return squares.clamp(min=0).sqrt() / self.variance.sum().clamp(min=TINY)

    @property
    def prior_share(self) -> Tensor:
        return self.prior / self.prior.sum().clamp(min=TINY)

    @property
    def explained(self) -> Tensor:
        """1 − variance / variance under the prior; 0 for a block that reaches no output."""
        return torch.where(self.prior > 0, 1 - self.variance / self.prior.clamp(min=TINY), 0.0)

    @property
    def explained_error(self) -> Tensor | None:
        """Standard error with random columns."""
        if self.spread is None:
            return None
        s, ratio = self.spread, self.variance / self.prior.clamp(min=TINY)
        squares = s.uu - 2 * ratio * s.up + ratio.square() * s.pp
        return squares.clamp(min=0).sqrt() / self.prior.clamp(min=TINY)


@torch.inference_mode(False)
def shares(posterior: Laplace, x: Any, question: Question | None = None, units: bool = False) -> Shares:
    """The part of every block, input by input; with ``units`` also of all their units, over all inputs."""
    split = {b.name: units_of(posterior.network, b) for b in posterior.blocks} if units else {}
    sums: dict[str, Tensor] = {}  # [K, 2, U]; K = 1 where exact
    totals: Tensor | float = 0.0  # of each column, [K]
    variance, prior, outputs, spreads = [], [], [], []
    asked = ColumnPass(posterior, question or Question(), "where()")

    def compute(mean: Tensor, grads: Gradients) -> tuple[Tensor, list[_Parts]]:
        each = asked.question.random_columns is not None
        gaussians = posterior.gaussians()
        return mean, [_parts(g, blocks, grads, posterior.curvature.joint, split, each) for g, blocks in gaussians]

    for mean, parts in asked.over(x, compute):
        own, alone = (torch.cat([getattr(p, name) for p in parts], 1) for name in ("variance", "prior"))  # [N, B, K]
        variance.append(own.sum(-1))
        prior.append(alone.sum(-1))
        outputs.append(mean)
        if own.shape[-1] > 1 and not asked.question.same_columns:
            spreads.append(ProbeSpread.of(own, alone))
            totals = totals + own.sum((0, 1)).cpu()
        for name, values in (item for part in parts for item in part.units.items()):
            sums[name] = sums[name] + values if name in sums else values
    return Shares(
        tuple(b.name for b in posterior.blocks),
        torch.cat(variance).cpu(),
        torch.cat(prior).cpu(),
        torch.cat(outputs) if outputs[0].dim() == 2 else None,
        {name: _unit_shares(split[name], sums[name].cpu(), totals) for name in split},
        asked.question,
        ProbeSpread.joined(spreads) if spreads else None,
    )


def _unit_shares(units: Units, by_column: Tensor, totals: Tensor | float) -> UnitShares:
    """From sums over inputs by column, [K, 2, U], and those of the whole network, [K]."""
    variance, prior = by_column.sum(0)
    if not isinstance(totals, Tensor):
        return UnitShares(units, variance, prior)
    count, whole = len(totals), totals.sum().clamp(min=TINY)
    e = by_column[:, 0] - (variance / whole) * totals.unsqueeze(1)  # [K, U]
    error = (count / (count - 1) * (e - e.mean(0)).square().sum(0)).sqrt() / whole
    return UnitShares(units, variance, prior, error)


class ColumnPass:
    """One pass over the inputs; the first of them decide whether the answer is exact or uses random columns."""

    def __init__(self, posterior: Laplace, question: Question, what: str) -> None:
        if posterior.curvature.keep is not None:
            raise NotDefined("the shares of a subnetwork mask are not defined; use variance().")
        self.posterior, self.question, self.what = posterior, question, what

    def over(self, x: Any, compute: Callable[[Tensor, Gradients], T]) -> Iterator[T]:
        """Yield ``compute(outputs, gradients)`` for batches that fit into memory."""
        posterior, done, masks = self.posterior, 0, None

        def one(inputs: Inputs) -> tuple[int, T]:
            nonlocal masks
            size = size_of(inputs)
            recording = posterior.plan.record(inputs, size)
            outputs = recording.outputs.detach()
            check_finite(outputs, "the outputs of the network", 0)
            masks = self.question.masks(posterior.likelihood, outputs)
            columns = self.question.columns(posterior.likelihood, outputs, done)
            return size, compute(widened(outputs), recording.differentiate(columns))

        for piece in linearised.pieces(posterior, x, columns=self._decide):
            for size, found in linearised.fitting(posterior, one, piece, self.what):
                done += size
                yield found
        if not done:
            raise EmptyData("there are no inputs.")
        if masks not in (None, done):
            raise BadOption(f"at= has {masks} masks for {done} inputs.")

    def _decide(self, one: Recording, inputs: int) -> int:
        """Columns of each input."""
        self.question = self.question.decided(self.posterior.likelihood, one, inputs, self.what)
        return self.question.random_columns or self.question.exact_count(self.posterior.likelihood, one.outputs)


@dataclass(frozen=True)
class _Parts:
    """Of one batch and the b blocks of one Gaussian, by random column; summed over columns (K = 1) where exact."""

    variance: Tensor  # [N, b, K]
    prior: Tensor  # [N, b, K]
    units: dict[str, Tensor]  # [K, 2, U] by block: posterior, prior


def _parts(
    gaussian: BlockGaussian,
    blocks: Sequence[Block],
    grads: Gradients,
    joint: bool,
    units: Mapping[str, Units],
    each: bool,
) -> _Parts:
    by_unit = {}
    if not joint:
        (block,) = blocks
        projection, weights = project(gaussian, blocks, grads, None), gaussian.weights()
        if block.name in units:
            columns: list[Projection] = [projection.column(k) for k in range(grads.count)] if each else [projection]
            by_unit[block.name] = torch.stack([c.units(*weights, units[block.name]) for c in columns])
        variance, prior = (v.double().unsqueeze(1) for v in projection.diagonals(*weights))  # [N, 1, K]
        if not each:
            variance, prior = variance.sum(-1, keepdim=True), prior.sum(-1, keepdim=True)
        return _Parts(variance, prior, by_unit)
    sizes = [b.size for b in blocks]
    own, alone = (part.split(sizes, -1) for part in per_weight(gaussian, blocks, grads, each))  # [K, N, P] each
    for block, *both in zip(blocks, own, alone, strict=True):
        if block.name in units:
            columns_of = [torch.stack([units[block.name].total(v) for v in part.sum(1)]) for part in both]  # [K, U]
            by_unit[block.name] = torch.stack(columns_of, 1)
    variance, prior = (torch.stack([part.sum(2).mT for part in parts], 1) for parts in (own, alone))
    return _Parts(variance, prior, by_unit)


def per_weight(
    gaussian: BlockGaussian, blocks: Sequence[Block], grads: Gradients, each: bool = False
) -> tuple[Tensor, Tensor]:
    """J_p (Σ Jᵀ)_p of every weight, under posterior and prior, [K, N, P] each; [1, N, P] unless by ``each`` column."""
    every = slice(0, grads.recording.size)
    rows = torch.cat([grads.rows(b, every) for b in blocks], dim=-1)  # [K, N, P]
    both = ((rows * gaussian.solve(rows)).double(), (rows * (rows * gaussian.prior_variance())).double())
    return both if each else (both[0].sum(0, keepdim=True), both[1].sum(0, keepdim=True))
