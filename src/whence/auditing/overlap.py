"""Inputs of the test and validation data that also occur in the training data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.auditing.data import Examples
from whence.engine.batches import Inputs, as_source, from_numpy, inputs_of, is_pair, map_tensors, split_batch
from whence.engine.content import row_hashes
from whence.errors import WhenceError, notice
from whence.report.record.verdict import Overlap

FACTOR = 6364136223846793005  # odd, so that no hash is lost; products wrap
MOST = 100_000  # training inputs that are compared
NUMBERS = 2**24  # largest number of their targets that are kept


@dataclass(frozen=True)
class Training:
    """Training data, read once: hashes of the inputs, the same with their targets, and the targets."""

    inputs: Tensor  # [N]
    pairs: Tensor | None  # [N]
    targets: Tensor | None  # None where they are no tensors, or too many to keep


def read_training(train: Any, most: int = MOST) -> Training | None:
    """The first ``most`` training inputs; None without any, as of an iterator that the fit has used up."""
    parts: list[Tensor] = []
    pairs: list[Tensor | None] = []
    kept: list[Tensor | None] = []
    checked = numbers = 0
    for inputs, targets in _batches(train) if train is not None else ():
        found = row_hashes(inputs).cpu()
        parts.append(found[: most - checked])
        pairs.append(None if targets is None else _with_targets(found, targets)[: most - checked])
        numbers += 0 if targets is None else targets.numel()
        fits = targets is not None and len(targets) == len(found) and numbers <= NUMBERS
        kept.append(targets.detach().cpu()[: most - checked] if targets is not None and fits else None)
        checked += len(parts[-1])
        if checked >= most:
            break
    return Training(torch.cat(parts), _joined(pairs), _joined(kept)) if checked else None


def _joined(parts: list[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    same = len(known) == len(parts) and len({part.shape[1:] for part in known}) == 1
    return torch.cat(known) if same else None


def overlap(
    train: Any,
    test: Examples | None,
    validation: Examples | None,
    read: Callable[[Any], Training | None] = read_training,
) -> Overlap | None:
    """Compare inputs by content; None without training data, or without a set to compare it with."""
    sets = {one.name: row_hashes(one.inputs).cpu() for one in (test, validation) if one is not None}
    if train is None or not sets:
        return None
    if _augments(train):
        notice(
            "the training data give other inputs each time (random augmentation), so test and validation inputs that "
            "are also in the training data cannot be found. Pass them without augmentation to have that checked."
        )
        return None
    seen = read(train)
    if seen is None:
        return None
    counts = {name: int(torch.isin(found, seen.inputs).sum()) for name, found in sets.items()}
    between = int(torch.isin(sets["test"], sets["validation"]).sum()) if len(sets) == 2 else None
    same = None
    if test is not None and test.targets is not None and seen.pairs is not None:
        same = int(torch.isin(_with_targets(sets["test"], test.targets), seen.pairs).sum())
    return Overlap(len(seen.inputs), counts.get("test"), counts.get("validation"), between, same)


def _augments(train: Any) -> bool:
    """Whether a data set gives another first example when it is asked again."""
    source = getattr(train, "dataset", train)
    if isinstance(source, (Tensor, Mapping, tuple, list)) or not (
        hasattr(source, "__getitem__") and hasattr(source, "__len__") and len(source)
    ):
        return False
    try:
        first, second = (row_hashes(_one(source[0])) for _ in range(2))
    except (TypeError, ValueError, KeyError, IndexError, RuntimeError, StopIteration, WhenceError):
        return False  # not an example of tensors: what its loader makes of it is compared
    return not torch.equal(first, second)


def _one(example: Any) -> Inputs:
    """The inputs of one example as a batch."""
    found = from_numpy(example[0] if isinstance(example, (tuple, list)) else inputs_of(example))
    return map_tensors(lambda t: t[None], found)


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
