"""Sums over the ranks of a process group: a distributed fit is many fits and one addition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from whence.curvature.record import SUMS, FitRecord
from whence.linalg.structures import Ekfac, Structure

EXAMPLES = 2**40  # numbers of examples that each rank has for itself, for their randomness


def first_example(group: Any) -> int:
    """Number of a rank's first example."""
    return 0 if group is None else dist.get_rank(group) * EXAMPLES


def summed(tensor: Tensor, group: Any) -> Tensor:
    """Σ over ranks."""
    if group is None:
        return tensor
    total = tensor.detach().clone().contiguous()
    dist.all_reduce(total, group=group)
    return total


def summed_structure(structure: Structure, group: Any) -> Structure:
    """The curvature of all ranks' data."""
    if group is None:
        return structure
    if isinstance(structure, Ekfac):  # its eigenvectors are the same everywhere
        return replace(structure, values=summed(structure.values, group))
    return structure.replaced({key: summed(value, group) for key, value in structure.tensors().items()})


def summed_record(record: FitRecord, group: Any, device: torch.device) -> FitRecord:
    """The record of all ranks' data."""
    if group is None:
        return record
    values = torch.tensor([getattr(record, key) for key in SUMS], dtype=torch.float64, device=device)
    totals = dict(zip(SUMS, summed(values, group).tolist(), strict=True))
    return replace(record, **{**totals, "seen": int(totals["seen"])})
