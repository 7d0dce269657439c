"""What a run is held against at its end, without ArviZ: few and plain checks, each with a remedy in words.

Index legend: K chains, T draws of each, M split chains, Q quantities.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

RHAT, ESS_PER_CHAIN, ESS_MOST, BFMI, SATURATED = 1.01, 100, 400, 0.3, 0.01


def halves(values: Tensor) -> Tensor:
    """Each chain cut in two: [K, T, Q] → [2 K, T // 2, Q]."""
    half = values.shape[1] // 2
    return torch.cat([values[:, :half], values[:, values.shape[1] - half :]])


def split_rhat(values: Tensor) -> Tensor:
    """√(V / W) of split chains [K, T, Q] → [Q] (Gelman et al. 2013, eq. 11.4); 1 where nothing varies."""
    split = halves(values.double())
    n = split.shape[1]
    within = split.var(1).mean(0)
    between = split.mean(1).var(0)
    ratio = ((n - 1) / n + between / within).sqrt()
    return torch.where(within > 0, ratio, torch.where(between > 0, torch.inf, 1.0))


def effective(values: Tensor) -> Tensor:
    """Effective sample size of the mean of [K, T, Q] → [Q]: Geyer's initial monotone sequence over split chains."""
    split = halves(values.double())
    chains, n = split.shape[:2]
    off = split - split.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(off, n=2 * n, dim=1).abs().square()
    covariance = torch.fft.irfft(spectrum, n=2 * n, dim=1)[:, :n].mean(0) / n  # [n, Q]
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + split.mean(1).var(0)
    rho = 1 - (within - covariance) / total.clamp(min=1e-300)
    pairs = rho[: n // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    pairs[0] = 1 + rho[1]
    positive = (pairs > 0).cumprod(0)
    tau = -1 + 2 * (pairs.cummin(0).values * positive).sum(0)
    found = chains * n / tau.clamp(min=1 / math.log10(chains * n))
    return torch.where(total > 0, found, torch.full_like(found, chains * n))


def bfmi(energy: Tensor) -> Tensor:
    """E-BFMI of each chain, from [K, T]: Σ (E_t − E_{t−1})² / Σ (E_t − Ē)² (Betancourt 2016)."""
    off = energy - energy.mean(1, keepdim=True)
    return energy.diff(dim=1).square().sum(1) / off.square().sum(1).clamp(min=1e-300)


def problems(predictions: Tensor, stats: dict[str, Tensor], kernel: str, max_depth: int) -> tuple[str, ...]:
    """Every reason to doubt a run, from predictions [K, T, Q]; empty for a good one."""
    chains, draws = predictions.shape[:2]
    if draws < 4:
        return (f"{draws} draws of each chain are too few to judge the run; take num_samples=1000.",)
    found = [_divergences(stats, chains * draws), _depth(stats, kernel, max_depth), _energy(stats)]
    return tuple(text for text in (*found, *_mixing(predictions)) if text)


def _divergences(stats: dict[str, Tensor], total: int) -> str:
    count = int(stats["divergent"].sum())
    if not count:
        return ""
    return (
        f"{count:,} of {total:,} draws came after a divergence: the step is too long for a sharply curved part of the "
        "posterior, which is left out. Raise target_accept (0.95), or strengthen the prior."
    )


def _depth(stats: dict[str, Tensor], kernel: str, max_depth: int) -> str:
    share = float((stats["depth"] >= max_depth).double().mean())
    if kernel != "nuts" or share <= SATURATED:
        return ""
    return (
        f"{100 * share:.0f} % of the trajectories were cut off at max_depth={max_depth}, so the chains move slowly. "
        "Raise max_depth, lengthen warmup, or scale inputs and targets to about 1."
    )


def _energy(stats: dict[str, Tensor]) -> str:
    low = bfmi(stats["energy"])
    if not bool((low < BFMI).any()):
        return ""
    return (
        f"the E-BFMI of {int((low < BFMI).sum())} of {len(low)} chains is below {BFMI} (the least is "
        f"{float(low.min()):.2f}): the momenta explore the energies slowly. Take more draws, or mass='dense'."
    )


def _mixing(predictions: Tensor) -> list[str]:
    chains, found = len(predictions), []
    rhat, ess = float(split_rhat(predictions).max()), float(effective(predictions).min())
    enough = min(ESS_PER_CHAIN * chains, ESS_MOST)
    if not rhat <= RHAT:
        found.append(
            f"the chains disagree: R-hat of the predictions is {rhat:.3f} (up to {RHAT} is good). Raise num_samples "
            "and warmup; chains that stay in modes of their own want a stronger prior."
        )
    if not ess >= enough:
        found.append(
            f"the effective sample size of the predictions is {ess:.0f} (at least {enough} is good). Raise num_samples."
        )
    return found
