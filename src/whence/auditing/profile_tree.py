"""The nodes of a profile and their variances for some inputs: network → layer → unit → connections.

Index legend: U units of a layer that have a node, G connections of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from whence.recording.units import Units
from whence.report.record.common import Numbers
from whence.report.record.sections import Node
from whence.where.connections import ConnectionShares
from whence.where.shares import Shares

NEGLIGIBLE = 1e-14  # share of the prior variance below which explained is 0


class Variance(NamedTuple):
    """Predictive variance under the posterior and under the prior alone."""

    posterior: float
    prior: float

    def less(self, parts: list[Variance]) -> Variance:
        """Subtract the parts."""
        posterior, prior = self
        for part in parts:
            posterior, prior = posterior - part.posterior, prior - part.prior
        return Variance(posterior, prior)


@dataclass(frozen=True)
class VarianceSums:
    """Sums over the inputs of one view."""

    layers: Shares
    connections: Mapping[str, ConnectionShares]  # scaled to all inputs of the view, if they are of some

    @property
    def total(self) -> Variance:
        return Variance(float(self.layers.variance.sum()), float(self.layers.prior.sum()))

    @property
    def inputs(self) -> int:
        return len(self.layers.variance)

    def layer(self, index: int) -> Variance:
        return Variance(float(self.layers.variance[:, index].sum()), float(self.layers.prior[:, index].sum()))

    def unit(self, layer: str, unit: int) -> Variance:
        found = self.layers.units[layer]
        return Variance(float(found.variance[unit]), float(found.prior[unit]))

    def connection(self, layer: str, place: int, which: int) -> Variance:
        found = self.connections[layer]
        return Variance(float(found.variance[place, which]), float(found.prior[place, which]))


@dataclass(frozen=True)
class LayerNodes:
    """The units and connections of a layer that have a node."""

    name: str
    index: int  # of the layer
    weights: int
    units: Units
    shown: list[int]  # units, in their order
    unit_weights: Tensor  # [units]
    names: tuple[str, ...] = ()  # of the connections
    group_weights: Tensor | None = None  # of each (shown unit, connection) [U, G]; None: no such level
    connections: Mapping[int, list[int]] = field(default_factory=dict)  # of each unit

    def groups(self, place: int) -> tuple[list[int], int]:
        """Connections of a shown unit that have a node, and the number of those that do not."""
        chosen = self.connections.get(self.shown[place], [])
        if not chosen or self.group_weights is None:
            return [], 0
        return chosen, int((self.group_weights[place] > 0).sum()) - len(chosen)

    def nodes(self) -> Iterator[Node]:
        """Nodes of the layer, its units and their connections; parents before children."""
        own, kind = f"n{self.index}", self.units.kind
        yield Node(own, "n", "layer", self.name, self.weights, self.name, None)
        for place, unit in enumerate(self.shown):
            key, weights = f"{own}u{unit}", int(self.unit_weights[unit])
            yield Node(key, own, "unit", f"{kind} {unit}", weights, self.name, unit)
            yield from self._group_nodes(place, key, weights)
        left = self.units.count - len(self.shown)
        if left:
            words = f"{left:,} other {kind}{'s' if left > 1 else ''}"
            weights = self.weights - int(self.unit_weights[self.shown].sum())
            yield Node(f"{own}uo", own, "unit", words, weights, self.name, None)

    def _group_nodes(self, place: int, parent: str, weights: int) -> Iterator[Node]:
        chosen, left = self.groups(place)
        if not chosen:
            return
        assert self.group_weights is not None
        sizes, unit = self.group_weights[place], self.shown[place]
        for which in chosen:
            name = self.names[which]
            label = f"from {name}" if name.partition(" ")[0] in ("input", "channel") else name
            yield Node(f"{parent}g{which}", parent, "group", label, int(sizes[which]), self.name, unit)
        if left:
            others = weights - int(sizes[chosen].sum())
            yield Node(f"{parent}go", parent, "group", f"{left:,} others", others, self.name, unit)

    def variances(self, sums: VarianceSums) -> Iterator[Variance]:
        """The variance of every node, in the order of :meth:`nodes`."""
        whole = sums.layer(self.index)
        units = [sums.unit(self.name, unit) for unit in self.shown]
        yield whole
        for place, own in enumerate(units):
            chosen, left = self.groups(place)
            groups = [sums.connection(self.name, place, which) for which in chosen]
            yield own
            yield from groups
            if left:
                yield own.less(groups)
        if self.units.count > len(self.shown):
            yield whole.less(units)


def nodes_of(network: str, layers: list[LayerNodes]) -> tuple[Node, ...]:
    """All nodes of the tree; parents before children."""
    whole = Node("n", None, "network", network, sum(layer.weights for layer in layers), None, None)
    return whole, *(node for layer in layers for node in layer.nodes())


class NodeShares(NamedTuple):
    """One number for each node."""

    share: Numbers
    prior_share: Numbers
    explained: Numbers


def shares_of(layers: list[LayerNodes], sums: VarianceSums) -> NodeShares:
    """Share, prior share, and explained of every node, in the order of :func:`nodes_of`."""
    found = [sums.total, *(variance for layer in layers for variance in layer.variances(sums))]
    total, prior_total = (max(value, torch.finfo(torch.float64).tiny) for value in sums.total)
    return NodeShares(
        tuple(one.posterior / total for one in found),
        tuple(one.prior / prior_total for one in found),
        tuple(1 - one.posterior / one.prior if one.prior > NEGLIGIBLE * prior_total else None for one in found),
    )
