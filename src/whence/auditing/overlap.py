"""Inputs of the test and validation data that also occur in the training data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from whence.auditing.data import Examples
from whence.engine.batches import Inputs, as_source, from_numpy, inputs_of, is_pair, split_batch
from whence.engine.content import row_hashes
from whence.report.record.verdict import Overlap

FACTOR = 6364136223846793005  # odd, so that no hash is lost; products wrap
MOST = 100_000  # training inputs that are compared


def overlap(train: Any, test: Examples | None, validation: Examples | None, most: int = MOST) -> Overlap | None:
    """Compare inputs by content; None without training data, or without a set to compare it with."""
    sets = {one.name: row_hashes(one.inputs).cpu() for one in (test, validation) if one is not None}
    labelled = test is not None and test.targets is not None
    if train is None or not sets:
        return None
    parts, pairs, checked = [], [], 0
    for inputs, targets in _batches(train):
        found = row_hashes(inputs).cpu()
        parts.append(found[: most - checked])
        pairs.append(_with_targets(found, targets)[: most - checked] if labelled and targets is not None else None)
        checked += len(parts[-1])
        if checked >= most:
            break
    if not checked:
        return None  # an iterator that the fit has used up
    seen = torch.cat(parts)
    counts = {name: int(torch.isin(found, seen).sum()) for name, found in sets.items()}
    between = int(torch.isin(sets["test"], sets["validation"]).sum()) if len(sets) == 2 else None
    same = None
    if test is not None and test.targets is not None and all(pair is not None for pair in pairs):
        known = torch.cat([pair for pair in pairs if pair is not None])
        same = int(torch.isin(_with_targets(sets["test"], test.targets), known).sum())
    return Overlap(checked, counts.get("test"), counts.get("validation"), between, same)


def _with_targets(hashes: Tensor, targets: Tensor) -> Tensor:
    """Hashes of inputs and targets together, [N]."""
    own = row_hashes(targets.detach().double().reshape(len(targets), -1)).cpu()
    return hashes * FACTOR + own if len(own) == len(hashes) else hashes


def _batches(train: Any) -> Iterator[tuple[Inputs, Tensor | None]]:
    """Inputs, with the targets where these are one tensor."""
    source = as_source(train)
    for batch in [source] if is_pair(source) or isinstance(source, Mapping) else source:
        inputs, targets = split_batch(batch, 0) if is_pair(batch) else (inputs_of(batch), None)
        yield from_numpy(inputs), targets if isinstance(targets := from_numpy(targets), Tensor) else None
