"""Per-layer uncertainty of several methods side by side.

Shares are each method's own: in closed form for Laplace, by draws with one layer random for other posteriors over
weights, by site for dropout. Every method has the disagreement of its draws in each layer (1 − CKA), which does
not need common weight coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from whence.engine.batches import Inputs
from whence.errors import WhenceError
from whence.numerals import percent
from whence.posteriors.base import Posterior
from whence.report.record.common import Numbers
from whence.report.record.comparison import Agreement, Compared, LayersOfMethods
from whence.where.activations import disagreement
from whence.where.layer_rows import LayerRow
from whence.where.sampled import SITE
from whence.where.weights import spearman

ByLayer = Mapping[str, float | None]
NAMED = ("nll", "ece", "ood_auroc", "rmse")  # metrics of which the best are named


@dataclass(frozen=True)
class MethodLayers:
    """Per-layer quantities of one method; the defaults are those of the plain network."""

    share: ByLayer = field(default_factory=dict)
    error: ByLayer = field(default_factory=dict)
    explained: ByLayer = field(default_factory=dict)
    disagreement: ByLayer = field(default_factory=dict)
    interaction: float | None = None
    why_not: str | None = "it has no distribution over weights."


def layers_of(posterior: Posterior, inputs: Inputs) -> MethodLayers:
    """Shares and disagreement of one method."""
    try:
        table = posterior.where(inputs)
    except WhenceError:
        table = None
    rows = {_row_name(row): row for row in table.layers if row.name != "output"} if table is not None else {}
    return MethodLayers(
        {name: row.variance_share for name, row in rows.items()},
        {name: row.variance_share_error for name, row in rows.items()},
        {name: row.explained for name, row in rows.items()},
        _disagreement(posterior, inputs),
        None if table is None else table.interaction,
        _why_not(posterior, rows),
    )


def _row_name(row: LayerRow) -> str:
    return f"{row.name} (dropout)" if row.kind == SITE else row.name


def _disagreement(posterior: Posterior, inputs: Inputs) -> ByLayer:
    """1 − CKA between draws, by layer and for the output."""
    try:
        table = disagreement(posterior.comparable(), inputs)
    except WhenceError:
        return {}
    own = {"output", *(name for name, _ in posterior.snapshots[0].module.named_modules())}
    # names are from the serving module, which may wrap the network
    names = [name if name in own else name.partition(".")[2] for name in table["name"]]
    return dict(zip(names, table["disagreement"], strict=True))


def _why_not(posterior: Posterior, rows: Mapping[str, LayerRow]) -> str | None:
    if any(row.variance_share is not None for row in rows.values()):
        return None
    try:
        return posterior.where().why_not or "it has no shares."
    except WhenceError as error:
        return str(error)


def side_by_side(methods: Sequence[MethodLayers], order: Sequence[str]) -> LayersOfMethods | None:
    """One row for each method; None if no method has layers. ``order`` is the order of the network's modules."""
    named = {name for one in methods for name in (*one.share, *one.disagreement)}
    if not named:
        return None
    place = {name: i for i, name in enumerate(order)}

    def position(name: str) -> tuple[bool, int, str]:
        return name == "output", place.get(name.removesuffix(" (dropout)"), len(place)), name

    names = sorted(named, key=position)

    def rows(column: str) -> tuple[Numbers | None, ...]:
        found = [getattr(one, column) for one in methods]
        known = [any(value is not None for value in values.values()) for values in found]
        return tuple(tuple(v.get(n) for n in names) if any_ else None for v, any_ in zip(found, known, strict=True))

    return LayersOfMethods(
        tuple(names), rows("share"), rows("error"), rows("explained"),
        tuple(one.interaction for one in methods), rows("disagreement"), tuple(one.why_not for one in methods),
    )  # fmt: skip


def agreement(names: Sequence[str], layers: LayersOfMethods) -> Agreement | None:
    """Spearman's ρ between the shares of methods, and the share of the variance that would have to be redistributed."""
    rows = {name: shares for name, shares in zip(names, layers.share, strict=True) if shares is not None}
    if len(rows) < 2:
        return None
    pairs = [[_agreement(a, b) for b in rows.values()] for a in rows.values()]
    rho, moved = (tuple(tuple(pair[which] for pair in line) for line in pairs) for which in (0, 1))
    return Agreement(tuple(rows), rho, moved)


def _agreement(a: Numbers, b: Numbers) -> tuple[float | None, float | None]:
    """Computed over the layers that both methods have, with shares normalised to 1."""
    common = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    if len(common) < 2:
        return None, None
    one, other = torch.tensor(common, dtype=torch.float64).unbind(1)
    apart = (one / one.sum() - other / other.sum()).abs().sum() / 2
    return float(spearman(one, other)), float(apart)


def comparison_words(record: Compared) -> Iterator[str]:
    """Summarise the tables in sentences."""
    for metric in record.metrics:
        best = [name for name, good in zip(record.names, metric.best, strict=True) if good]
        if metric.name in NAMED and best:
            if len(best) < len(metric.best):
                yield f"{metric.label}: best {'is' if len(best) == 1 else 'are'} {', '.join(best)}."
            else:
                yield f"{metric.label}: no significant difference between the methods."
    if record.agreement is not None:
        found = record.agreement
        pairs = [
            (apart, found.methods[i], found.methods[j])
            for i, row in enumerate(found.total_variation)
            for j, apart in enumerate(row[:i])
            if apart is not None
        ]
        if pairs:
            apart, one, other = max(pairs)
            same = "different" if apart >= 0.4 else "partly different" if apart >= 0.1 else "the same"
            yield (
                f"The variance of {one} and {other} comes from {same} layers: {percent(apart, 0)} of it would have to "
                "move to "
                "make their shares equal."
            )
