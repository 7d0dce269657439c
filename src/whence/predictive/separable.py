"""J Σ Jᵀ of a Linear layer for many priors at once.

With Kronecker eigenvalues the weights are 1 / (s γ_o α_d + δ), so that Σ_d ã_d² / (s γ_o α_d + δ) = h(δ / (s γ_o)) / δ
with h(t) = Σ_d ã_d² t / (α_d + t), a function of one variable for each input. As a function of log t it is analytic in
a strip of half-width π, so a few values on a fine lattice give all others: a new prior costs no product over d.

Index legend: N examples, K outputs (rows of J), O outputs, D inputs of the layer, R priors, M lattice points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

TAPS = 8  # points of the interpolating polynomial
STEP = math.log(10) / 6  # of the lattice: 1e-7 of the largest value
ABOVE = 1e8  # times the largest α: beyond, h is constant to rounding
PRIORS, OUTPUTS = 16, 256  # that are interpolated together: they need neighbouring lattice points
AT_ONCE = 8 * 2**20  # bytes of products of gradients that are held at a time on the CPU; they stay in the cache
CUDA_AT_ONCE = 512 * 2**20


def weigh_priors(
    a2: Tensor, g: Tensor, gammas: Tensor, alphas: Tensor, scale: float, deltas: Sequence[float]
) -> Tensor:
    """g̃ diag(Σ_d ã_d² / (s γ α_d + δ)) g̃ᵀ for a2 [N, D] and g [N, K, O] at every δ: [R, N, K, K]."""
    size, columns, outputs = g.shape
    upper = torch.triu_indices(columns, columns, device=g.device)
    found = g.new_empty(len(deltas), size, upper.shape[1])
    lattice = Lattice(a2, gammas, alphas, scale, deltas)
    each = (upper.shape[1] + 2 * len(deltas)) * outputs * g.element_size()
    step = max(1, (AT_ONCE if g.device.type == "cpu" else CUDA_AT_ONCE) // each)
    for start in range(0, size, step):
        which = slice(start, start + step)
        products = g[which, upper[0]] * g[which, upper[1]]  # [n, K (K + 1) / 2, O]
        found[:, which] = (products @ lattice.weights(which).mT).movedim(2, 0)
    place = torch.empty(columns, columns, dtype=torch.long, device=g.device)
    place[upper[0], upper[1]] = place[upper[1], upper[0]] = torch.arange(upper.shape[1], device=g.device)
    return found[:, :, place]


class Lattice:
    """h at equally spaced log t, for every example; t = δ / (s γ) for the δ that are asked for."""

    def __init__(self, a2: Tensor, gammas: Tensor, alphas: Tensor, scale: float, deltas: Sequence[float]) -> None:
        alphas, gammas = alphas.double().clamp(min=0), gammas.double().clamp(min=0)
        most = math.log(max(float(alphas.max()), torch.finfo(torch.float64).tiny) * ABOVE)
        delta = torch.tensor(deltas, dtype=torch.float64, device=a2.device).unsqueeze(1)
        wanted = (delta.log() - (scale * gammas).clamp(min=1e-300).log()).clamp(max=most)  # log t, [R, O]
        low, high = torch.stack(torch.aminmax(wanted)).tolist()
        first = low - TAPS * STEP
        count = int((high - first) / STEP) + 2 * TAPS
        points = first + STEP * torch.arange(count, dtype=torch.float64, device=a2.device)
        kernel = torch.sigmoid(points - alphas.log().unsqueeze(1))  # t / (α + t), [D, M]
        self.table = a2 @ kernel.to(a2.dtype)  # [N, M]
        self.shape = tuple(wanted.shape)
        place = (wanted - first) / STEP
        self.base = place.floor().long() - TAPS // 2 + 1  # the first lattice point that takes part, [R, O]
        self.taps = _lagrange(place - self.base) / delta.unsqueeze(-1)  # [R, O, TAPS]
        self.blocks = list(self._blocks()) if a2.device.type == "cpu" else []

    def weights(self, which: slice) -> Tensor:
        """Σ_d ã_d² / (s γ_o α_d + δ) of some examples, [n, R, O]."""
        table = self.table[which]
        return self._by_products(table) if self.blocks else self._by_taps(table)

    def _by_products(self, table: Tensor) -> Tensor:
        """Neighbouring priors and outputs by one small product: fast where the cache is."""
        found = table.new_empty(len(table), *self.shape)
        for rs, some, points, taps in self.blocks:
            found[:, rs, some] = (table[:, points] @ taps).unflatten(1, (len(range(self.shape[0])[rs]), -1))
        return found

    def _by_taps(self, table: Tensor) -> Tensor:
        """All at once, one tap after the other: few operations, which is what a GPU wants."""
        found = table.new_zeros(len(table), *self.shape)
        for k in range(TAPS):
            found.addcmul_(table[:, self.base + k], self.taps[..., k].to(table.dtype))
        return found

    def _blocks(self) -> Iterator[tuple[slice, slice, slice, Tensor]]:
        """Some priors and outputs, the lattice points they lie between, and what interpolates there, [M', R' · O']."""
        steps = torch.arange(TAPS, device=self.base.device)
        for r in range(0, self.shape[0], PRIORS):
            for o in range(0, self.shape[1], OUTPUTS):
                rs, some = slice(r, r + PRIORS), slice(o, o + OUTPUTS)
                low, high = torch.stack(torch.aminmax(self.base[rs, some])).tolist()
                index = (self.base[rs, some] - low).unsqueeze(-1) + steps
                spread = self.taps.new_zeros(len(index), high - low + TAPS, index.shape[1])
                spread.scatter_(1, index.movedim(2, 1), self.taps[rs, some].movedim(2, 1))
                yield rs, some, slice(low, high + TAPS), spread.movedim(1, 0).flatten(1).to(self.table.dtype)


def _lagrange(x: Tensor) -> Tensor:
    """Weights of the values at 0, 1, …, TAPS − 1 in the polynomial's value at x: [..., TAPS]."""
    steps = torch.arange(TAPS, device=x.device, dtype=x.dtype)
    away = x.unsqueeze(-1) - steps
    one = torch.ones_like(away[..., :1])
    before = torch.cat([one, away[..., :-1].cumprod(-1)], -1)  # Π_{j < k} (x − j)
    after = torch.cat([one, away[..., 1:].flip(-1).cumprod(-1)], -1).flip(-1)  # Π_{j > k} (x − j)
    scale = [math.prod(k - j for j in range(TAPS) if j != k) for k in range(TAPS)]
    return before * after / x.new_tensor(scale)
