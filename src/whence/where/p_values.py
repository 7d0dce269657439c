"""Conformal p-values of each layer, and their combination over layers into one p-value.

Every layer has evidence e_b = −log p_b. Ranks within the reference give p_b; beyond its upper tenth they would end
at 1 / (n + 1), so there the tail is exponential in the log-odds of the unexplained fraction. A combined score may
have any form, since it is compared with the reference inputs' own scores, each computed as if that input were not
in the reference.

Index legend: N inputs, B layers, n reference inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from whence.engine.options import Option

Combination = Literal["auto", "gauss", "fisher", "smallest", "cauchy"]
Scale = Callable[[Tensor], Tensor]
TAIL = 0.1  # fraction of the reference that the tail is fitted to
ROUNDING = 1e-6  # relative difference of unexplained below which values are ties
TIE = 1e-5  # the same for log-odds
MOST_EVIDENCE = 600.0  # exp(−600) is still a double
FOLDS = 10
SHRINKAGE = 0.2  # smallest shrinkage of correlations; more if there are few inputs per layer
STEPS, LOOKED_AT, CHANGE = 300, 5, 1e-10  # of an optimisation: at most so many, and when it ends


class Combine(Option):
    """How layers become one score."""

    AUTO = "auto"
    GAUSS = "gauss"
    FISHER = "fisher"
    SMALLEST = "smallest"
    CAUCHY = "cauchy"

    @classmethod
    def asked(cls, combine: str) -> Combine:
        chosen = cls.parse(combine, "combine")
        return cls.GAUSS if chosen is cls.AUTO else chosen


def conformal(reference: Tensor, values: Tensor) -> Tensor:
    """P-values (1 + #{reference ≥ value}) / (n + 1), from [n, B] and [N, B] → [N, B] (Bates et al. 2023)."""
    return (1 + _at_least(reference, values)).double() / (len(reference) + 1)


def combined(reference: Tensor, values: Tensor, how: Combine, scale: Scale | None = None) -> tuple[Tensor, Tensor]:
    """One score [N] for the values of all layers [N, B], higher where they are more unusual, and its p-value [N]."""
    own, scores = reference_scores(reference, values, how, scale)
    return scores, p_value_among(own, scores)


def p_value_among(own: Tensor, scores: Tensor) -> Tensor:
    """The p-values [N] of scores [N] among those of the reference [n]."""
    return conformal(own.unsqueeze(1), scores.unsqueeze(1)).squeeze(1)


def reference_scores(
    reference: Tensor, values: Tensor, how: Combine, scale: Scale | None = None
) -> tuple[Tensor, Tensor]:
    """Scores of the reference inputs [n], each computed without itself, and of the values [N].

    ``scale``: in which tails are exponential; by default the log-odds of fractions.
    """
    tail = Tail.of(reference, scale or log_odds)
    return COMBINATIONS[how](tail.evidence_of_reference(), tail.evidence(values))


def _at_least(reference: Tensor, values: Tensor) -> Tensor:
    """Number of reference values that are at least as large, up to rounding, [N, B]."""
    ordered = reference.T.contiguous().sort(1).values
    below = torch.searchsorted(ordered, (values - ROUNDING * values.abs()).T.contiguous())
    return len(reference) - below.T


# Evidence


def unchanged(values: Tensor) -> Tensor:
    """The scale of scores that have no upper bound."""
    return values


def log_odds(unexplained: Tensor) -> Tensor:
    """log u / (1 − u), clamped to what float64 can distinguish from 0 and 1."""
    return torch.logit(unexplained.double().clamp(1e-300, 1 - 1e-15))


@dataclass(frozen=True)
class Tail:
    """Ranks, and beyond ``start`` an exponential tail with the mean excess of the k reference inputs above it."""

    reference: Tensor  # [n, B]
    top: Tensor  # [k + 2, B], the largest log-odds
    scale: Scale = log_odds

    @classmethod
    def of(cls, reference: Tensor, scale: Scale = log_odds) -> Tail:
        count = max(1, min(int(TAIL * len(reference)), len(reference) - 2))
        ordered = scale(reference).sort(0, descending=True).values
        return cls(reference, torch.cat([ordered, ordered[-1:]])[: count + 2], scale)

    @property
    def count(self) -> int:
        """k."""
        return len(self.top) - 2

    def evidence(self, values: Tensor, p: Tensor | None = None) -> Tensor:
        """−log p_b, [N, B]; from p-values that are known already, if they are given."""
        start = self.top[-2]
        mean = (self.top[:-2] - start).mean(0)
        p = conformal(self.reference, values) if p is None else p
        return self._joined(p, self.scale(values) - start, mean)

    def evidence_of_reference(self) -> Tensor:
        """The same of each reference input, with ranks, start and mean excess of the others, [n, B]."""
        start = self.top[-1]
        over = self.scale(self.reference) - start
        mean = ((self.top[:-1] - start).sum(0) - over) / self.count
        p = _at_least(self.reference, self.reference).double() / (len(self.reference) + 1)
        return self._joined(p, over, mean)

    def _joined(self, p: Tensor, over: Tensor, mean: Tensor) -> Tensor:
        size = len(self.reference) + 1
        bulk = -p.clamp(max=1 - 0.5 / size).log()
        beyond = over / mean.clamp(min=TIE) - math.log((self.count + 1) / size)
        return torch.where(over > TIE, beyond, bulk).clamp(max=MOST_EVIDENCE)


# Combinations: evidence of the reference inputs [n, B] and of the others [N, B] → scores [n], [N]


def fisher(evidence: Tensor) -> Tensor:
    """−2 Σ log p_b (Fisher 1932)."""
    return 2 * evidence.sum(1)


def smallest(evidence: Tensor) -> Tensor:
    """−log of the smallest p_b (Tippett 1931)."""
    return evidence.amax(1)


def cauchy(evidence: Tensor) -> Tensor:
    """log of the mean of cot(π p_b / 2) (Liu, Meng & Pillai 2025).

    Only the right half of Cauchy's distribution: with all of it (Liu & Xie 2020) one p_b near 1 outweighs any other.
    """
    p = torch.exp(-evidence)
    return (1 / (p * (math.pi / 2)).tan()).mean(1).log()


def gauss(own: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Likelihood ratio of "some layers are shifted up" against "none is", for normal scores z ~ N(θ, R), θ ≥ 0.

    max_θ zᵀR⁻¹z − (z − θ)ᵀR⁻¹(z − θ) (Kudô 1963), R the correlation in the reference. Evidence shared by layers
    counts once; if layers usually agree, one that is high while the others are low counts more than its p-value.
    For each reference input R comes from the other folds. If nothing is shifted up, the sum of e_b gives the order.
    """
    z, new = (-torch.special.ndtri(torch.exp(-e)) for e in (own, given))  # Φ⁻¹(1 − p)
    size, width = z.shape
    shrinkage = max(SHRINKAGE, width / (size + width))
    folds = min(FOLDS, size)
    fold = torch.arange(size) % folds
    others = torch.stack([_correlation(z[fold != k], shrinkage) for k in range(folds)])
    by_fold = z.new_zeros(-(-size // folds) * folds, width)
    by_fold[:size] = z
    ratio = shifted_up(by_fold.unflatten(0, (-1, folds)).transpose(0, 1), others).T.flatten()[:size]
    return _ordered(ratio, own), _ordered(shifted_up(new, _correlation(z, shrinkage)), given)


def _ordered(ratio: Tensor, evidence: Tensor) -> Tensor:
    """The ratio, or if it vanishes a number in (−1, 0) that increases with the evidence."""
    return torch.where(ratio > 1e-8, ratio, -1 / (1 + evidence.sum(1)))


def shifted_up(z: Tensor, correlation: Tensor) -> Tensor:
    """max over θ ≥ 0 of zᵀPz − (z − θ)ᵀP(z − θ), P = R⁻¹, for z [..., N, B]; by FISTA (Beck & Teboulle 2009)."""
    values, vectors = torch.linalg.eigh(correlation)
    precision = (vectors / values.unsqueeze(-2)) @ vectors.mT
    downhill = values[..., :1, None] * precision  # with the longest step that is sure to converge
    shift = ahead = z.clamp(min=0)
    momentum = 1.0
    for step in range(STEPS):
        after = (ahead + (z - ahead) @ downhill).clamp(min=0)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        change = after - shift
        ahead = torch.add(after, change, alpha=(momentum - 1) / following)
        shift, momentum = after, following
        if step % LOOKED_AT == 0 and not bool((change.abs() >= CHANGE).any()):
            break
    rest = z - shift
    return (z @ precision * z).sum(-1) - (rest @ precision * rest).sum(-1)


def _correlation(z: Tensor, shrinkage: float) -> Tensor:
    """The correlation of the columns of z, shrunk towards the identity."""
    centred = z - z.mean(0)
    scaled = centred / centred.square().mean(0).sqrt().clamp(min=1e-9)
    return ((1 - shrinkage) * (scaled.mT @ scaled / len(z))).fill_diagonal_(1)


COMBINATIONS: dict[Combine, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    Combine.GAUSS: gauss,
    Combine.FISHER: lambda own, given: (fisher(own), fisher(given)),
    Combine.SMALLEST: lambda own, given: (smallest(own), smallest(given)),
    Combine.CAUCHY: lambda own, given: (cauchy(own), cauchy(given)),
}
