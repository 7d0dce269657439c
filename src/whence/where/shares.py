"""Shares of the output variance by layer and unit; ``one_pass.py`` computes them.

V_b(x) = J_b Σ_b J_bᵀ is the variance due to block b. For class labels the logits are centred first, since softmax
ignores a common shift. Where blocks are correlated (full, low rank), and below the block, a part w of the weights has
the covariance share tr[J_w (Σ Jᵀ)_w]. Parts sum to the whole at every level; a covariance share may be negative.

With random columns (see ``question.py``) every trace is the mean over K independent estimates u_nk of each input n. The
standard error of a ratio r = Σ u / Σ t follows from e_nk = u_nk − r t_nk:

    SE² = Σ_n Σ_k (e_nk − ē_n)² / [K (K − 1)] / (Σ_n t_n)²

Index legend: N inputs, B blocks, K columns, C outputs, U units, P weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from whence.predictive.linearised_draws import Probes
from whence.recording.units import Units
from whence.where.question import Question

TINY = torch.finfo(torch.float64).tiny
EXACTLY = Question(probes=Probes.EXACT)


def fraction_left(variance: Tensor, prior: Tensor) -> Tensor:
    """Variance relative to the prior variance; 1 where that is 0."""
    return torch.where(prior > 0, variance / prior.clamp(min=TINY), 1.0)


@dataclass(frozen=True)
class UnitShares:
    """Σₓ of each unit's part of tr V, under the posterior and the prior."""

    units: Units
    variance: Tensor  # [U], float64 on the CPU
    prior: Tensor  # [U]
    share_error: Tensor | None = None  # [U], standard error of its share of the whole variance, with random columns
    by_group: Tensor | None = None  # [G, 2, U]: variance and prior over each group of inputs, if groups were given

    def of_group(self, group: int) -> UnitShares:
        assert self.by_group is not None
        return UnitShares(self.units, *self.by_group[group])


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
        return cls(*(scale * product.sum(-1) for product in products))

    @classmethod
    def joined(cls, parts: Sequence[ProbeSpread]) -> ProbeSpread:
        return cls(
            *(torch.cat([getattr(part, name) for part in parts]).cpu() for name in ("uu", "ut", "tt", "up", "pp"))
        )

    def over_inputs(self, which: Tensor | None) -> ProbeSpread:
        """Sums over inputs: [B], and a number for ``tt``."""
        fields = (self.uu, self.ut, self.tt, self.up, self.pp)
        return ProbeSpread(*((v if which is None else v[which]).sum(0) for v in fields))


@dataclass(frozen=True, repr=False)
class Shares:
    """tr V_b(x) of every input and block, under the posterior and the prior."""

    names: tuple[str, ...]  # of the blocks
    variance: Tensor  # [N, B], float64 on the CPU
    prior: Tensor  # [N, B]
    outputs: Tensor | None  # [N, C]; None for dense outputs
    units: dict[str, UnitShares] = field(default_factory=dict)  # by block, if they were asked for
    question: Question = EXACTLY
    spread: ProbeSpread | None = None  # with random columns

    def __repr__(self) -> str:
        return f"Shares({len(self.variance):,} inputs, {len(self.names):,} layers)"

    @property
    def total(self) -> Tensor:
        """Variance of each input, [N]."""
        return self.variance.sum(1)

    @property
    def unexplained(self) -> Tensor:
        """The fraction of the prior variance that is left, in (0, 1] for uncorrelated blocks, [N, B]."""
        return fraction_left(self.variance, self.prior)

    def of_group(self, group: int, members: Tensor) -> Shares:
        """The shares of one group of inputs: those where ``members`` is True."""
        return replace(
            self,
            variance=self.variance[members],
            prior=self.prior[members],
            outputs=None if self.outputs is None else self.outputs[members.to(self.outputs.device)],
            units={name: units.of_group(group) for name, units in self.units.items()},
            spread=None,
        )

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
