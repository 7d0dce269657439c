"""Where the uncertainty is: the layer table of a posterior, with access to all other tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import BadOption, NotDefined, one_of
from whence.predictive.linearised_draws import check_probes
from whence.recording.blocks import Block
from whence.recording.independence import failures_explained
from whence.recording.units import units_of
from whence.tables import SHORT, Table, html, number, paragraph, text
from whence.where import tables
from whence.where.activations import activations, disagreement
from whence.where.answers import Answers, answers
from whence.where.connections import connection_shares
from whence.where.curvature import STEPS, slices, spectra
from whence.where.layer_rows import LayerRow, layer_rows
from whence.where.one_pass import shares
from whence.where.question import Measure, ProbesOption, Question
from whence.where.shares import TINY, Shares
from whence.where.weights import (
    Differences,
    Quantity,
    differences,
    magnitude,
)

if TYPE_CHECKING:
    from whence.posteriors.base import Posterior
    from whence.posteriors.laplace.posterior import Laplace


HEADS = {
    "parameters": "weights", "effective_parameters": "effective", "signal_to_noise": "snr",
    "relative_curvature": "rel. curvature", "variance_share_error": "± error", "explained_error": "± error of it",
}  # fmt: skip
VARIANCE = Question()
NOT_PRINTED = ("identified_q05", "identified_q50", "identified_q95")
PRIOR_DOMINATES = (
    "The prior is so strong that the data explain less than 1% of this variance, so the shares are those of the prior. "
    "Ask under a weaker one: posterior.tune().where(x) takes the prior that "
    "the evidence prefers, posterior.with_prior(precision).where(x) any other."
)


@dataclass(frozen=True)
class Where:
    """Tables of where the uncertainty is. ``layers`` is computed first, the others on request.

    A table that is not defined for the posterior raises ``NotDefined`` with the reason.
    """

    layers: list[LayerRow]
    posterior: Posterior = field(repr=False)
    inputs: Any = field(default=None, repr=False)
    question: Question = VARIANCE
    found: Shares | None = field(default=None, repr=False)  # of the inputs; with units if these are known already
    interaction: float | None = None  # 1 − Σ shares, for shares by draws

    def to_pandas(self) -> Any:
        """The layer table as a ``pandas.DataFrame``."""
        return Table.of_rows(LayerRow, self.layers).to_pandas()

    @property
    def measure(self) -> Measure:
        """What is shared out: the variance, or the information."""
        return self.question.measure

    @property
    def why_not(self) -> str:
        """Why there are no shares or weights; empty if there are."""
        return self.posterior.no_weights

    def _laplace(self, what: str) -> Laplace:
        """The posterior, for tables that need its closed forms."""
        try:
            return self.posterior.as_laplace(what)
        except NotDefined as error:
            raise NotDefined(f"{error} {self.why_not}".strip()) from None

    def _shares(self, what: str) -> Shares:
        self._laplace(what)
        if self.found is None:
            raise BadOption(f"no inputs were given for {what}: call posterior.where(x).")
        return self.found

    @cached_property
    def _with_units(self) -> Shares | None:
        """Shares of layers and units: one more pass over the inputs, when units are first asked for."""
        if self.found is None or self.found.units:
            return self.found
        return shares(self._laplace("units()"), self.inputs, self.question, units=True)

    def _block(self, layer: str, what: str) -> tuple[Laplace, Block]:
        posterior = self._laplace(what)
        names = [b.name for b in posterior.blocks]
        return posterior, posterior.blocks[names.index(one_of(layer, names, "layer"))]

    # Tables

    @property
    def shares(self) -> Shares:
        """tr V_b of every input and layer."""
        return self._shares("shares")

    def units(self, layer: str) -> Table:
        """One row for each unit of a layer: row, filter, channel or attention head.

        ``variance_share`` and ``prior_share`` are of the whole network's variance, so that those of the units sum to
        their layer's. They are covariance shares and may be negative. The first call passes over the inputs again.
        """
        posterior, block = self._block(layer, "units()")
        return tables.unit_table(posterior, block, self._with_units)

    def weights(self, layer: str) -> Table:
        """One row for each weight of a layer: value, standard deviation, identified, signal to noise."""
        if not self.posterior.has_curvature:
            return tables.moment_table(self.posterior, layer)
        return tables.weight_table(*self._block(layer, "weights()"))

    def connections(self, layer: str, units: Sequence[int] | None = None) -> Table:
        """One row for each unit (or some of them) and each of its incoming connections, with its covariance share.

        A connection is a weight of a Linear layer, a kernel of a convolution, the bias; see ``where/shares.py``.
        The shares are of the whole network's variance: those of a unit's connections sum to the unit's.
        """
        found = self._shares("connections")
        posterior, block = self._block(layer, "connections()")
        count = units_of(posterior.network, block).count
        chosen = list(range(count)) if units is None else list(units)
        if not chosen or not all(0 <= u < count for u in chosen):
            raise BadOption(f"units={chosen} must be some of the {count} units of {layer!r}: 0..{count - 1}.")
        parts = connection_shares(posterior, self.inputs, {layer: chosen}, self.question).get(layer)
        if parts is None:
            raise NotDefined(f"the rows of {block.kind} {layer!r} have no connections; use units({layer!r}).")
        return tables.connection_table(parts, found)

    def by_input(self) -> Table:
        """One row for each input and layer."""
        return tables.by_input(self.shares)

    def by_class(self, labels: Tensor | Sequence[int] | None = None) -> Table:
        """One row for each class and layer, over the inputs of that class: the predicted one, or ``labels``."""
        if labels is None and not self.posterior.likelihood.shift_invariant:
            raise NotDefined("only classification predicts classes; pass labels=, one for each input.")
        return tables.by_class(self.shares, labels)

    def sensitivity(self, factors: Sequence[float] = (0.1, 1.0, 10.0)) -> Table:
        """Shares and explained of each layer when the prior precision is multiplied by each factor."""
        self._shares("sensitivity")
        return tables.sensitivity(self._laplace("sensitivity()"), self.inputs, factors, self.question)

    @property
    def activations(self) -> Table:
        """Variation of each layer's output under twenty draws, relative to its variation over the inputs.

        For members without common units: their disagreement, by CKA.
        """
        if self.inputs is None:
            raise BadOption("no inputs were given for activations: call posterior.where(x).")
        if not self.posterior.over_weights:
            return disagreement(self.posterior.comparable(), self.inputs)
        self._needs_network("activations")
        weights = self.posterior.as_weights("activations")
        return activations(weights, self.inputs, generator=torch.Generator().manual_seed(0))

    def slices(self, data: Any, steps: Sequence[float] = STEPS, seed: int = 0) -> Table:
        """The true loss on ``data`` along directions of large, small and random curvature against the Gaussian's."""
        self._needs_network("slices")
        return slices(self._laplace("slices()"), data, steps, seed)

    def _needs_network(self, what: str) -> None:
        if any(network.shift is not None for network in self.posterior.snapshots):
            raise NotDefined(f"{what} need weights of the network; those of a refined posterior are a linear model's.")

    @property
    def differences(self) -> Differences:
        """Rank-based differences in posterior standard deviation between layers, and between the units of a layer."""
        return self.differences_in("std")

    def differences_in(self, of: Quantity) -> Differences:
        """Differences in another quantity of the weights, such as ``"relative_curvature"`` or ``"identified"``."""
        return differences(self._laplace("differences"), of)

    @property
    def magnitude(self) -> Table:
        """Weight magnitude against uncertainty, by layer and overall."""
        return magnitude(self._laplace("magnitude"))

    @property
    def spectrum(self) -> Table:
        """Eigenvalues of every layer's curvature, and how well the data determine each direction."""
        return spectra(self._laplace("spectrum"))

    def answers(self, test: Any, *, ood: Any = None) -> Answers:
        """Answers in words: is the last layer enough, what could be pruned, how much is due to the prior? …"""
        return answers(self._laplace("answers()"), test, ood=ood)

    @property
    def residual(self) -> float:
        """Error of the units' parts as a sum for their layers, relative to the total variance."""
        found, by_unit = self._shares("the residual"), self._with_units
        assert by_unit is not None
        sums = found.variance.sum(0)
        parts = zip(found.names, sums, strict=True)
        off = [abs(float(by_unit.units[name].variance.sum() - total)) for name, total in parts]
        return max(off) / max(float(sums.sum()), TINY)

    @property
    def prior_dominates(self) -> bool:
        """Whether the prior is so strong that the data explain less than 1% of these inputs' variance."""
        if self.found is None:
            return False
        return float(1 - self.found.variance.sum() / max(float(self.found.prior.sum()), TINY)) < 0.01

    def _printed(self) -> tuple[list[str], list[list[str]]]:
        """Names of the columns, and the rows as text."""
        table = Table.of_rows(LayerRow, self.layers).filled()
        names = [name for name in table if name not in NOT_PRINTED]
        rows = [[number(row[name]) for name in names] for row in table.rows()]
        return [HEADS.get(name, name) for name in names], rows

    def __str__(self) -> str:
        lines = []
        if self.layers:
            lines.append(text(*self._printed(), left=2))
        return "\n".join([*lines, *self._notes()])

    def _notes(self) -> list[str]:
        """What to know of the table."""
        notes = [PRIOR_DOMINATES] * self.prior_dominates + [self.why_not] * bool(self.why_not)
        if self.interaction is None:
            return notes
        return [f"interaction between them: {self.interaction:.1%} of the variance", *notes]

    def __repr__(self) -> str:
        shown = self._largest()
        if len(shown.layers) == len(self.layers):
            return str(self)
        return f"{shown}\n… {len(self.layers) - SHORT} more layers with smaller shares: print it, or call to_pandas()."

    def _largest(self) -> Where:
        """The same with the layers of the largest shares alone (or weights, without inputs), in their order."""
        size = [row.variance_share if row.variance_share is not None else row.parameters or 0 for row in self.layers]
        kept = sorted(sorted(range(len(size)), key=lambda i: -size[i])[:SHORT])
        return replace(self, layers=[self.layers[i] for i in kept])

    def _repr_html_(self) -> str:
        what = f"Where: {len(self.layers)} layers"
        notes = self._notes()
        if not self.layers:
            return paragraph("\n".join([what, *notes]))
        head, rows = self._largest()._printed()
        return html(head, rows, what, "\n".join(notes), left=2, more=len(self.layers) - SHORT)

    # The page, and matplotlib figures

    def report(self, path: str | Path) -> Path:
        """Write one page with the layer table, the profile, the weights and the most uncertain inputs.

        :func:`whence.audit` also evaluates the uncertainty, which needs targets.
        """
        self._shares("report()")
        from whence.auditing import audit

        sections = ["layers", "profile", "sensitivity", "maps", "inputs"]
        return audit(self.posterior, test=self.inputs, sections=sections, progress=False).html(path)

    def plot_shares(self, ax: Any = None) -> Any:
        """Shares compared with the prior's, and explained, along the network."""
        return _figures().shares(self, ax=ax)

    def plot_distributions(self, of: Quantity = "std", ax: Any = None) -> Any:
        """The distribution of a quantity over each layer's weights."""
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
        """Weight magnitude against uncertainty."""
        return _figures().magnitude(self, layer, ax=ax)

    def plot_spectrum(self, ax: Any = None) -> Any:
        """Eigenvalues of every layer's curvature compared with the prior precision."""
        return _figures().spectrum(self, ax=ax)

    def plot_slices(self, data: Any, ax: Any = None) -> Any:
        """The true loss along directions of weight space compared with the Gaussian's."""
        return _figures().slices(self.slices(data), ax=ax)

    def plot_activations(self, ax: Any = None) -> Any:
        """Variation of each layer's output under draws."""
        return _figures().activations(self.activations, ax=ax)

    def plot_sensitivity(self, factors: Sequence[float] = (0.1, 1.0, 10.0), ax: Any = None) -> Any:
        """Shares and explained under other priors."""
        return _figures().sensitivity(self.sensitivity(factors), ax=ax)


