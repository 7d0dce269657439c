"""Where the uncertainty is: the layer table, and the way to all others."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.batches import from_numpy
from whence.curvature.blocks import Block
from whence.errors import BadOption, NotDefined, need, one_of
from whence.metrics.tables import text
from whence.where import breakdown
from whence.where.activations import activations
from whence.where.answers import Answers, answers
from whence.where.connections import connection_shares, connection_table
from whence.where.distribution import Differences, Quantity, differences, magnitude
from whence.where.shares import Measure, Shares, UnitShares, shares_with_units
from whence.where.slices import STEPS, slices
from whence.where.spectrum import spectra
from whence.where.tabular import Table, number
from whence.where.weights import curvature_of, identified_of, thinned, unit_table, weight_table

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace


QUANTILES_OF = 100_000  # weights: enough for the quantiles of a table
DROWNED = (
    "The prior is so strong that the data explain less than 1 % of this variance: the shares repeat the prior's. Ask a "
    "posterior with a weaker one: posterior.with_prior(…).where(x)."
)


@dataclass(frozen=True)
class LayerRow:
    """One layer. Shares are there only if inputs were given."""

    name: str
    kind: str
    parameters: int
    std: float  # root mean square posterior standard deviation
    identified: float  # mean of 1 − posterior variance / prior variance over its weights
    identified_q05: float
    identified_q50: float
    identified_q95: float
    effective_parameters: float  # γ
    signal_to_noise: float  # root mean square of weight / standard deviation
    curvature: float  # mean of diag(H) / N: no prior in it
    relative_curvature: float  # mean of w² diag(H) / N, which does not depend on how the network is scaled
    variance_share: float | None = None  # part of the output variance that it causes
    prior_share: float | None = None  # the same under the prior alone
    explained: float | None = None  # 1 − variance / variance under the prior


@dataclass(frozen=True)
class Where:
    """Tables of where the uncertainty is. ``layers`` is the first of them; the others are made when asked for."""

    layers: list[LayerRow]
    posterior: Laplace = field(repr=False)
    inputs: Any = field(default=None, repr=False)
    measure: Measure = "variance"
    split: tuple[Shares, dict[str, UnitShares]] | None = field(default=None, repr=False)  # by layer, by unit
    variances: dict[str, Tensor] = field(default_factory=dict, repr=False)  # of every weight, by layer

    def to_pandas(self) -> Any:
        """The layer table as a ``pandas.DataFrame``."""
        return need("pandas", "pandas").DataFrame([asdict(row) for row in self.layers])

    @property
    def shares(self) -> Shares:
        """tr V_b of every input and layer."""
        return self._parts("shares")[0]

    def units(self, layer: str) -> Table:
        """One row for each unit of a layer: row, filter, channel or attention head.

        ``variance_share`` and ``prior_share`` are of the whole network's variance, so that those of the units add up to
        their layer's. They are covariance shares and may be negative.
        """
        block = self._block(layer)
        if self.split is None:
            return unit_table(self.posterior, block, self.variances[layer])
        found, by_unit = self.split
        totals = float(found.variance.sum()), float(found.prior.sum())
        return unit_table(self.posterior, block, self.variances[layer], by_unit[layer], *totals)

    def weights(self, layer: str) -> Table:
        """One row for each weight of a layer: value, standard deviation, identified, signal to noise."""
        block = self._block(layer)
        return weight_table(self.posterior, block, self.variances[layer])

    def connections(self, layer: str, units: Sequence[int] | None = None) -> Table:
        """One row for each unit (or some of them) and each of its incoming connections, with its covariance share.

        A connection is a weight of a Linear layer, a kernel of a convolution, the bias; see ``where/connections.py``.
        The shares are of the whole network's variance: those of a unit's connections add up to the unit's.
        """
        found, by_unit = self._parts("connections")
        block = self._block(layer)
        count = by_unit[layer].units.count
        chosen = list(range(count)) if units is None else list(units)
        if not chosen or not all(0 <= u < count for u in chosen):
            raise BadOption(f"units={chosen} must be some of the {count} units of {layer!r}: 0..{count - 1}.")
        parts = connection_shares(self.posterior, self.inputs, {layer: chosen}, self.measure).get(layer)
        if parts is None:
            raise NotDefined(f"the rows of {block.kind} {layer!r} have no further parts; ask units({layer!r}).")
        return connection_table(parts, float(found.variance.sum()), float(found.prior.sum()))

    def by_input(self) -> Table:
        """One row for each input and layer."""
        return breakdown.by_input(self.shares)

    def by_class(self, labels: Tensor | Sequence[int] | None = None) -> Table:
        """One row for each class and layer, over the inputs of that class: the predicted one, or ``labels``."""
        if labels is None and self.posterior.likelihood.task != "classification":
            raise NotDefined("classes are predicted by classification only; pass labels=, one for each input.")
        return breakdown.by_class(self.shares, labels)

    def sensitivity(self, factors: Sequence[float] = (0.1, 1.0, 10.0)) -> Table:
        """Shares and explained of each layer when the prior precision is multiplied by each factor."""
        self._parts("sensitivity")
        return breakdown.sensitivity(self.posterior, self.inputs, factors, self.measure)

    @functools.cached_property
    def activations(self) -> Table:
        """How much each layer's output spreads under twenty draws, relative to its spread over the inputs."""
        self._parts("activations")
        return activations(self.posterior, self.inputs, generator=torch.Generator().manual_seed(0))

    def slices(self, data: Any, steps: Sequence[float] = STEPS, seed: int = 0) -> Table:
        """The true loss on ``data`` along directions of large, small and random curvature beside the Gaussian's."""
        return slices(self.posterior, data, steps, seed)

    @functools.cached_property
    def differences(self) -> Differences:
        """Whether layers, and units inside a layer, differ in posterior standard deviation; effect sizes by ranks."""
        return self.differences_in("std")

    def differences_in(self, of: Quantity) -> Differences:
        """The same for another quantity of the weights, such as ``"relative_curvature"`` or ``"identified"``."""
        return differences(self.posterior, of)

    @functools.cached_property
    def magnitude(self) -> Table:
        """Size of the weight against its uncertainty, by layer and overall."""
        return magnitude(self.posterior)

    @functools.cached_property
    def spectrum(self) -> Table:
        """Eigenvalues of every layer's curvature, and what of each direction the data have determined."""
        return spectra(self.posterior)

    def answers(self, test: Any, *, ood: Any = None) -> Answers:
        """What a profile is for, in plain words: is the last layer enough, what could be pruned, is it the prior? …"""
        return answers(self.posterior, test, ood=ood)

    @property
    def residual(self) -> float:
        """How far the units' parts are from adding up to their layers', relative to the whole variance."""
        found, by_unit = self._parts("the residual")
        sums = found.variance.sum(0)
        off = [abs(float(by_unit[name].variance.sum() - total)) for name, total in zip(found.names, sums, strict=True)]
        return max(off) / max(float(sums.sum()), torch.finfo(torch.float64).tiny)

    def report(self, path: str | Path) -> Path:
        """Write one page with the layer table, the profile, the weights and the most uncertain inputs.

        :func:`whence.audit` also judges the uncertainty, which takes targets.
        """
        self._parts("a report")
        from whence.auditing import audit

        sections = ["layers", "profile", "sensitivity", "maps", "inputs"]
        return audit(self.posterior, test=self.inputs, sections=sections, progress=False).html(path)

    def plot_shares(self, ax: Any = None) -> Any:
        """Shares beside those of the prior, and explained, along the network. A matplotlib figure, as all pictures."""
        return _figures().shares(self, ax=ax)

    def plot_distributions(self, of: str = "std", ax: Any = None) -> Any:
        """A quantity of each layer's weights: ``"std"``, ``"identified"``, ``"signal_to_noise"``, ``"curvature"`` or
        ``"relative_curvature"``."""
        return _figures().distributions(self, of, ax=ax)

    def plot_units(self, layer: str, most: int = 40, ax: Any = None) -> Any:
        """The units of a layer."""
        return _figures().units(self, layer, most, ax=ax)

    def plot_weights(self, layer: str, of: str = "std", shape: Any = None, most: int = 25, ax: Any = None) -> Any:
        """The weights of a layer as maps: pixels for a first layer on images, tiles for filters."""
        return _figures().weight_maps(self, layer, of, shape, most, ax=ax)

    def plot_classes(self, labels: Tensor | Sequence[int] | None = None, ax: Any = None) -> Any:
        """Explained and shares by class and layer."""
        return _figures().classes(self.by_class(labels), ax=ax)

    def plot_magnitude(self, layer: str | None = None, ax: Any = None) -> Any:
        """Size of the weight against its uncertainty."""
        return _figures().magnitude(self, layer, ax=ax)

    def plot_spectrum(self, ax: Any = None) -> Any:
        """Eigenvalues of every layer's curvature beside the prior precision."""
        return _figures().spectrum(self, ax=ax)

    def plot_slices(self, data: Any, ax: Any = None) -> Any:
        """The true loss along directions of weight space beside the Gaussian's."""
        return _figures().slices(self.slices(data), ax=ax)

    def plot_activations(self, ax: Any = None) -> Any:
        """How much each layer's output spreads under draws."""
        return _figures().activations(self.activations, ax=ax)

    def plot_sensitivity(self, factors: Sequence[float] = (0.1, 1.0, 10.0), ax: Any = None) -> Any:
        """Shares and explained under other priors."""
        return _figures().sensitivity(self.sensitivity(factors), ax=ax)

    def __str__(self) -> str:
        shown = [f.name for f in fields(LayerRow) if any(getattr(r, f.name) is not None for r in self.layers)]
        shown = [name for name in shown if name not in ("identified_q05", "identified_q50", "identified_q95")]
        heads = {"parameters": "weights", "effective_parameters": "effective", "signal_to_noise": "snr"}
        heads["relative_curvature"] = "rel. curvature"
        rows = [[number(getattr(row, name)) for name in shown] for row in self.layers]
        table = text([heads.get(name, name) for name in shown], rows, left=2)
        return f"{table}\n{DROWNED}" if self.drowned else table

    @property
    def drowned(self) -> bool:
        """Whether the prior is so strong that the data explain next to nothing of these inputs' variance."""
        if self.split is None:
            return False
        found = self.split[0]
        return float(1 - found.variance.sum() / max(float(found.prior.sum()), 1e-300)) < 0.01

    def _block(self, layer: str) -> Block:
        names = [b.name for b in self.posterior.blocks]
        return self.posterior.blocks[names.index(one_of(layer, names, "layer"))]

    def _parts(self, what: str) -> tuple[Shares, dict[str, UnitShares]]:
        if self.split is None:
            raise BadOption(f"{what} is of inputs: ask posterior.where(x).")
        return self.split


