"""Digests of content: of a network's state, and of data whatever their order and batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.engine.batches import Inputs, size_of, tensors_in
from whence.engine.files import digest

FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)  # an odd 64-bit number
SIZE = hashlib.sha256().digest_size


def digest_of_state(state: Mapping[str, Any]) -> str:
    """sha256 of the names, types, shapes and bytes of the tensors of a state dict, in the order of their names."""
    names = sorted(name for name, value in state.items() if isinstance(value, Tensor))
    return digest((state[name] for name in names), json.dumps(names))


class ExamplesDigest:
    """sha256 of a set of examples: of the sorted digests of the examples, so that order and batches do not matter.

    The digest of one example is of the names, types, shapes and bytes of its tensors; targets are the last one.
    """

    def __init__(self) -> None:
        self.rows = bytearray()

    def __len__(self) -> int:
        return len(self.rows) // SIZE

    def add(self, inputs: Inputs, targets: Tensor | None = None) -> ExamplesDigest:
        """Add a batch."""
        parts = [*_named(inputs, "inputs"), *([] if targets is None else [("targets", targets)])]
        count = size_of(inputs)
        header, columns = [], []
        for name, value in parts:
            if isinstance(value, Tensor) and value.dim() > 0:
                header.append([name, str(value.dtype), list(value.shape[1:])])
                columns.append(_rows(value))
            else:  # belongs to every example
                header.append([name, digest([value]) if isinstance(value, Tensor) else str(value)])
        start = hashlib.sha256(json.dumps(header).encode())
        for i in range(count):
            one = start.copy()
            for column in columns:
                one.update(column[i].data)
            self.rows += one.digest()
        return self

    def ids(self, digits: int = 10) -> tuple[str, ...]:
        """The first hexadecimal digits of the digest of each example, in their order."""
        starts = range(0, len(self.rows), SIZE)
        return tuple(bytes(self.rows[i : i + SIZE]).hex()[:digits] for i in starts)

    def hexdigest(self) -> str:
        whole = hashlib.sha256()
        for row in sorted(bytes(self.rows[i : i + SIZE]) for i in range(0, len(self.rows), SIZE)):
            whole.update(row)
        return whole.hexdigest()


def _named(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors of a nest and other plain values, with their places."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _named(value[key], f"{name}.{key}")
    elif isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            yield from _named(item, f"{name}.{place}")
    elif isinstance(value, (Tensor, str, int, float)):
        yield name, value


def _rows(value: Tensor) -> np.ndarray:
    """The bytes of each example."""
    plain = value.detach().cpu().contiguous()
    flat = plain.reshape(len(plain), -1) if plain.numel() else plain.new_empty((len(plain), 0))
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty((len(plain), 0), np.uint8)


def row_hashes(inputs: Inputs) -> Tensor:
    """One 64-bit number for each example, exact and the same in any batch. Trailing zeros (padding) do not count."""
    total = torch.zeros(size_of(inputs), dtype=torch.int64, device=next(tensors_in(inputs)).device)
    for number, tensor in enumerate(t for t in tensors_in(inputs) if t.dim()):
        rows = _as_integers(tensor.detach()).reshape(len(total), -1)
        places = torch.arange(1, rows.shape[1] + 1, device=rows.device) * FACTOR + number
        mixed = rows * places
        total += (mixed ^ (mixed >> 29)).sum(1)
    return total


def _as_integers(tensor: Tensor) -> Tensor:
    """The bits of the numbers, as 64-bit integers."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        return (tensor.double() + 0.0).contiguous().view(torch.int64)  # −0 and 0 are equal
    return tensor.long()
