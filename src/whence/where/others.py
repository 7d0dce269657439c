"""Where the uncertainty is, for posteriors that are not Laplace's: what is meaningful for each, the rest refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from whence.errors import BadOption, NotDefined, need, one_of
from whence.metrics.tables import text
from whence.posteriors.base import WeightPosterior
from whence.where.activations import activations
from whence.where.by_draws import DrawnShares, drawn_shares, prior_variances, weight_shares
from whence.where.representations import MEMBERS, disagreement
from whence.where.tabular import Table, number

PERMUTED = (
    "the {members} have no common weight coordinates (units may be permuted), so there is no table of weights, units "
    "or shares; ask .activations."
)


@dataclass(frozen=True)
class DrawnRow:
    """One layer, or one dropout site. What has no meaning for the posterior is None."""

    name: str
    kind: str
    parameters: int | None = None
    std: float | None = None  # root mean square posterior standard deviation
    identified: float | None = None  # mean of 1 − posterior variance / prior variance
    signal_to_noise: float | None = None
    variance_share: float | None = None  # variance with it alone random / variance with all random
    variance_share_error: float | None = None  # its Monte Carlo standard error
    prior_share: float | None = None
    explained: float | None = None
    disagreement: float | None = None  # of the layer's outputs between members


@dataclass(frozen=True)
class Spread:
    """Tables of where the uncertainty is; ``layers`` is the first of them."""

    layers: list[DrawnRow]
    posterior: Any = field(repr=False)
    inputs: Any = field(default=None, repr=False)
    interaction: float | None = None  # what the shares leave of 1
    why_not: str = ""  # why there are no shares or weights

    def to_pandas(self) -> Any:
        """The layer table as a ``pandas.DataFrame``."""
        return need("pandas", "pandas").DataFrame([asdict(row) for row in self.layers])

    def weights(self, layer: str) -> Table:
        """One row for each weight of a layer: value, standard deviation, signal to noise."""
        if not isinstance(self.posterior, WeightPosterior):
            raise NotDefined(self.why_not)
        names = self.posterior.layers()[one_of(layer, self.posterior.layers(), "layer")]  # type: ignore[attr-defined]
        mean, variance = self.posterior.mean(), self.posterior.variance()
        columns: dict[str, list[Any]] = {"parameter": [], "index": []}
        for n in names:
            columns["parameter"] += [n] * mean[n].numel()
            columns["index"] += [tuple(i) for i in torch.ones(mean[n].shape).nonzero().tolist()]
        flat_mean, flat_std = (torch.cat([v[n].double().cpu().flatten() for n in names]) for v in (mean, variance))
        flat_std = flat_std.sqrt()
        return Table({**columns, "weight": flat_mean, "std": flat_std, "signal_to_noise": flat_mean.abs() / flat_std})

    def units(self, layer: str) -> Table:
        """Shares below the layer are a closed form's; they are refused here."""
        raise NotDefined(self.why_not or "shares of units are for Laplace posteriors; by draws there are layers only.")

    @functools.cached_property
    def activations(self) -> Table:
        """How much the draws disagree in each layer: by spread, or for members without common units by CKA."""
        if self.inputs is None:
            raise BadOption("activations is of inputs: ask posterior.where(x).")
        if isinstance(self.posterior, WeightPosterior):
            return activations(self.posterior, self.inputs, generator=torch.Generator().manual_seed(0))
        return disagreement(modules_of(self.posterior), self.inputs)

    def __getattr__(self, name: str) -> Any:
        """What a Laplace posterior's answer has beyond this one is refused with the reason."""
        from whence.where.table import Where

        if name.startswith("_") or not hasattr(Where, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        kind = type(self.posterior).__name__
        raise NotDefined(
            f"{name} needs the closed forms of a Laplace posterior; this is a {kind}. {self.why_not}".strip()
        )

    def __str__(self) -> str:
        shown = [f.name for f in fields(DrawnRow) if any(getattr(r, f.name) is not None for r in self.layers)]
        heads = {"parameters": "weights", "signal_to_noise": "snr", "variance_share_error": "± error"}
        rows = [[number(getattr(row, name)) for name in shown] for row in self.layers]
        table = text([heads.get(name, name) for name in shown], rows, left=2)
        notes = []
        if self.interaction is not None:
            notes.append(f"interaction between them: {self.interaction:.1%} of the variance")
        if self.why_not:
            notes.append(self.why_not)
        return "\n".join([table, *notes])

    __repr__ = __str__


@torch.inference_mode(False)
def where(posterior: Any, x: Any) -> Spread:
    """See :meth:`whence.posteriors.drawn.DrawnPosterior.where`."""
    if isinstance(posterior, WeightPosterior):
        return _of_weights(posterior, x)
    if hasattr(posterior, "sites"):
        return _of_sites(posterior, x)
    return _of_members(posterior, x)


def _of_weights(posterior: Any, x: Any) -> Spread:
    mean, variance, prior = posterior.mean(), posterior.variance(), prior_variances(posterior)
    own = None if x is None else weight_shares(posterior, x)
    alone = None if x is None or prior is None else weight_shares(posterior, x, prior=True)
    rows = []
    for place, (layer, names) in enumerate(posterior.layers().items()):
        spread, centre = (torch.cat([v[n].double().flatten() for n in names]) for v in (variance, mean))
        before = None if prior is None else torch.cat([prior[n].double().flatten() for n in names])
        rows.append(
            DrawnRow(
                name=layer,
                kind=_kind(posterior.network.module, layer),
                parameters=len(spread),
                std=float(spread.mean().sqrt()),
                identified=None if before is None else float((1 - spread / before).mean()),
                signal_to_noise=_signal(centre, spread),
                **_shares(own, alone, place),
            )
        )
    return Spread(rows, posterior, x, None if own is None else own.interaction)


def _kind(module: nn.Module, layer: str) -> str:
    """Class of the layer; of a parameter of the network itself, that of the network."""
    return type(dict(module.named_modules()).get(layer, module)).__name__


def _signal(centre: Tensor, spread: Tensor) -> float | None:
    """Root mean square of weight / standard deviation, over the weights that move."""
    moving = spread > 0
    if not bool(moving.any()):
        return None
    return float((centre[moving].square() / spread[moving]).mean().sqrt())


def _shares(own: DrawnShares | None, alone: DrawnShares | None, place: int) -> dict[str, Any]:
    if own is None:
        return {}
    found = {
        "variance_share": float(own.share[place]),
        "variance_share_error": float(own.error[place]),
    }
    if alone is not None:
        found["prior_share"] = float(alone.share[place])
        found["explained"] = 1 - float(own.variance[place] / alone.variance[place].clamp(min=1e-300))
    return found


def _of_sites(posterior: Any, x: Any) -> Spread:
    sites = posterior.sites(x)
    reason = "the draws are masks: there is no distribution of weights, and shares are of dropout sites."
    if x is None:
        return Spread([DrawnRow(name, "dropout") for name in sites], posterior, why_not=reason)

    def outputs(chosen: set[str]) -> Tensor:
        draws = posterior.draw_sites(64, chosen, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            found: Tensor = draws.outputs(x)
        return found

    makers: dict[str, Callable[[], Tensor]] = {name: functools.partial(outputs, {name}) for name in sites}
    own = drawn_shares(makers, outputs(set(sites)), posterior.likelihood)
    rows = [DrawnRow(name, "dropout", **_shares(own, None, place)) for place, name in enumerate(sites)]
    return Spread(rows, posterior, x, own.interaction, reason)


def _of_members(posterior: Any, x: Any) -> Spread:
    members = "draws of a chain" if type(posterior).__name__ == "Hmc" else "members of an ensemble"
    reason = PERMUTED.format(members=members)
    if x is None:
        return Spread([], posterior, why_not=reason)
    found = disagreement(modules_of(posterior), x)
    rows = [
        DrawnRow(name, "output" if name == "output" else "layer", disagreement=value)
        for name, value in zip(found["name"], found["disagreement"], strict=True)
    ]
    return Spread(rows, posterior, x, why_not=reason)


def modules_of(posterior: Any) -> list[Any]:
    """Plain networks to be compared: the members of an ensemble, or twenty draws."""
    if hasattr(posterior, "networks") and not hasattr(posterior, "network") and not hasattr(posterior, "curvature"):
        return list(posterior.networks())  # the members themselves, each once
    draws = posterior.draw(MEMBERS, generator=torch.Generator().manual_seed(0))
    return list(draws.modules())