def _figures() -> Any:
    """The pictures, which stand in a room below: fetched when asked for."""
    from whence.report import figures

    return figures


@torch.inference_mode(False)
def where(posterior: Laplace, x: Any, measure: Measure = "variance") -> Where:
    """See :meth:`whence.posteriors.laplace.Laplace.where`."""
    one_of(measure, ("variance", "information"), "measure")
    if posterior.curvature.keep is not None:
        raise NotDefined("the layer table of a subnetwork mask is not defined; use variance().")
    spread = posterior.variance()
    variances = {block.name: block.gather(spread).double().cpu() for block in posterior.blocks}
    rows = [_row(posterior, block, variances[block.name]) for block in posterior.blocks]
    if x is None:
        return Where(rows, posterior, variances=variances)
    x = from_numpy(x)
    if not isinstance(x, (Tensor, Mapping, tuple)) and isinstance(x, Iterable):
        x = list(x)  # read once, asked many times
    split = shares_with_units(posterior, x, measure)
    parts, prior = split[0].variance.sum(0), split[0].prior.sum(0)
    total, prior_total = max(float(parts.sum()), 1e-300), max(float(prior.sum()), 1e-300)
    rows = [
        replace(row, variance_share=v / total, prior_share=p / prior_total, explained=1 - v / p if p else 0.0)
        for row, v, p in zip(rows, parts.tolist(), prior.tolist(), strict=True)
    ]
    return Where(rows, posterior, x, measure, split, variances)


def _row(posterior: Laplace, block: Block, variance: Tensor) -> LayerRow:
    identified = identified_of(posterior, block)
    q = torch.quantile(thinned(identified, QUANTILES_OF), torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
    weights = block.gather(posterior.network.params).detach().double().cpu()
    curvature = curvature_of(posterior, block)
    return LayerRow(
        name=block.name,
        kind=block.kind,
        parameters=block.size,
        std=float(variance.mean().sqrt()),
        identified=float(identified.mean()),
        identified_q05=float(q[0]),
        identified_q50=float(q[1]),
        identified_q95=float(q[2]),
        effective_parameters=float(identified.sum()),
        signal_to_noise=float((weights.square() / variance).mean().sqrt()),
        curvature=float(curvature.mean()),
        relative_curvature=float((weights.square() * curvature).mean()),
    )
