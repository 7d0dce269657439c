"""How uncertainty is spread over weights: between layers, inside a layer, against the size of the weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from whence.curvature.blocks import Block
from whence.curvature.units import units_of
from whence.errors import one_of
from whence.where.ranks import cliffs_delta, kruskal, spearman
from whence.where.tabular import Table
from whence.where.weights import curvature_of, identified_of, thinned, variance_of

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

Quantity = Literal["std", "identified", "signal_to_noise", "curvature", "relative_curvature"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
MOST = 20_000  # weights of a layer that take part; more are drawn evenly


@dataclass(frozen=True)
class Differences:
    """Effect sizes by ranks: they do not grow with the number of weights, as p-values would."""

    of: str
    between: Table  # pairs of layers: medians and Cliff's δ
    inside: Table  # each layer's units: Kruskal–Wallis H and ε²
    overall: float  # ε² of all layers together

    def __str__(self) -> str:
        words = "hardly" if self.overall < 0.01 else "weakly" if self.overall < 0.06 else "clearly"
        if self.overall >= 0.14:
            words = "strongly"
        return (
            f"layers differ {words} in {self.of} (ε² = {self.overall:.3f})\n\nbetween layers\n{self.between}\n\n"
            f"inside layers, between units\n{self.inside}"
        )


def quantity_of(posterior: Laplace, block: Block, of: Quantity) -> Tensor:
    """The quantity of every weight of a block, [P]."""
    variance = variance_of(posterior, block)
    if of == "std":
        return variance.sqrt()
    if of == "identified":
        return identified_of(posterior, block)
    weights = block.gather(posterior.mean()).double().cpu()
    if of == "signal_to_noise":
        return weights.abs() / variance.sqrt()
    curvature = curvature_of(posterior, block)
    return curvature if of == "curvature" else weights.square() * curvature


def differences(posterior: Laplace, of: Quantity = "std") -> Differences:
    """Do layers differ, and units inside a layer?"""
    one_of(of, QUANTITIES, "quantity")
    values = {b.name: quantity_of(posterior, b, of) for b in posterior.blocks}
    some = {name: thinned(v, MOST) for name, v in values.items()}
    pairs: dict[str, list[Any]] = {key: [] for key in ("first", "second", "first_median", "second_median", "delta")}
    names = list(values)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            row = (
                first, second, float(values[first].median()), float(values[second].median()),
                cliffs_delta(some[first], some[second]),
            )  # fmt: skip
            for key, value in zip(pairs, row, strict=True):
                pairs[key].append(value)
    inside: dict[str, list[Any]] = {key: [] for key in ("name", "units", "H", "epsilon_squared")}
    for block in posterior.blocks:
        units = units_of(posterior.network, block)
        h, effect = _between_units(values[block.name], units.of_weight, units.count)
        for key, value in zip(inside, (block.name, units.count, h, effect), strict=True):
            inside[key].append(value)
    overall = kruskal(list(some.values()))[1]
    return Differences(of, Table(pairs), Table(inside), overall)


def _between_units(values: Tensor, unit: Tensor, count: int) -> tuple[float, float]:
    step = -(-len(values) // (10 * MOST))
    values, unit = values[::step], unit[::step]
    order = unit.argsort(stable=True)
    sizes = [n for n in torch.bincount(unit, minlength=count).tolist() if n]
    return kruskal(values[order].split(sizes))


def magnitude(posterior: Laplace) -> Table:
    """Weight size against uncertainty: Spearman's ρ of |w| with std and with identified, by layer and overall."""
    rows: dict[str, list[Any]] = {key: [] for key in ("name", "weights", "rho_std", "rho_identified")}
    sizes, stds, known = [], [], []
    for block in posterior.blocks:
        variance = variance_of(posterior, block)
        size = block.gather(posterior.mean()).double().cpu().abs()
        identified = identified_of(posterior, block)
        sizes.append(size)
        stds.append(variance.sqrt())
        known.append(identified)
        _add(rows, block.name, size, variance.sqrt(), identified)
    _add(rows, "all layers", torch.cat(sizes), torch.cat(stds), torch.cat(known))
    return Table(rows)


def _add(rows: dict[str, list[Any]], name: str, size: Tensor, std: Tensor, identified: Tensor) -> None:
    values = (name, len(size), spearman(size, std), spearman(size, identified))
    for key, value in zip(rows, values, strict=True):
        rows[key].append(value)
