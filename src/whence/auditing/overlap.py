"""Inputs of the test and validation data that also occur in the training data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from whence.auditing.data import Examples
from whence.engine.batches import Inputs, as_source, from_numpy, inputs_of, is_pair, size_of, tensors_in
from whence.report.record.verdict import Overlap

MOST = 100_000  # training inputs that are compared


def overlap(train: Any, test: Examples | None, validation: Examples | None, most: int = MOST) -> Overlap | None:
    """Compare inputs by content; None without training data, or without a set to compare them with."""
    sets = {one.name: digests(one.inputs) for one in (test, validation) if one is not None}
    if train is None or not sets:
        return None
    seen: set[bytes] = set()
    checked = 0
    for inputs in _batches(train):
        some = digests(inputs)[: most - checked]
        checked += len(some)
        seen.update(some)
        if checked >= most:
            break
    if not checked:
        return None  # an iterator that the fit has used up
    counts = {name: sum(one in seen for one in found) for name, found in sets.items()}
    return Overlap(checked, counts.get("test"), counts.get("validation"))


def _batches(train: Any) -> Iterator[Inputs]:
    source = as_source(train)
    if is_pair(source) or isinstance(source, Mapping):
        yield from_numpy(inputs_of(source))
        return
    for batch in source:
        yield from_numpy(inputs_of(batch))


def digests(inputs: Inputs) -> list[bytes]:
    """A digest of each example, by its values: single and double precision numbers that are equal give the same."""
    rows = [_rows(tensor) for tensor in tensors_in(inputs)]
    return [hashlib.blake2b(b"".join(parts), digest_size=16).digest() for parts in zip(*rows, strict=True)][
        : size_of(inputs)
    ]


def _rows(tensor: Tensor) -> list[bytes]:
    plain = tensor.detach().cpu()
    if plain.is_floating_point():
        plain = plain.to(torch.float32) + 0.0  # −0 and 0 are equal
    elif not plain.is_complex():
        plain = plain.long()
    values = plain.contiguous().reshape(len(plain), -1).numpy()
    return [row.tobytes() for row in values]
