"""The nodes of a profile, and what each view puts on them: network → layer → unit → group of weights.

Index legend: U units shown of a layer, G connections of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.curvature.units import Units
from whence.where.connections import ConnectionShares
from whence.where.shares import Shares, UnitShares

Pair = tuple[float, float]  # variance under the posterior, and under the prior alone
NEGLIGIBLE = 1e-14  # of the prior's variance: what reaches nothing explains nothing


@dataclass(frozen=True)
class Parts:
    """Sums over the inputs of one view."""

    layers: Shares
    units: Mapping[str, UnitShares]
    connections: Mapping[str, ConnectionShares]
    scale: Mapping[str, float] = field(default_factory=dict)  # inputs of the view for each one behind the connections

    @property
    def total(self) -> Pair:
        return float(self.layers.variance.sum()), float(self.layers.prior.sum())

    @property
    def inputs(self) -> int:
        return len(self.layers.variance)

    def layer(self, index: int) -> Pair:
        return float(self.layers.variance[:, index].sum()), float(self.layers.prior[:, index].sum())

    def unit(self, layer: str, unit: int) -> Pair:
        found = self.units[layer]
        return float(found.variance[unit]), float(found.prior[unit])

    def connection(self, layer: str, place: int, which: int) -> Pair:
        found, scale = self.connections[layer], self.scale.get(layer, 1.0)
        return float(found.variance[place, which]) * scale, float(found.prior[place, which]) * scale


@dataclass(frozen=True)
class Leaf:
    """A layer's part of the tree: which units and connections have a node."""

    name: str
    index: int  # of the layer
    weights: int
    units: Units
    shown: list[int]  # units, in their order
    connections: dict[int, list[int]]  # unit → connections that have a node; none: no such level
    names: tuple[str, ...] = ()  # of the layer's connections
    sizes: Tensor | None = None  # weights of each unit [units]
    group_sizes: Tensor | None = None  # weights of each (shown unit, connection) [U, G]


@dataclass(frozen=True)
class Node:
    """One rectangle; ``value`` gives its parts in a view."""

    id: str
    parent: str | None
    level: str
    label: str
    weights: int
    layer: str | None = None
    unit: int | None = None

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "parent": self.parent,
            "level": self.level,
            "label": self.label,
            "weights": self.weights,
            "layer": self.layer,
            "unit": self.unit,
        }


def nodes(network: str, leaves: list[Leaf]) -> list[Node]:
    """Parents before children."""
    found = [Node("n", None, "network", network, sum(leaf.weights for leaf in leaves))]
    for leaf in leaves:
        own = f"n{leaf.index}"
        found.append(Node(own, "n", "layer", leaf.name, leaf.weights, leaf.name))
        assert leaf.sizes is not None
        for place, unit in enumerate(leaf.shown):
            here = f"{own}u{unit}"
            size = int(leaf.sizes[unit])
            found.append(Node(here, own, "unit", f"{leaf.units.kind} {unit}", size, leaf.name, unit))
            found += _groups(leaf, place, unit, here, size)
        left = leaf.units.count - len(leaf.shown)
        if left:
            weights = leaf.weights - int(leaf.sizes[leaf.shown].sum())
            words = f"{left:,} other {leaf.units.kind}{'s' if left > 1 else ''}"
            found.append(Node(f"{own}uo", own, "unit", words, weights, leaf.name))
    return found


def _groups(leaf: Leaf, place: int, unit: int, parent: str, size: int) -> Iterator[Node]:
    chosen = leaf.connections.get(unit, [])
    if not chosen:
        return
    assert leaf.group_sizes is not None
    sizes = leaf.group_sizes[place]
    for which in chosen:
        name = leaf.names[which]
        word = f"from {name}" if name.partition(" ")[0] in ("input", "channel") else name
        yield Node(f"{parent}g{which}", parent, "group", word, int(sizes[which]), leaf.name, unit)
    left = int((sizes > 0).sum()) - len(chosen)
    if left:
        weights = size - int(sizes[chosen].sum())
        yield Node(f"{parent}go", parent, "group", f"{left:,} others", weights, leaf.name, unit)


def values(leaves: list[Leaf], parts: Parts) -> list[Pair]:
    """The parts of every node in a view, in the order of :func:`nodes`."""
    found = [parts.total]
    for leaf in leaves:
        whole = parts.layer(leaf.index)
        found.append(whole)
        rest = whole
        for place, unit in enumerate(leaf.shown):
            own = parts.unit(leaf.name, unit)
            found.append(own)
            rest = _less(rest, own)
            found += _group_values(leaf, parts, place, unit, own)
        if leaf.units.count > len(leaf.shown):
            found.append(rest)
    return found


def _group_values(leaf: Leaf, parts: Parts, place: int, unit: int, own: Pair) -> list[Pair]:
    chosen = leaf.connections.get(unit, [])
    if not chosen:
        return []
    found = [parts.connection(leaf.name, place, which) for which in chosen]
    assert leaf.group_sizes is not None
    if int((leaf.group_sizes[place] > 0).sum()) > len(chosen):
        rest = own
        for value in found:
            rest = _less(rest, value)
        found.append(rest)
    return found


def _less(a: Pair, b: Pair) -> Pair:
    return a[0] - b[0], a[1] - b[1]


def shares(found: list[Pair]) -> tuple[list[float], list[float], list[float | None]]:
    """Share, prior share, and explained of every node; the first node is the whole."""
    total, prior_total = (max(v, torch.finfo(torch.float64).tiny) for v in found[0])
    own = [v / total for v, _ in found]
    prior = [p / prior_total for _, p in found]
    explained = [1 - v / p if p > NEGLIGIBLE * prior_total else None for v, p in found]
    return own, prior, explained
