"""From what each layer says of an input to one score, and the reference's own scores to hold it against.

Every layer gives evidence e_b = −log p_b. Ranks within the reference give p_b; beyond its upper tenth they would end
at 1 / (n + 1), so there the tail is taken as exponential in the log-odds of what is unexplained. Scores may be of any
form, since they are held against the reference's own, each computed as if that input were not among the reference.

Index legend: N inputs, B layers, n reference inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Combination = Literal["auto", "gauss", "fisher", "smallest", "cauchy"]
COMBINATIONS = ("auto", "gauss", "fisher", "smallest", "cauchy")
DEFAULT = "gauss"

TAIL = 0.1  # part of the reference that the tail is fitted to
ROUNDING = 1e-6  # relative, of what is unexplained; rounding is no novelty
TIE = 1e-5  # of its log-odds
MOST_EVIDENCE = 600.0  # exp(−600) is still a double
FOLDS = 10
SHRINKAGE = 0.2  # of correlations, at least; more where inputs are few for so many layers
STEPS = 300


def ranks(reference: Tensor, values: Tensor) -> Tensor:
    """Conformal p-values (1 + #{reference ≥ value}) / (n + 1), [N, B] (Bates et al. 2023)."""
    return (1 + _at_least(reference, values)).double() / (len(reference) + 1)


def overall(own: Tensor, scores: Tensor) -> Tensor:
    """The same of combined scores [n] and [N]."""
    return ranks(own.unsqueeze(1), scores.unsqueeze(1)).squeeze(1)


def combined(reference: Tensor, values: Tensor, how: str) -> tuple[Tensor, Tensor]:
    """Scores of the reference inputs [n], each without itself, and of the values [N]; higher is more novel."""
    how = DEFAULT if how == "auto" else how
    tail = _Tail.of(reference)
    own, given = tail.evidence_of_reference(), tail.evidence(values)
    if how == "gauss":
        return _gauss(own, given)
    score = SCORES[how]
    return score(own), score(given)


def fisher(evidence: Tensor) -> Tensor:
    """−2 Σ log p_b (Fisher 1932)."""
    return 2 * evidence.sum(1)


def smallest(evidence: Tensor) -> Tensor:
    """−log of the smallest p_b (Tippett 1931)."""
    return evidence.amax(1)


def cauchy(evidence: Tensor) -> Tensor:
    """log of the mean of cot(π p_b / 2) (Liu, Meng & Pillai 2025).

    The right half of Cauchy's distribution only: with all of it (Liu & Xie 2020) one p_b near 1 outweighs any other.
    """
    p = torch.exp(-evidence)
    return (1 / (p * (math.pi / 2)).tan()).mean(1).log()


SCORES: dict[str, Callable[[Tensor], Tensor]] = {"fisher": fisher, "smallest": smallest, "cauchy": cauchy}


def _at_least(reference: Tensor, values: Tensor) -> Tensor:
    """How many of the reference are as large, but for rounding, [N, B]."""
    ordered = reference.T.contiguous().sort(1).values
    below = torch.searchsorted(ordered, (values - ROUNDING * values.abs()).T.contiguous())
    return len(reference) - below.T


def log_odds(unexplained: Tensor) -> Tensor:
    """log u / (1 − u), within what a double can tell from 0 and 1."""
    return torch.logit(unexplained.double().clamp(1e-300, 1 - 1e-15))


@dataclass(frozen=True)
class _Tail:
    """Ranks, and beyond ``start`` an exponential tail with the mean excess of the k reference inputs above it."""

    reference: Tensor  # [n, B]
    top: Tensor  # [k + 2, B], the largest log-odds

    @classmethod
    def of(cls, reference: Tensor) -> _Tail:
        count = max(1, min(int(TAIL * len(reference)), len(reference) - 2))
        ordered = log_odds(reference).sort(0, descending=True).values
        return cls(reference, torch.cat([ordered, ordered[-1:]])[: count + 2])

    @property
    def count(self) -> int:
        """k."""
        return len(self.top) - 2

    def evidence(self, values: Tensor) -> Tensor:
        """−log p_b, [N, B]."""
        start = self.top[-2]
        mean = (self.top[:-2] - start).mean(0)
        return self._joined(ranks(self.reference, values), log_odds(values) - start, mean)

    def evidence_of_reference(self) -> Tensor:
        """The same of each reference input, with ranks, start and mean excess of the others, [n, B]."""
        start = self.top[-1]
        over = log_odds(self.reference) - start
        mean = ((self.top[:-1] - start).sum(0) - over) / self.count
        p = _at_least(self.reference, self.reference).double() / (len(self.reference) + 1)
        return self._joined(p, over, mean)

    def _joined(self, p: Tensor, over: Tensor, mean: Tensor) -> Tensor:
        size = len(self.reference) + 1
        bulk = -p.clamp(max=1 - 0.5 / size).log()
        beyond = over / mean.clamp(min=TIE) - math.log((self.count + 1) / size)
        return torch.where(over > TIE, beyond, bulk).clamp(max=MOST_EVIDENCE)


def _gauss(own: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Likelihood ratio of "some layers are shifted up" against "none is", for normal scores z ~ N(θ, R), θ ≥ 0.

    max_θ zᵀR⁻¹z − (z − θ)ᵀR⁻¹(z − θ) (Kudô 1963), R the correlation in the reference. What several layers say in unison
    counts once; where layers usually agree, one that is high while the others are low counts for more than its p-value.
    For each reference input R comes from the other folds. Where nothing is shifted up, the sum of e_b gives the order.
    """
    z, new = _normal(own), _normal(given)
    shrinkage = max(SHRINKAGE, z.shape[1] / (len(z) + z.shape[1]))
    ratio = torch.empty(len(z), dtype=z.dtype)
    fold = torch.arange(len(z)) % FOLDS
    for k in range(FOLDS):
        mine = fold == k
        if bool(mine.any()):
            ratio[mine] = shifted_up(z[mine], _correlation(z[~mine], shrinkage))
    return _ordered(ratio, own), _ordered(shifted_up(new, _correlation(z, shrinkage)), given)


def _ordered(ratio: Tensor, evidence: Tensor) -> Tensor:
    """The ratio; where it vanishes a number in (−1, 0) that rises with the evidence."""
    return torch.where(ratio > 1e-8, ratio, -1 / (1 + evidence.sum(1)))


def shifted_up(z: Tensor, correlation: Tensor) -> Tensor:
    """max over θ ≥ 0 of zᵀPz − (z − θ)ᵀP(z − θ), P = R⁻¹, [N]; by FISTA (Beck & Teboulle 2009)."""
    values, vectors = torch.linalg.eigh(correlation)
    precision = (vectors / values) @ vectors.mT
    shift = ahead = z.clamp(min=0)
    momentum = 1.0
    for _ in range(STEPS):
        moved = (ahead + values[0] * (z - ahead) @ precision).clamp(min=0)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = moved + (momentum - 1) / following * (moved - shift)
        change = float((moved - shift).abs().amax()) if len(z) else 0.0
        shift, momentum = moved, following
        if change < 1e-10:
            break
    rest = z - shift
    return (z @ precision * z).sum(1) - (rest @ precision * rest).sum(1)


def _normal(evidence: Tensor) -> Tensor:
    """Φ⁻¹(1 − p)."""
    return -torch.special.ndtri(torch.exp(-evidence))


def _correlation(z: Tensor, shrinkage: float) -> Tensor:
    """Of the columns of z, drawn towards the identity."""
    centred = z - z.mean(0)
    scaled = centred / centred.square().mean(0).sqrt().clamp(min=1e-9)
    return ((1 - shrinkage) * (scaled.mT @ scaled / len(z))).fill_diagonal_(1)
