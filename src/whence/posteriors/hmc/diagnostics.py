"""Convergence diagnostics: simple checks at the end of a run, and ArviZ's diagnostics.

Index legend: K chains, T draws of each, M split chains, Q quantities.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import need

if TYPE_CHECKING:
    from whence.posteriors.hmc.posterior import Hmc

RHAT, ESS_PER_CHAIN, ESS_MOST, BFMI, SATURATED = 1.01, 100, 400, 0.3, 0.01


def halves(values: Tensor) -> Tensor:
    """Each chain cut in two: [K, T, Q] → [2 K, T // 2, Q]."""
    half = values.shape[1] // 2
    return torch.cat([values[:, :half], values[:, values.shape[1] - half :]])


def split_rhat(values: Tensor) -> Tensor:
    """√(V / W) of split chains [K, T, Q] → [Q] (Gelman et al. 2013, eq. 11.4); 1 if nothing varies."""
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


def problems(predictions: Tensor, stats: dict[str, Tensor], max_depth: int) -> tuple[str, ...]:
    """All problems of a run, from predictions [K, T, Q]; empty for a good run."""
    chains, draws = predictions.shape[:2]
    if draws < 4:
        return (f"{draws} draws of each chain are too few to judge the run; take num_samples=1000.",)
    found = [_divergences(stats, chains * draws), _depth(stats, max_depth), _energy(stats)]
    return tuple(text for text in (*found, *_mixing(predictions)) if text)


def _divergences(stats: dict[str, Tensor], total: int) -> str:
    count = int(stats["divergent"].sum())
    if not count:
        return ""
    return (
        f"{count:,} of {total:,} draws came after a divergence: the step is too long for a strongly curved part of the "
        "posterior, which is not explored. Raise target_accept (0.95), or strengthen the prior."
    )


def _depth(stats: dict[str, Tensor], max_depth: int) -> str:
    """NUTS trajectories that reached max_depth; plain HMC has depth 0."""
    share = float((stats["depth"] >= max_depth).double().mean())
    if share <= SATURATED:
        return ""
    return (
        f"{share:.0%} of the trajectories were stopped at max_depth={max_depth}, so the chains move slowly. "
        "Raise max_depth, lengthen warmup, or scale inputs and targets to about 1."
    )


def _energy(stats: dict[str, Tensor]) -> str:
    low = bfmi(stats["energy"])
    if not bool((low < BFMI).any()):
        return ""
    return (
        f"the E-BFMI of {int((low < BFMI).sum())} of {len(low)} chains is below {BFMI} (the smallest is "
        f"{float(low.min()):.2f}): the momenta explore the energies slowly. Take more draws, or mass='dense'."
    )


def _mixing(predictions: Tensor) -> list[str]:
    chains, found = len(predictions), []
    rhat, ess = float(split_rhat(predictions).max()), float(effective(predictions).min())
    enough = min(ESS_PER_CHAIN * chains, ESS_MOST)
    if not rhat <= RHAT:
        found.append(
            f"the chains disagree: R-hat of the predictions is {rhat:.3f} (up to {RHAT} is good). Raise num_samples "
            "and warmup; use a stronger prior if chains stay in separate modes."
        )
    if not ess >= enough:
        found.append(
            f"the effective sample size of the predictions is {ess:.0f} (at least {enough} is good). Raise num_samples."
        )
    return found


# By ArviZ: rank-normalised split R-hat, bulk and tail effective sample size


@dataclass(frozen=True)
class Mixing:
    """R-hat and effective sample sizes of each of some quantities, in their shape."""

    rhat: Tensor
    ess_bulk: Tensor
    ess_tail: Tensor

    def worst(self) -> dict[str, float]:
        """Largest R-hat, smallest sizes."""
        return {
            "rhat": float(self.rhat.max()),
            "ess_bulk": float(self.ess_bulk.min()),
            "ess_tail": float(self.ess_tail.min()),
        }


@dataclass(frozen=True)
class Diagnostics:
    """Convergence diagnostics of a run. R-hat and effective sample sizes are ArviZ's."""

    predictions: Mixing  # of each output for each input
    potential: Mixing  # of the potential energy
    weights: dict[str, Mixing] | None  # by parameter, if requested; may be bad, since weights permute
    divergences: int
    bfmi: Tensor  # [K]
    saturated: float  # share of trajectories that reached max_depth
    accept: Tensor  # mean acceptance probability, [K]

    @property
    def rhat(self) -> float:
        """The largest R-hat of the predictions."""
        return self.predictions.worst()["rhat"]

    @property
    def ess(self) -> float:
        """The smallest effective sample size of the predictions, bulk or tail."""
        worst = self.predictions.worst()
        return min(worst["ess_bulk"], worst["ess_tail"])

    def rows(self) -> list[dict[str, Any]]:
        """One row for each kind of quantity, with its worst value."""
        named = {"predictions": self.predictions, "potential": self.potential, **(self.weights or {})}
        return [{"name": name, **mixing.worst()} for name, mixing in named.items()]

    def to_pandas(self) -> Any:
        return need("pandas", "pandas").DataFrame(self.rows())

    def __str__(self) -> str:
        lines = [f"{'':20s} {'R-hat':>7s} {'bulk ESS':>9s} {'tail ESS':>9s}"]
        lines += [f"{r['name']:20s} {r['rhat']:7.3f} {r['ess_bulk']:9.0f} {r['ess_tail']:9.0f}" for r in self.rows()]
        lines.append(
            f"{self.divergences} divergences, E-BFMI from {float(self.bfmi.min()):.2f}, "
            f"{self.saturated:.0%} of trajectories at max_depth, acceptance {float(self.accept.mean()):.2f}"
        )
        return "\n".join(lines)


def diagnostics(posterior: Hmc, x: Any, weights: bool) -> Diagnostics:
    """See :meth:`whence.posteriors.hmc.posterior.Hmc.diagnostics`."""
    stats = posterior.stats
    return Diagnostics(
        predictions=mixing(posterior.predictions(x)),
        potential=mixing(stats["potential"]),
        weights={n: mixing(v) for n, v in posterior.draws.items()} if weights else None,
        divergences=int(stats["divergent"].sum()),
        bfmi=bfmi(stats["energy"]),
        saturated=float((stats["depth"] >= posterior.settings.max_depth).double().mean()),
        accept=stats["accept"].mean(1),
    )


def _arviz() -> Any:
    """Import ArviZ without its notice about the next version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return need("arviz", "hmc")


def mixing(values: Tensor) -> Mixing:
    """R-hat and effective sample sizes of quantities [K, T, …], each separately."""
    arviz, xarray = _arviz(), need("xarray", "hmc")
    flat = values.double().cpu().reshape(*values.shape[:2], -1).numpy()
    data = xarray.Dataset({"q": (("chain", "draw", "i"), flat)})

    def shaped(found: Any) -> Tensor:
        return torch.as_tensor(found["q"].values.copy()).reshape(values.shape[2:])

    return Mixing(
        shaped(arviz.rhat(data)), shaped(arviz.ess(data, method="bulk")), shaped(arviz.ess(data, method="tail"))
    )


def to_arviz(posterior: Hmc, x: Any) -> Any:
    """See :meth:`whence.posteriors.hmc.posterior.Hmc.to_arviz`."""
    arviz = _arviz()
    stats = {name: values.cpu().numpy() for name, values in posterior.stats.items()}
    groups: dict[str, dict[str, Any]] = {
        "posterior": {n: v.cpu().numpy() for n, v in posterior.draws.items()},
        "sample_stats": {
            "lp": -stats["potential"],
            "energy": stats["energy"],
            "acceptance_rate": stats["accept"],
            "step_size": stats["step"],
            "diverging": stats["divergent"],
            "tree_depth": stats["depth"],
            "n_steps": stats["leapfrogs"],
        },
    }
    if x is not None or posterior.inputs is not None:
        groups["posterior"]["predictions"] = posterior.predictions(x).cpu().numpy()
    if int(arviz.__version__.split(".")[0]) >= 1:  # takes one mapping of groups, and returns a DataTree
        return arviz.from_dict(groups)
    return arviz.from_dict(**groups)
