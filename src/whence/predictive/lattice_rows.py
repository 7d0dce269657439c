"""J Σ Jᵀ of rows for any prior, from a few numbers for each input.

V_kl(δ) = Σ_p J_kp J_lp / (s λ_p + δ) depends on p through λ_p alone, and 1 / (s λ + δ) as a function of log λ is
analytic in a strip of half-width π. So each λ_p is shared out among neighbouring points of a lattice by interpolation:

    V_kl(δ) ≈ Σ_m H_mkl / (s λ_m + δ),    H_mkl = Σ_p ℓ_m(log λ_p) J_kp J_lp

H is computed once, from the rows sorted by λ; a new prior needs no row. It is some hundred times smaller than the rows.

Index legend: N examples, K outputs (rows of J), P weights, M lattice points, R priors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.linalg.gaussian import BlockGaussian
from whence.linalg.spectral import DiagonalSpectral
from whence.predictive.separable import STEP, TAPS, Pairs, Priors, at_once, lagrange

FEW_OUTPUTS = 32  # number of outputs up to which the products of all pairs are formed
TOGETHER = 512  # eigenvalues in one product
ZERO = 1e-16  # of the largest eigenvalue: below it an eigenvalue counts as 0


@dataclass(frozen=True)
class LatticeRows:
    """H of some inputs; stands for their rows under every prior."""

    sums: Tensor  # H of each pair k ≤ l, [N, K (K + 1) / 2, 1 + M]; the first is of λ = 0
    lattice: EigenvalueLattice
    outside: Tensor | None = None  # Gram matrix outside an incomplete basis, [N, K, K]

    @torch.no_grad()
    def weighted_priors(self, priors: Priors) -> Tensor:
        """J Σ Jᵀ under R Gaussians that differ only in their prior precision, [R, N, K, K]."""
        deltas = priors.deltas.unsqueeze(1)  # [R, 1]
        weights = (1 / (priors.first.scale * self.lattice.points + deltas)).to(self.sums.dtype)  # [R, 1 + M]
        _, place = priors.pairs(self.lattice.columns(self.sums))
        found = (self.sums @ weights.mT).movedim(2, 0)[:, :, place]
        if self.outside is None:
            return found
        return found + self.outside / priors.deltas.to(found.dtype)[:, None, None, None]


class EigenvalueLattice:
    """Equally spaced log λ, and the weights that share the eigenvalues of a block out among them."""

    def __init__(self, gaussian: BlockGaussian) -> None:
        spectral = gaussian.spectral
        values = spectral.values.flatten().double()
        least = max(float(values.max()) * ZERO, torch.finfo(torch.float64).tiny)
        self.order = values.argsort()
        ordered = values[self.order]
        self.zeros = int((ordered <= least).sum())
        logs = ordered[self.zeros :].log()
        first = float(logs[0]) if len(logs) else 0.0
        place = (logs - first) / STEP + TAPS // 2 - 1  # the lattice reaches beyond the eigenvalues
        base = place.floor().long() - TAPS // 2 + 1
        count = int(base[-1]) + TAPS if len(logs) else 0
        steps = torch.arange(count, dtype=torch.float64, device=values.device) - (TAPS // 2 - 1)
        self.points = torch.cat([values.new_zeros(1), (first + STEP * steps).exp()])  # λ_m, [1 + M]
        taps = lagrange(place - base)  # ℓ, [P', TAPS]
        inverse = spectral.inverse if isinstance(spectral, DiagonalSpectral) else None
        scale = torch.ones_like(values) if inverse is None else inverse.double()
        scale = scale[self.order]  # rows that are not rotated have D⁻¹ in their weights
        self.zero_weights = scale[: self.zeros].to(spectral.values.dtype)
        taps = (taps * scale[self.zeros :, None]).to(spectral.values.dtype)
        self.runs = list(self._runs(base, taps))
        self.pairs = Pairs(values.device)

    @classmethod
    def applies(cls, gaussian: BlockGaussian, outputs: int) -> bool:
        """In single precision, which interpolation does not make worse, and without negative eigenvalues."""
        values = gaussian.spectral.values
        able = gaussian.factored_size is None and outputs <= FEW_OUTPUTS and values.dtype == torch.float32
        return able and bool((values >= 0).all())

    @staticmethod
    def _runs(base: Tensor, taps: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Consecutive eigenvalues, the lattice points that they are shared out among, and the weights [p, m]."""
        for start in range(0, len(base), TOGETHER):
            which = slice(start, min(start + TOGETHER, len(base)))
            low, high = int(base[which.start]), int(base[which.stop - 1]) + TAPS
            place = (base[which] - low).unsqueeze(1) + torch.arange(TAPS, device=base.device)
            spread = taps.new_zeros(which.stop - which.start, high - low).scatter_(1, place, taps[which])
            yield which, slice(1 + low, 1 + high), spread

    def columns(self, sums: Tensor) -> int:
        """K from the number of pairs."""
        return int(((8 * sums.shape[1] + 1) ** 0.5 - 1) / 2 + 0.5)

    @torch.no_grad()
    def of(self, rows: Tensor, outside: Tensor | None) -> LatticeRows:
        """The sums of rows [N, K, P]."""
        size, columns, _ = rows.shape
        upper, _ = self.pairs(columns)
        found = rows.new_zeros(size, upper.shape[1], len(self.points))
        zeros, others = rows[..., self.order[: self.zeros]], rows[..., self.order[self.zeros :]]
        found[..., 0] = ((zeros * self.zero_weights) @ zeros.mT)[:, upper[0], upper[1]]
        step = max(1, at_once(rows) // (TOGETHER * upper.shape[1] * rows.element_size()))
        for start in range(0, size, step):
            some = slice(start, start + step)
            for which, points, taps in self.runs:
                part = others[some, :, which]
                found[some, :, points] += (part[:, upper[0]] * part[:, upper[1]]) @ taps
        return LatticeRows(found, self, outside)
