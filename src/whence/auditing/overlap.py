"""Inputs of the test and validation data that also occur in the training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from whence.auditing.data import Examples
from whence.engine.batches import Inputs, as_source, from_numpy, inputs_of, is_pair
from whence.engine.content import row_hashes
from whence.report.record.verdict import Overlap

MOST = 100_000  # training inputs that are compared


def overlap(train: Any, test: Examples | None, validation: Examples | None, most: int = MOST) -> Overlap | None:
    """Compare inputs by content; None without training data, or without a set to compare it with."""
    sets = {one.name: row_hashes(one.inputs).cpu() for one in (test, validation) if one is not None}
    if train is None or not sets:
        return None
    parts, checked = [], 0
    for inputs in _batches(train):
        parts.append(row_hashes(inputs).cpu()[: most - checked])
        checked += len(parts[-1])
        if checked >= most:
            break
    if not checked:
        return None  # an iterator that the fit has used up
    seen = torch.cat(parts)
    counts = {name: int(torch.isin(found, seen).sum()) for name, found in sets.items()}
    between = int(torch.isin(sets["test"], sets["validation"]).sum()) if len(sets) == 2 else None
    return Overlap(checked, counts.get("test"), counts.get("validation"), between)


def _batches(train: Any) -> Iterator[Inputs]:
    source = as_source(train)
    if is_pair(source) or isinstance(source, Mapping):
        yield from_numpy(inputs_of(source))
        return
    for batch in source:
        yield from_numpy(inputs_of(batch))
