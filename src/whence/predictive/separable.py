"""J Σ Jᵀ for many priors at once.

V_kl = Σ_p w_p J_kp J_lp is one matrix product of row products with the weights of all priors. For a Linear layer
neither rows nor weights are formed. With Kronecker eigenvalues the weights are 1 / (s γ_o α_d + δ), so that
Σ_d ã_d² / (s γ_o α_d + δ) = h(δ / (s γ_o)) / δ with h(t) = Σ_d ã_d² t / (α_d + t), a function of one variable per
input. As a function of log t it is analytic in a strip of half-width π, so a few values on a fine lattice give all
others, and a new prior needs no product over d.

Index legend: N examples, K outputs (rows of J), P weights, O outputs and D inputs of a layer, R priors, M points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from whence.engine.memory import sizes
from whence.linalg.gaussian import BlockGaussian
from whence.linalg.spectral import DiagonalSpectral

TAPS = 8  # points of the interpolating polynomial
STEP = math.log(10) / 6  # spacing of the lattice: error 1e-7 of the largest value
ABOVE = 1e8  # h is constant to rounding above this multiple of the largest α
BLOCK = (16, 256)  # priors and outputs interpolated together, from neighbouring lattice points
SPREAD = 128 * 2**20  # bytes of an interpolation matrix for all priors and outputs, on a GPU


class Priors:
    """Gaussians over one block that differ only in prior precision, and values that all inputs share."""

    def __init__(self, gaussians: Sequence[BlockGaussian]) -> None:
        self.gaussians, self.first = gaussians, gaussians[0]
        values = self.first.spectral.values
        self.device, self.dtype = values.device, values.dtype
        self._lattices: dict[int, Lattice] = {}

    def __len__(self) -> int:
        return len(self.gaussians)

    @cached_property
    def deltas(self) -> Tensor:
        """[R], in float64; NaN where the precision would not be positive definite."""
        lowest = self.first.scale * self.first.spectral.lowest
        known = [g.delta if lowest + g.delta > 0 else math.nan for g in self.gaussians]
        return torch.tensor(known, dtype=torch.float64).to(self.device, non_blocking=True)

    def weights(self, which: slice) -> Tensor:
        """1 / (s λ + δ) for some of the eigenvalues, with D⁻¹ if rows are not rotated, [R, p]."""
        spectral = self.first.spectral
        values = spectral.values.flatten()[which]
        found = 1 / (self.first.scale * values + self.deltas.to(self.dtype).unsqueeze(1))
        inverse = spectral.inverse if isinstance(spectral, DiagonalSpectral) else None
        return found if inverse is None else found * inverse[which]

    def lattice(self, pair: int, gammas: Tensor, alphas: Tensor) -> Lattice:
        """The lattice of one Kronecker pair."""
        if pair not in self._lattices:
            self._lattices[pair] = Lattice(gammas, alphas, self.first.scale, [g.delta for g in self.gaussians])
        return self._lattices[pair]

    @cached_property
    def pairs(self) -> Pairs:
        return Pairs(self.device)


class Pairs:
    """Pairs k ≤ l of outputs, and their positions in a symmetric matrix."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, columns: int) -> tuple[Tensor, Tensor]:
        """[2, K (K + 1) / 2], and the index of the pair at each position, [K, K]."""
        if columns not in self._known:
            upper = torch.triu_indices(columns, columns)
            place = torch.empty(columns, columns, dtype=torch.long)
            place[upper[0], upper[1]] = place[upper[1], upper[0]] = torch.arange(upper.shape[1])
            upper, place = (t.to(self.device, non_blocking=True) for t in (upper, place))
            self._known[columns] = upper, place
        return self._known[columns]