def _figures() -> Any:
    """Import matplotlib only for figures."""
    from whence.report import figures

    return figures


@torch.inference_mode(False)
def where_laplace(
    posterior: Laplace, x: Any, measure: str = "variance", probes: ProbesOption = "auto", at: Any = None
) -> Where:
    """See :meth:`whence.posteriors.laplace.Laplace.where`."""
    question = Question(Measure.parse(measure, "measure"), at, check_probes(probes))
    if x is None:
        return where_given(posterior, None, None)
    x = posterior.network.only_inputs(x)
    if not isinstance(x, (Tensor, Mapping, tuple)) and isinstance(x, Iterable):
        x = list(x)  # it is read more than once
    with failures_explained(posterior.network, x):
        found = shares(posterior, x, question)
    return where_given(posterior, x, found)


def where_given(posterior: Laplace, x: Any, found: Shares | None) -> Where:
    """The tables for inputs whose shares are known."""
    if posterior.curvature.keep is not None:
        raise NotDefined("the layer table of a subnetwork mask is not defined; use variance().")
    rows = list(layer_rows(posterior))
    if found is None:
        return Where(rows, posterior)
    sums = found.over_inputs()
    names = ("variance_share", "variance_share_error", "prior_share", "explained", "explained_error")
    columns = {name: values.tolist() for name in names if (values := getattr(sums, name)) is not None}
    rows = [replace(row, **{name: values[i] for name, values in columns.items()}) for i, row in enumerate(rows)]
    return Where(rows, posterior, x, found.question, found)
