"""Figures of the networks of the grid, by cell and seed.

A figure takes a network's values and a condition: structure and factor on τ.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch

from reproductions.kniebel2020.cells import Cell, all_cells
from reproductions.kniebel2020.grid.config import QUICK
from reproductions.kniebel2020.stability import Condition, Get
from reproductions.store import Values
from whence.where.weights import spearman

KNOWN: dict[str, Cell] = {cell.name: cell for cell in (*QUICK.cells, *all_cells())}
Cells = dict[str, list[Values]]


def cells_of(units: Values) -> Cells:
    """The networks of each cell that has at least two seeds."""
    found: Cells = {}
    for name, value in units.items():
        found.setdefault(name.rpartition("/")[0], []).append(value)
    return {name: networks for name, networks in found.items() if len(networks) > 1}


def main(cells: Cells) -> Cells:
    """Without the variations of one factor."""
    return {name: networks for name, networks in cells.items() if not KNOWN[name].factor}


def deeper(cells: Cells, depth: int = 2) -> Cells:
    """Networks with at least so many layers that have a weight matrix."""
    return {name: networks for name, networks in cells.items() if networks[0]["network"]["depth"] >= depth}


def under(network: Values, condition: Condition) -> Values:
    """The tables under a condition."""
    structure, factor = condition
    return network["structures"][structure][factor]  # type: ignore[no-any-return]


def matrices(network: Values) -> list[int]:
    """The layers with a weight matrix, in their order; normalisations and the like are left out."""
    return [i for i, layer in enumerate(network["network"]["layers"]) if layer["place"] is not None]


def column(network: Values, condition: Condition, what: str) -> list[float]:
    """Of the layers with a weight matrix."""
    values = under(network, condition)[what]
    return [values[i] for i in matrices(network)]


# Between layers


def between(what: str) -> Get:
    """ε² between layers."""

    def get(network: Values, condition: Condition) -> float:
        if what.endswith("curvature"):
            return float(network["structures"][condition[0]]["curvature"]["between"][what])
        return float(under(network, condition)["between"][what])

    return get


def explained_range(network: Values, condition: Condition) -> float:
    values = column(network, condition, "explained")
    return max(values) - min(values)


def largest_share(network: Values, condition: Condition) -> float:
    return float(max(under(network, condition)["share"]))


def last_above_others(network: Values, condition: Condition) -> float:
    """Explained in the last layer, less the mean of those before."""
    *others, last = column(network, condition, "explained")
    return last - fmean(others)


def first_above_middle(network: Values, condition: Condition) -> float:
    """Explained in the first layer, less the mean of those between first and last."""
    first, *middle, _ = column(network, condition, "explained")
    return first - fmean(middle)


def slope(network: Values, condition: Condition) -> float:
    """Of explained over relative depth, by least squares."""
    values = column(network, condition, "explained")
    places = [layer["place"] for layer in network["network"]["layers"] if layer["place"] is not None]
    return line(places, values)


def line(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of a line."""
    middle, mean = fmean(x), fmean(y)
    return sum((a - middle) * (b - mean) for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


def with_parameters(what: str) -> Get:
    """Rank correlation, over layers, of a column with the number of weights."""

    def get(network: Values, condition: Condition) -> float:
        sizes = [network["network"]["layers"][i]["parameters"] for i in matrices(network)]
        return ranks(sizes, column(network, condition, what))

    return get


def std_with_prior(network: Values, condition: Condition) -> float:
    """Rank correlation, over layers, of the posterior's standard deviation with the prior's."""
    prior = network["structures"][condition[0]]["prior"]["std"]
    return ranks([prior[i] for i in matrices(network)], column(network, condition, "std"))


def ranks(x: Sequence[float], y: Sequence[float]) -> float:
    return spearman(*(torch.tensor(list(values), dtype=torch.float64) for values in (x, y)))


def least(networks: Sequence[Values], conditions: Sequence[Condition]) -> tuple[str, float]:
    """The layer that is explained least, most often, and how often over seeds and conditions."""
    found = []
    for network in networks:
        names = [network["network"]["layers"][i]["name"] for i in matrices(network)]
        for condition in conditions:
            values = column(network, condition, "explained")
            found.append(names[values.index(min(values))])
    first = max(dict.fromkeys(found), key=found.count)
    return first, found.count(first) / len(found)


# Inside layers


def inside(what: str) -> Get:
    """ε² between the units of a layer, mean over layers with a weight matrix."""

    def get(network: Values, condition: Condition) -> float:
        if what.endswith("curvature"):
            values = network["structures"][condition[0]]["curvature"]["inside"][what]
        else:
            values = under(network, condition)["inside"][what]
        return fmean(values[i] for i in matrices(network))

    return get


def unidentified(network: Values, condition: Condition) -> float:
    """Share of all units that the data say almost nothing about."""
    units = network["structures"][condition[0]]["curvature"]["units"]
    return float(sum(under(network, condition)["unidentified"]) / sum(units))


def dead(network: Values, condition: Condition) -> float:
    """Share of all units whose weights have no curvature."""
    curvature = network["structures"][condition[0]]["curvature"]
    return float(sum(curvature["dead"]) / sum(curvature["units"]))


def middle_above_edge(network: Values, condition: Condition) -> float:
    """Identified of pixels in the middle of images over that at their edge, less 1."""
    found = network["pixels"][condition[1]]
    return float(found["middle"] / max(found["edge"], 1e-12) - 1)


def with_activity(network: Values, condition: Condition) -> float:
    return float(network["pixels"][condition[1]]["activity"])


def with_class_accuracy(network: Values, condition: Condition) -> float:
    """Rank correlation, over classes, of accuracy with what is explained for inputs of the class."""
    found = under(network, condition)["classes"]
    return ranks(found["accuracy"], found["explained"])


# Size


def with_size(what: str) -> Get:
    """ρ(|w|, a quantity) inside layers, mean over layers with a weight matrix."""

    def get(network: Values, condition: Condition) -> float:
        values = under(network, condition)["size"][what]["layers"]
        return fmean(values[i] for i in matrices(network))

    return get


def curvature_with_size(network: Values, condition: Condition) -> float:
    return float(network["structures"][condition[0]]["curvature"]["size"])


# The last layer


def last_less_all(score: str) -> Get:
    """A score of the last layer alone less that of all layers, at the tuned prior and beside it."""

    def get(network: Values, condition: Condition) -> float:
        found = network["enough"][condition[0]][condition[1]]
        return float(found["last"][score] - found["all"][score])

    return get


def set_less_all(which: str, score: str) -> Get:
    """Of a set of layers chosen on validation data, with Kronecker factors at the tuned prior."""
    return lambda network, _: float(network["sets"][which][score] - network["enough"]["kron"]["1"]["all"][score])


def size_of_set(which: str) -> Get:
    """Its share of the layers."""
    return lambda network, _: len(network["sets"][which]["layers"]) / len(network["network"]["layers"])


def weights_of_set(which: str) -> Get:
    return lambda network, _: float(network["sets"][which]["weights"])


def over_plain(key: str, score: str) -> Get:
    """All layers, tuned, against the plain network or the one with a temperature."""
    return lambda network, c: float(network["enough"][c[0]][c[1]]["all"][score] - network[key][score])