def weighted_rows(rows: Tensor, priors: Priors) -> Tensor:
    """J diag(1 / (s λ + δ)) Jᵀ for rows [N, K, P] at every δ: [R, N, K, K]."""
    size, columns, weights = rows.shape
    upper, place = priors.pairs(columns)
    found = rows.new_zeros(size * upper.shape[1], len(priors))
    step = max(1, at_once(rows) // max(len(found) * rows.element_size(), 1))
    for start in range(0, weights, step):
        which = slice(start, start + step)
        some = rows[..., which]
        found.addmm_((some[:, upper[0]] * some[:, upper[1]]).flatten(0, 1), priors.weights(which).mT)
    return found.unflatten(0, (size, -1)).movedim(2, 0)[:, :, place]


def weighted_linear(a2: Tensor, g: Tensor, lattice: Lattice, pairs: Pairs) -> Tensor:
    """g̃ diag(Σ_d ã_d² / (s γ α_d + δ)) g̃ᵀ for a2 [N, D] and g [N, K, O] at every δ: [R, N, K, K]."""
    size, columns, outputs = g.shape
    upper, place = pairs(columns)
    priors = lattice.shape[0]
    found = g.new_empty(priors, size, upper.shape[1])
    table = lattice.table(a2)
    step = max(1, at_once(g) // ((upper.shape[1] + 2 * priors) * outputs * g.element_size()))
    for start in range(0, size, step):
        which = slice(start, start + step)
        products = g[which, upper[0]] * g[which, upper[1]]  # [n, K (K + 1) / 2, O]
        found[:, which] = (products @ lattice.weights(table[which]).mT).movedim(2, 0)
    return found[:, :, place]


def at_once(like: Tensor) -> int:
    return sizes().priors if like.device.type == "cpu" else sizes().cuda_priors


class Lattice:
    """Equally spaced log t, and the interpolation of h from them to t = δ / (s γ) for the requested δ."""

    def __init__(
        self,
        gammas: Tensor,
        alphas: Tensor,
        scale: float,
        deltas: Sequence[float],
        block: tuple[int, int] = BLOCK,
    ) -> None:
        device, self.dtype = gammas.device, gammas.dtype
        alphas, gammas = alphas.double().clamp(min=0), gammas.double().clamp(min=0)
        most = math.log(max(float(alphas.max()), torch.finfo(torch.float64).tiny) * ABOVE)
        delta = torch.tensor(deltas, dtype=torch.float64).to(device, non_blocking=True).unsqueeze(1)
        wanted = (delta.log() - (scale * gammas).clamp(min=1e-300).log()).clamp(max=most)  # log t, [R, O]
        low, high = torch.stack(torch.aminmax(wanted)).tolist()
        first = low - TAPS * STEP
        count = int((high - first) / STEP) + 2 * TAPS
        points = first + STEP * torch.arange(count, dtype=torch.float64, device=device)
        self.kernel = torch.sigmoid(points - alphas.log().unsqueeze(1)).to(self.dtype)  # t / (α + t), [D, M]
        self.shape = tuple(wanted.shape)
        place = (wanted - first) / STEP
        self.base = place.floor().long() - TAPS // 2 + 1  # first lattice point of the interpolation, [R, O]
        self.taps = (lagrange(place - self.base) / delta.unsqueeze(-1)).to(self.dtype)  # [R, O, TAPS]
        self.blocks = list(self._blocks(*block)) if device.type == "cpu" else []
        small = self.base.numel() * count * self.kernel.element_size() <= SPREAD
        self.whole = self._interpolation_matrix(count) if device.type != "cpu" and small else None  # [M, R · O]

    def table(self, a2: Tensor) -> Tensor:
        """h on the lattice, for every example [N, M]."""
        return a2 @ self.kernel

    def weights(self, table: Tensor) -> Tensor:
        """Σ_d ã_d² / (s γ_o α_d + δ) from some examples' h [n, M], [n, R, O]."""
        if self.blocks:
            return self._by_products(table)
        return self._by_taps(table) if self.whole is None else (table @ self.whole).unflatten(1, self.shape)

    def _by_products(self, table: Tensor) -> Tensor:
        """Neighbouring priors and outputs by one small product, which fits the cache."""
        found = table.new_empty(len(table), *self.shape)
        for rs, some, points, taps in self.blocks:
            found[:, rs, some] = (table[:, points] @ taps).unflatten(1, (len(range(self.shape[0])[rs]), -1))
        return found

    def _by_taps(self, table: Tensor) -> Tensor:
        """All at once, one tap after another: few operations, for a matrix that would be too large."""
        found = table.new_zeros(len(table), *self.shape)
        for k in range(TAPS):
            found.addcmul_(table[:, self.base + k], self.taps[..., k])
        return found

    def _interpolation_matrix(self, count: int) -> Tensor:
        """The whole interpolation matrix: mostly zeros, but a product with it is fastest on a GPU."""
        index = self.base.flatten() + torch.arange(TAPS, device=self.base.device).unsqueeze(1)
        found = self.taps.new_zeros(count, index.shape[1])
        return found.scatter_add_(0, index, self.taps.flatten(0, 1).mT.contiguous())

    def _blocks(self, priors: int, outputs: int) -> Iterator[tuple[slice, slice, slice, Tensor]]:
        """Groups of priors and outputs, their lattice points, and the interpolation matrix, [M', R' · O']."""
        steps = torch.arange(TAPS, device=self.base.device)
        for r in range(0, self.shape[0], priors):
            for o in range(0, self.shape[1], outputs):
                rs, some = slice(r, r + priors), slice(o, o + outputs)
                low, high = torch.stack(torch.aminmax(self.base[rs, some])).tolist()
                index = (self.base[rs, some] - low).unsqueeze(-1) + steps
                spread = self.taps.new_zeros(len(index), high - low + TAPS, index.shape[1])
                spread.scatter_(1, index.movedim(2, 1), self.taps[rs, some].movedim(2, 1))
                yield rs, some, slice(low, high + TAPS), spread.movedim(1, 0).flatten(1)


def lagrange(x: Tensor) -> Tensor:
    """Lagrange weights of the values at 0, 1, …, TAPS − 1 for the polynomial at x: [..., TAPS]."""
    steps = torch.arange(TAPS, device=x.device, dtype=x.dtype)
    away = x.unsqueeze(-1) - steps
    one = torch.ones_like(away[..., :1])
    before = torch.cat([one, away[..., :-1].cumprod(-1)], -1)  # Π_{j < k} (x − j)
    after = torch.cat([one, away[..., 1:].flip(-1).cumprod(-1)], -1).flip(-1)  # Π_{j > k} (x − j)
    scale = [math.prod(k - j for j in range(TAPS) if j != k) for k in range(TAPS)]
    return before * after / x.new_tensor(scale)
