"""Quantities of single weights in a layer, thinned at random, and rank statistics of them.

Index legend: P weights of a block, U units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import whence
from whence.recording.blocks import Block
from whence.recording.units import units_of
from whence.where.weights import curvature_of, identified_of, kruskal, spearman, variance_of, weights_of

COMPARED = 20_000  # weights of a layer in a rank statistic
UNKNOWN = 0.01  # identified less than this


@dataclass(frozen=True)
class Layer:
    """Every weight of a layer under one posterior, in float64 on the posterior's device, [P] each."""

    name: str
    unit: Tensor
    units: int
    size: Tensor  # |w|
    std: Tensor
    identified: Tensor
    curvature: Tensor

    @property
    def relative(self) -> Tensor:
        """w² diag(H) / N."""
        return self.size.square() * self.curvature

    def of(self, what: str) -> Tensor:
        return self.relative if what == "relative_curvature" else getattr(self, what)  # type: ignore[no-any-return]

    def some(self, what: str) -> Tensor:
        """A random part of the weights, the same for every quantity."""
        values = self.of(what).cpu()
        return values[chosen(len(values))]

    def by_unit(self, what: str) -> Tensor:
        """The mean of each unit's weights, [U]."""
        values, index = self.of(what).cpu(), self.unit.cpu()
        count = torch.bincount(index, minlength=self.units).double()
        return torch.zeros(self.units, dtype=torch.float64).index_add(0, index, values) / count.clamp(min=1)


def chosen(count: int) -> Tensor:
    """At most :data:`COMPARED` places, without any order of rows or columns."""
    if count <= COMPARED:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(count))[:COMPARED]


def layers_of(posterior: whence.Laplace) -> list[Layer]:
    return [_layer(posterior, block) for block in posterior.blocks]


def _layer(posterior: whence.Laplace, block: Block) -> Layer:
    device = posterior.network.device
    units = units_of(posterior.network, block)
    return Layer(
        block.name, units.of_weight, units.count, weights_of(posterior, block, device).abs(),
        variance_of(posterior, block, device).sqrt(), identified_of(posterior, block, device),
        curvature_of(posterior, block, device),
    )  # fmt: skip


def quantiles(layer: Layer, what: str) -> list[float]:
    """5, 25, 50, 75 and 95%."""
    values = layer.some(what).sort().values
    return [float(values[round(q * (len(values) - 1))]) for q in (0.05, 0.25, 0.5, 0.75, 0.95)]


def between(layers: list[Layer], what: str) -> float:
    """ε² between layers."""
    return kruskal([layer.some(what) for layer in layers])[1]


def inside(layer: Layer, what: str) -> float:
    """ε² between the units of a layer."""
    values, unit = layer.some(what), layer.unit[chosen(len(layer.unit))]
    order = unit.argsort(stable=True)
    sizes = [n for n in torch.bincount(unit, minlength=layer.units).tolist() if n]
    return kruskal(values[order].split(sizes))[1]


def with_size(layers: list[Layer], what: str) -> float:
    """Spearman's ρ of |w| with a quantity, over all weights of some layers."""
    return spearman(*(torch.cat([layer.some(name) for layer in layers]) for name in ("size", what)))


def unidentified(layer: Layer) -> tuple[int, int]:
    """Units that the data say almost nothing about, and dead ones, whose weights have no curvature at all."""
    return int((layer.by_unit("identified") < UNKNOWN).sum()), int((layer.by_unit("curvature") <= 0).sum())
