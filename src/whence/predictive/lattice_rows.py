"""J Σ Jᵀ of rows for any prior, from a few numbers for each input.

V_kl(δ) = Σ_p J_kp J_lp / (s λ_p + δ) depends on p through λ_p alone, and 1 / (s λ + δ) as a function of log λ is
analytic in a strip of half-width π. So each λ_p is shared out among neighbouring points of a lattice by interpolation:

    V_kl(δ) ≈ Σ_m H_mkl / (s λ_m + δ),    H_mkl = Σ_p ℓ_m(log λ_p) J_kp J_lp

H is computed once, from the rows sorted by λ; a new prior needs no row. It is some hundred times smaller than the rows.

Index legend: N examples, K outputs (rows of J), P weights, M lattice points, R priors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from whence.linalg import gram_kernel
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.spectral import DiagonalSpectral
from whence.predictive.separable import STEP, TAPS, Pairs, Priors, at_once, lagrange

FEW_OUTPUTS = 32  # number of outputs up to which the products of all pairs are formed
TOGETHER = 512  # eigenvalues in one product
FINER, IN_CHUNK = 32, 256  # chunks of eigenvalues in a step of the lattice, and how many a chunk has at most
ZERO = 1e-16  # of the largest eigenvalue: below it an eigenvalue counts as 0


@dataclass(frozen=True)
class LatticeRows:
    """H of some inputs; stands for their rows under every prior."""

    sums: Tensor  # H of each pair k ≤ l, [N, K (K + 1) / 2, 1 + M]; the first is of λ = 0
    lattice: EigenvalueLattice
    outside: Tensor | None = None  # Gram matrix outside an incomplete basis, [N, K, K]

    def extended(self, others: Sequence[LatticeRows]) -> LatticeRows:
        """Of the inputs of ``others`` too."""
        every = [self, *others]
        outside = None if self.outside is None else torch.cat([o.outside for o in every])  # type: ignore[misc]
        return replace(self, sums=torch.cat([o.sums for o in every]), outside=outside)

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
        self.steps = (logs - first) / STEP  # from the smallest eigenvalue, [P']
        self.count = int(self.steps[-1]) + TAPS + 1 if len(logs) else 0  # the lattice reaches beyond the eigenvalues
        places = torch.arange(self.count, dtype=torch.float64, device=values.device) - (TAPS // 2 - 1)
        self.points = torch.cat([values.new_zeros(1), (first + STEP * places).exp()])  # λ_m, [1 + M]
        self.dtype = spectral.values.dtype
        inverse = spectral.inverse if isinstance(spectral, DiagonalSpectral) else None
        self.scale = None if inverse is None else inverse.double()  # of rows that are not rotated: D⁻¹
        self.pairs = Pairs(values.device)

    def taps(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """For places in the lattice the first point of the interpolation, and its weights [P', TAPS]."""
        place = steps + TAPS // 2 - 1
        base = place.floor().long() - TAPS // 2 + 1
        return base, lagrange(place - base)

    @classmethod
    def applies(cls, gaussian: BlockGaussian, outputs: int) -> bool:
        """In single precision, which interpolation does not make worse, and without negative eigenvalues."""
        values = gaussian.spectral.values
        able = gaussian.factored_size is None and outputs <= FEW_OUTPUTS and values.dtype == torch.float32
        return able and bool((values >= 0).all())

    @cached_property
    def runs(self) -> list[tuple[slice, slice, Tensor]]:
        """Consecutive eigenvalues, the lattice points that they are shared out among, and the weights [p, m]."""
        base, taps = self.taps(self.steps)
        taps = taps if self.scale is None else taps * self.scale[self.order[self.zeros :], None]
        taps = taps.to(self.dtype)
        found = []
        for start in range(0, len(base), TOGETHER):
            which = slice(start, min(start + TOGETHER, len(base)))
            low, high = int(base[which.start]), int(base[which.stop - 1]) + TAPS
            place = (base[which] - low).unsqueeze(1) + torch.arange(TAPS, device=base.device)
            spread = taps.new_zeros(which.stop - which.start, high - low).scatter_(1, place, taps[which])
            found.append((which, slice(1 + low, 1 + high), spread))
        return found

    @cached_property
    def chunks(self) -> EigenvalueChunks:
        return EigenvalueChunks(self)

    def columns(self, sums: Tensor) -> int:
        """K from the number of pairs."""
        return int(((8 * sums.shape[1] + 1) ** 0.5 - 1) / 2 + 0.5)

    @torch.no_grad()
    def of(self, rows: Tensor, outside: Tensor | None) -> LatticeRows:
        """The sums of rows [N, K, P]."""
        if gram_kernel.applies(rows):
            return LatticeRows(self.chunks.sums(rows), self, outside)
        size, columns, _ = rows.shape
        upper, _ = self.pairs(columns)
        found = rows.new_zeros(size, upper.shape[1], len(self.points))
        zeros, others = rows[..., self.order[: self.zeros]], rows[..., self.order[self.zeros :]]
        weighted = zeros if self.scale is None else zeros * self.scale[self.order[: self.zeros]].to(self.dtype)
        found[..., 0] = (weighted @ zeros.mT)[:, upper[0], upper[1]]
        step = max(1, at_once(rows) // (TOGETHER * upper.shape[1] * rows.element_size()))
        for start in range(0, size, step):
            some = slice(start, start + step)
            for which, points, taps in self.runs:
                part = others[some, :, which]
                found[some, :, points] += (part[:, upper[0]] * part[:, upper[1]]) @ taps
        return LatticeRows(found, self, outside)


class EigenvalueChunks:
    """The same in two steps, for a GPU: eigenvalues in chunks of nearly equal ones, by the Gram matrix of each chunk.

    An eigenvalue is shared out linearly between the ends of its chunk, STEP / FINER apart in log λ (an error of at most
    2e-5 of the variance), and each end among points of the lattice.
    """

    def __init__(self, lattice: EigenvalueLattice) -> None:
        self.lattice = lattice
        device, zeros = lattice.order.device, lattice.zeros
        fine = lattice.steps * FINER
        bins = torch.cat([fine.new_full((zeros,), -1), fine.floor()]).long()  # of each eigenvalue, in order; -1 for 0
        inside = torch.cat([fine.new_zeros(zeros), fine - fine.floor()])
        each, which, counts = torch.unique_consecutive(bins, return_inverse=True, return_counts=True)
        needed = (counts + IN_CHUNK - 1) // IN_CHUNK
        place = torch.arange(len(bins), device=device) - (counts.cumsum(0) - counts)[which]  # in its bin
        chunk, slot = (needed.cumsum(0) - needed)[which] + place // IN_CHUNK, place % IN_CHUNK
        index = torch.full((int(needed.sum()), IN_CHUNK), -1, dtype=torch.int32, device=device)
        index[chunk, slot] = lattice.order.int()
        weights = torch.zeros(index.shape, dtype=lattice.dtype, device=device)
        weights[chunk, slot] = inside.to(lattice.dtype)
        self.chunks = gram_kernel.Chunks(index, weights)
        bin_of_chunk = each.repeat_interleave(needed)
        self.low, self.high = (self._to_points(bin_of_chunk, end) for end in (0, 1))  # [chunks, 1 + M] each

    def _to_points(self, bins: Tensor, end: int) -> Tensor:
        base, taps = self.lattice.taps((bins + end).clamp(min=0).double() / FINER)
        found = taps.new_zeros(len(bins), 1 + self.lattice.count)
        found.scatter_(1, 1 + base.unsqueeze(1) + torch.arange(TAPS, device=bins.device), taps)
        found[bins < 0] = 0.0
        found[bins < 0, 0] = 1.0
        return found.to(self.lattice.dtype)

    def sums(self, rows: Tensor) -> Tensor:
        """H of rows [N, K, P], [N, K (K + 1) / 2, 1 + M]."""
        if self.lattice.scale is not None:
            rows = rows * self.lattice.scale.sqrt().to(rows.dtype)
        upper, _ = self.lattice.pairs(rows.shape[1])
        each = 4 * len(self.low) * rows.shape[1] ** 2 * rows.element_size()
        return torch.cat([self._sums(some, upper) for some in rows.split(max(1, at_once(rows) // each))])

    def _sums(self, rows: Tensor, upper: Tensor) -> Tensor:
        weighted, plain = (g[..., upper[0], upper[1]].mT for g in gram_kernel.chunk_grams(rows, self.chunks))
        return (plain - weighted) @ self.low + weighted @ self.high  # [N, pairs, chunks] @ [chunks, 1 + M]
