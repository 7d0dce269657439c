"""Digests of content: of a network's state, and of data whatever their order and batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.engine.batches import Inputs, size_of
from whence.engine.files import digest

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
