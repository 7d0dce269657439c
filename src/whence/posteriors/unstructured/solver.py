"""Block conjugate gradients: many right-hand sides at once over a common Krylov space.

O'Leary's (1980) method, with directions made orthonormal before each product (Dubrulle 2001):
right-hand sides may become dependent, or converge before the others. Independent of networks.

Index legend: S right-hand sides, P unknowns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.errors import NotConverged

Linear = Callable[[Tensor], Tensor]  # [S, P] → [S, P]
PIECE = 2**18  # columns that are converted to float64 at a time
ROUNDING = 16  # residuals below this multiple of machine precision count as rounding
RESTARTS = 4


@dataclass(frozen=True)
class Preconditioner:
    """M^{-1/2} and M^{1/2} of a symmetric M that resembles the operator."""

    half: Linear
    whole: Linear


@dataclass(frozen=True)
class Solution:
    """x with (I + K) x ≈ c, and its accuracy."""

    x: Tensor  # [S, P]
    iterations: int
    residuals: Tensor  # ‖c − (I + K) x‖ / √g (or of rounding if larger), [S], computed again at the end
    energies: Tensor  # xᵀ K x of each, [S]; g is their mean
    converged: bool


@dataclass(frozen=True)
class _System:
    """(I + K) x = c, and its stopping criterion."""

    times: Linear
    c: Tensor
    tolerance: float
    rounding: float  # norm below which a residual is rounding

    def measure(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, float]:
        """‖residual‖ and xᵀ K x of each right-hand side, and the bound for the norms."""
        energies = dots(self.c - residual - x, x)
        limit = max(self.tolerance * max(float(energies.mean()), 0.0) ** 0.5, self.rounding)
        return dots(residual, residual).sqrt(), energies, limit


def solve(
    times: Linear,
    c: Tensor,
    tolerance: float,
    max_iterations: int,
    preconditioner: Preconditioner | None = None,
    report: Callable[[int, float], None] | None = None,
) -> Solution:
    """Solve (I + K) x = c for a positive semi-definite K = ``times``, all rows of c [S, P] together.

    It stops when every ‖residual‖ ≤ tolerance · √g with g = mean xᵀ K x. Since I + K ≥ I, the residual bounds the
    error e of x: eᵀ (I + K) e ≤ ‖residual‖², so also eᵀ K e ≤ tolerance² · g.
    """
    rounding = ROUNDING * torch.finfo(c.dtype).eps * float(dots(c, c).max().sqrt())
    system = _System(times, c, tolerance, rounding + torch.finfo(torch.float64).tiny)
    x, residual = torch.zeros_like(c), c
    done, best = 0, float("inf")
    for _ in range(RESTARTS):
        step, done = _run(system, x, residual, max_iterations, done, preconditioner, report)
        x = x + step
        residual = c - x - times(x)  # the recurrence drifts in float32
        norms, energies, limit = system.measure(x, residual)
        worst = float(norms.max())
        if not worst < float("inf"):
            raise NotConverged(f"the solution is not finite after {done} iterations; the network or its data overflow.")
        if worst <= limit or done >= max_iterations or worst > best / 2:
            break
        best = worst
    return Solution(x, done, norms * (tolerance / limit), energies, worst <= limit)


def _run(
    system: _System,
    start: Tensor,
    residual: Tensor,
    most: int,
    done: int,
    preconditioner: Preconditioner | None,
    report: Callable[[int, float], None] | None,
) -> tuple[Tensor, int]:
    """The correction to ``start``, and the iterations so far."""
    half, whole = (_identity, _identity) if preconditioner is None else (preconditioner.half, preconditioner.whole)
    r, found = half(residual), torch.zeros_like(residual)
    along = _orthonormal(r)
    while True:
        plain = half(along)
        moved = half(plain + system.times(plain))
        inverse = _inverse(inner(along, moved))
        ahead = (inverse @ inner(along, r)).mT.to(r.dtype)
        found, r = found + ahead @ along, r - ahead @ moved
        done += 1
        step = half(found)
        norms, _, limit = system.measure(start + step, whole(r))
        worst = float(norms.max())
        if report is not None:
            report(done, worst * system.tolerance / limit)
        if worst <= limit or done >= most or not worst < float("inf"):
            return step, done
        back = (inverse @ inner(moved, r)).mT.to(r.dtype)
        along = _orthonormal(r - back @ along)


def _orthonormal(rows: Tensor) -> Tensor:
    """An orthonormal basis of the rows, completed with other directions if they are dependent."""
    return torch.linalg.qr(rows.mT)[0].mT


def _identity(v: Tensor) -> Tensor:
    return v


def _inverse(gram: Tensor) -> Tensor:
    """The inverse of a positive definite matrix [S, S] in float64, without vanishing directions."""
    if not bool(torch.isfinite(gram).all()):
        raise NotConverged("a product with the curvature is not finite; the network or its data overflow.")
    values, vectors = torch.linalg.eigh((gram + gram.mT) / 2)
    keep = values > 1e-14 * values[-1]
    inverse = torch.where(keep, 1 / torch.where(keep, values, 1.0), 0.0)
    return (vectors * inverse) @ vectors.mT


def inner(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ of rows [S, P], summed in float64."""
    total = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for start in range(0, a.shape[1], PIECE):
        piece = slice(start, start + PIECE)
        total += a[:, piece].double() @ b[:, piece].double().mT
    return total


def dots(a: Tensor, b: Tensor) -> Tensor:
    """Row by row a · b, [S], summed in float64."""
    total = torch.zeros(len(a), dtype=torch.float64, device=a.device)
    for start in range(0, a.shape[1], PIECE):
        piece = slice(start, start + PIECE)
        total += torch.linalg.vecdot(a[:, piece].double(), b[:, piece].double())
    return total
