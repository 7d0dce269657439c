"""Inputs of a network as tensors by name, and back, for files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from whence.engine.batches import Inputs


def to_tensors(inputs: Inputs) -> tuple[dict[str, Tensor], Any]:
    """Tensors by number, and ``"tensor"``, their count or their names; None for no inputs, and for nested ones."""
    if isinstance(inputs, Tensor):
        return {"0": inputs}, "tensor"
    flat = list(inputs.values()) if isinstance(inputs, Mapping) else list(inputs or ())
    if inputs is None or not all(isinstance(t, Tensor) for t in flat):
        return {}, None
    return {str(i): t for i, t in enumerate(flat)}, list(inputs) if isinstance(inputs, Mapping) else len(flat)


def from_tensors(tensors: Mapping[str, Tensor], kind: Any) -> Inputs:
    """The inverse of :func:`to_tensors`. ``"mapping"`` and ``"tuple"`` are of earlier versions."""
    if kind is None:
        return None
    if kind == "mapping":
        return dict(tensors)
    flat = [tensors[str(i)] for i in range(len(tensors))]
    if kind == "tensor":
        return flat[0]
    return dict(zip(kind, flat, strict=True)) if isinstance(kind, list) else tuple(flat)
