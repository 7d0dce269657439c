"""Published diagnostics, by ArviZ: rank-normalised split R-hat, bulk and tail effective sample size.

Index legend: K chains, T draws of each.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import need
from whence.posteriors.hmc.checks import bfmi

if TYPE_CHECKING:
    from whence.posteriors.hmc.posterior import Hmc


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
    """How far a run can be trusted. R-hat and sizes are ArviZ's."""

    predictions: Mixing  # of each output for each input
    potential: Mixing  # of the potential energy
    weights: dict[str, Mixing] | None  # by parameter, where they were asked for; weights permute, so theirs may be bad
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
        """One row for each kind of quantity: the worst of it."""
        named = {"predictions": self.predictions, "potential": self.potential, **(self.weights or {})}
        return [{"name": name, **mixing.worst()} for name, mixing in named.items()]

    def to_pandas(self) -> Any:
        return need("pandas", "pandas").DataFrame(self.rows())

    def __str__(self) -> str:
        lines = [f"{'':20s} {'R-hat':>7s} {'bulk ESS':>9s} {'tail ESS':>9s}"]
        lines += [f"{r['name']:20s} {r['rhat']:7.3f} {r['ess_bulk']:9.0f} {r['ess_tail']:9.0f}" for r in self.rows()]
        lines.append(
            f"{self.divergences} divergences, E-BFMI from {float(self.bfmi.min()):.2f}, "
            f"{100 * self.saturated:.0f} % of trajectories at max_depth, acceptance {float(self.accept.mean()):.2f}"
        )
        return "\n".join(lines)


def diagnostics(posterior: Hmc, x: Any, weights: bool) -> Diagnostics:
    """See :meth:`whence.posteriors.hmc.posterior.Hmc.diagnostics`."""
    stats = posterior.stats
    nuts = posterior.settings.kernel == "nuts"
    return Diagnostics(
        predictions=mixing(posterior.predictions(x)),
        potential=mixing(stats["potential"]),
        weights={n: mixing(v) for n, v in posterior.draws.items()} if weights else None,
        divergences=int(stats["divergent"].sum()),
        bfmi=bfmi(stats["energy"]),
        saturated=float((stats["depth"] >= posterior.settings.max_depth).double().mean()) if nuts else 0.0,
        accept=stats["accept"].mean(1),
    )


def _arviz() -> Any:
    """ArviZ without the advertisement of its next version that it imports with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return need("arviz", "hmc")


def mixing(values: Tensor) -> Mixing:
    """Of quantities [K, T, …], each by itself."""
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
    if int(arviz.__version__.split(".")[0]) >= 1:  # one mapping of groups, and a DataTree
        return arviz.from_dict(groups)
    return arviz.from_dict(**groups)
