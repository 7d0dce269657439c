"""Shares by input, by class, and under other priors.

Index legend: N inputs, B blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import BadData, BadOption
from whence.where.shares import Measure, Shares, shares
from whence.where.tabular import Table

if TYPE_CHECKING:
    from whence.posteriors.laplace import Laplace

TINY = torch.finfo(torch.float64).tiny


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
    """Ratios of sums over the inputs of each class."""
    given = found.outputs.argmax(1).cpu() if labels is None else torch.as_tensor(labels).cpu()
    if given.shape != found.variance.shape[:1]:
        raise BadData(f"labels of shape {tuple(given.shape)} for {len(found.variance)} inputs: one each is expected.")
    rows: dict[str, list[Any]] = {key: [] for key in ("class", "inputs", "name", "variance_share", "prior_share")}
    rows["explained"] = []
    for label in given.unique().tolist():
        mine = given == label
        parts, prior = found.variance[mine].sum(0), found.prior[mine].sum(0)
        rows["class"] += [label] * len(found.names)
        rows["inputs"] += [int(mine.sum())] * len(found.names)
        rows["name"] += list(found.names)
        rows["variance_share"] += (parts / parts.sum().clamp(min=TINY)).tolist()
        rows["prior_share"] += (prior / prior.sum().clamp(min=TINY)).tolist()
        rows["explained"] += (1 - parts / prior.clamp(min=TINY)).tolist()
    return Table(rows)


def sensitivity(posterior: Laplace, x: Any, factors: Sequence[float], measure: Measure) -> Table:
    """Shares and explained with the prior precision times each factor."""
    rows: dict[str, list[Any]] = {key: [] for key in ("factor", "name", "variance_share", "explained")}
    for factor in factors:
        if not 0 < factor < math.inf:
            raise BadOption(f"the prior precision cannot be multiplied by {factor}; take a positive number.")
        scaled = posterior.prior.scaled_by({p.name: factor for b in posterior.blocks for p in b.params})
        found = shares(replace(posterior, prior=scaled), x, measure)
        parts, prior = found.variance.sum(0), found.prior.sum(0)
        rows["factor"] += [float(factor)] * len(found.names)
        rows["name"] += list(found.names)
        rows["variance_share"] += (parts / parts.sum().clamp(min=TINY)).tolist()
        rows["explained"] += (1 - parts / prior.clamp(min=TINY)).tolist()
    return Table(rows)
