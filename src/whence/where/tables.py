"""Tables made from shares and from the quantities of single weights.

Index legend: P weights of a block, U units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import BadData, BadOption, NotDefined, one_of
from whence.recording.blocks import Block
from whence.recording.units import units_of
from whence.tables import Table
from whence.where.connections import ConnectionShares
from whence.where.one_pass import Asked, examine
from whence.where.question import Question
from whence.where.shares import TINY, Shares
from whence.where.weights import curvature_of, identified_of, variance_of, weights_of

if TYPE_CHECKING:
    from whence.posteriors.base import Posterior
    from whence.posteriors.laplace.posterior import Laplace


# Weights, units, connections


def weight_table(posterior: Laplace, block: Block) -> Table:
    """One row for each weight, in the block's order."""
    weights, variance, curvature = (of(posterior, block) for of in (weights_of, variance_of, curvature_of))
    return Table(
        {
            **_places({p.name: p.shape for p in block.params}),
            "unit": units_of(posterior.network, block).of_weight,
            "weight": weights,
            "std": variance.sqrt(),
            "identified": identified_of(posterior, block),
            "signal_to_noise": weights.abs() / variance.sqrt(),
            "curvature": curvature,
            "relative_curvature": weights.square() * curvature,
        }
    )


def moment_table(posterior: Posterior, layer: str) -> Table:
    """The weight table of a posterior without curvature: value, standard deviation, signal to noise."""
    mean, variance = posterior.mean(), posterior.variance()
    names = posterior.layers()[one_of(layer, posterior.layers(), "layer")]
    weights, squares = (torch.cat([v[n].double().cpu().flatten() for n in names]) for v in (mean, variance))
    std = squares.sqrt()
    places = _places({n: mean[n].shape for n in names})
    return Table({**places, "weight": weights, "std": std, "signal_to_noise": weights.abs() / std})


def _places(shapes: dict[str, Sequence[int]]) -> dict[str, list[Any]]:
    """Parameter and index of every weight."""
    names, index = [], []
    for name, shape in shapes.items():
        found = torch.ones(tuple(shape)).nonzero().tolist()
        names += [name] * len(found)
        index += [tuple(i) for i in found]
    return {"parameter": names, "index": index}


def unit_table(posterior: Laplace, block: Block, found: Shares | None = None) -> Table:
    """One row for each unit; with shares of the network's total variance if given."""
    weights, variance, curvature = (of(posterior, block) for of in (weights_of, variance_of, curvature_of))
    units = units_of(posterior.network, block)
    counts = units.total(torch.ones_like(variance))
    identified = units.total(identified_of(posterior, block))
    columns = {
        "unit": torch.arange(units.count),
        "weights": counts.long(),
        "std": (units.total(variance) / counts).sqrt(),
        "identified": identified / counts,
        "effective_parameters": identified,
        "signal_to_noise": (units.total(weights.square() / variance) / counts).sqrt(),
        "curvature": units.total(curvature) / counts,
        "relative_curvature": units.total(weights.square() * curvature) / counts,
    }
    if found is not None:
        own, prior_total = found.units[block.name], float(found.prior.sum())
        columns["variance_share"] = own.variance / max(float(found.variance.sum()), TINY)
        if own.share_error is not None:
            columns["variance_share_error"] = own.share_error
        columns["prior_share"] = own.prior / max(prior_total, TINY)
        reaches = own.prior > 1e-14 * prior_total  # explained is 0 for units that reach no output
        columns["explained"] = torch.where(reaches, 1 - own.variance / own.prior.clamp(min=TINY), 0.0)
    return Table(columns, f"a unit is a {units.kind} of {block.name}")


def connection_table(parts: ConnectionShares, found: Shares) -> Table:
    """One row for each unit and connection that it has, as shares of the network's total variance."""
    units, index = (parts.prior > 0).nonzero(as_tuple=True)
    variance, prior = parts.variance[units, index], parts.prior[units, index]
    return Table(
        {
            "unit": torch.tensor(parts.units)[units],
            "connection": [parts.connections.names[i] for i in index.tolist()],
            "variance_share": variance / max(float(found.variance.sum()), TINY),
            "prior_share": prior / max(float(found.prior.sum()), TINY),
            "explained": 1 - variance / prior.clamp(min=TINY),
        },
        "connections that reach no output are omitted",
    )


# Inputs, classes, priors


def by_input(found: Shares) -> Table:
    """One row for each input and layer: share of that input's variance, and explained."""
    count, blocks = found.variance.shape
    prior = found.prior
    return Table(
        {
            "input": torch.arange(count).repeat_interleave(blocks),
            "name": list(found.names) * count,
            "variance": found.variance.flatten(),
            "variance_share": (found.variance / found.total.unsqueeze(1).clamp(min=TINY)).flatten(),
            "prior_share": (prior / prior.sum(1, keepdim=True).clamp(min=TINY)).flatten(),
            "explained": (1 - found.unexplained).flatten(),
        }
    )


def by_class(found: Shares, labels: Tensor | Sequence[int] | None) -> Table:
    """One row for each class and layer: ratios of sums over the inputs of the class."""
    if labels is not None:
        given = torch.as_tensor(labels).cpu()
    elif found.outputs is None:
        raise NotDefined("dense outputs predict a class for each position; pass labels=, one for each input.")
    else:
        given = found.outputs.argmax(1).cpu()
    if given.shape != found.variance.shape[:1]:
        raise BadData(f"labels of shape {tuple(given.shape)} for {len(found.variance)} inputs: pass one per input.")
    classes = given.unique().tolist()
    by_layer = [found.over_inputs(given == label) for label in classes]
    layers = len(found.names)
    return Table(
        {
            "class": [label for label in classes for _ in range(layers)],
            "inputs": [int((given == label).sum()) for label in classes for _ in range(layers)],
            "name": list(found.names) * len(classes),
            "variance_share": [v for s in by_layer for v in s.variance_share.tolist()],
            "prior_share": [v for s in by_layer for v in s.prior_share.tolist()],
            "explained": [v for s in by_layer for v in s.explained.tolist()],
        }
    )


def under_factors(posterior: Laplace, factors: Sequence[float]) -> dict[float, Laplace]:
    """The posterior with its prior precision multiplied by each factor."""
    found = {}
    for factor in factors:
        if not 0 < factor < math.inf:
            raise BadOption(f"the prior precision cannot be multiplied by {factor}; use a positive number.")
        scaled = posterior.prior.scaled_by({p.name: factor for b in posterior.blocks for p in b.params})
        found[float(factor)] = posterior.under(scaled)
    return found


def sensitivity(posterior: Laplace, x: Any, factors: Sequence[float], question: Question) -> Table:
    """Shares with the prior precision multiplied by each factor."""
    return sensitivity_table(examine(x, Asked(under_factors(posterior, factors)), question))


def sensitivity_table(found: Mapping[float, Shares]) -> Table:
    """One row for each factor and layer."""
    names = next(iter(found.values())).names
    by_layer = [shares.over_inputs() for shares in found.values()]
    return Table(
        {
            "factor": [factor for factor in found for _ in names],
            "name": list(names) * len(by_layer),
            "variance_share": [v for s in by_layer for v in s.variance_share.tolist()],
            "explained": [v for s in by_layer for v in s.explained.tolist()],
        }
    )
