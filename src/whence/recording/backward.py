"""Backward passes along several directions at once, where torch's rules for that are right.

Index legend: K columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.contexts import capturing
from whence.errors import is_out_of_memory
from whence.functional import Network

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}  # relative error of gradients that rounding may cause
BATCHED = {torch.float64: 1e-5, torch.float32: 1e-3}  # the same, above which a batching rule of torch is wrong


def gradients(
    network: Network, outputs: Tensor, edges: Sequence[Any], columns: Tensor, create_graph: bool
) -> list[Tensor | None]:
    """Gradients of ⟨columns[k], outputs⟩ at the edges, batched over k where the operations allow.

    The first batched result is compared with one plain backward pass: torch's rules for some operations are wrong
    (the derivative of ``cdist`` under vmap).
    """
    options: dict[str, Any] = {"retain_graph": True, "create_graph": create_graph, "allow_unused": True}
    if len(columns) > 1:
        for name, together in (("vmapped_backward", _vmapped), ("batched_backward", _batched)):
            if not (network.runtime.batched_backward and getattr(network.runtime, name)):
                continue
            try:
                batched = together(outputs, edges, columns, options)
            except RuntimeError as error:
                if is_out_of_memory(error) or capturing():
                    raise
            else:
                if _confirmed(network, (name, len(edges)), batched, outputs, edges, columns):
                    return batched
            setattr(network.runtime, name, False)  # some operation cannot be batched this way
    single = [torch.autograd.grad(outputs, edges, column, **options) for column in columns]  # type: ignore[arg-type]
    if len(single) == 1:
        return [None if g is None else g.unsqueeze(0) for g in single[0]]
    stacked: list[Tensor | None] = []
    for per_edge in zip(*single, strict=True):
        found = next((g for g in per_edge if g is not None), None)
        if found is None:
            stacked.append(None)
            continue
        given = [torch.zeros_like(found) if g is None else g for g in per_edge]
        # The columns of an example are adjacent in memory, so that per-example products need no copy.
        stacked.append(torch.stack(given, dim=1).transpose(0, 1) if found.dim() else torch.stack(given))
    return stacked


def densified(g: Tensor) -> Tensor:
    """A sparse gradient (of an embedding) as a plain tensor."""
    return g.to_dense() if g.is_sparse else g


def _confirmed(
    network: Network, key: Any, found: list[Tensor | None], outputs: Tensor, edges: Sequence[Any], columns: Tensor
) -> bool:
    """Whether a mixture of batched gradients is the gradient of the mixture; checked once for each key."""
    if key in network.runtime.compared or capturing():
        return True
    weights = mixing(columns, 1)
    mixture = torch.tensordot(weights, columns, 1)
    true = torch.autograd.grad(outputs, edges, mixture, retain_graph=True, allow_unused=True)  # type: ignore[arg-type]
    mixed = [None if g is None else mixed_by(weights, densified(g.detach())) for g in found]
    agreed = agree(network, mixed, true)
    if agreed:
        network.runtime.compared.add(key)
    return agreed


def mixing(columns: Tensor, dims: int) -> Tensor:
    """Weights for the first dimensions of columns, of which none is zero or like another."""
    shape = columns.shape[:dims]
    places = torch.arange(1, shape.numel() + 1, dtype=torch.float64, device=columns.device)
    return (1.5 + torch.sin(places * 12.9898)).to(columns.dtype).reshape(shape)


def mixed_by(weights: Tensor, g: Tensor) -> Tensor:
    """Σ w g over the dimensions of the weights."""
    dtype = torch.promote_types(weights.dtype, g.dtype)
    return torch.tensordot(weights.to(dtype), g.to(dtype), weights.dim())


def agree(network: Network, found: Sequence[Tensor | None], true: Sequence[Tensor | None]) -> bool:
    """Whether gradients are the same up to rounding."""
    rows, rough = [], network.autocast is not None
    for a, b in zip(found, true, strict=True):
        given = a if b is None else b
        if given is None:
            continue
        a, b = (torch.zeros_like(densified(given)) if t is None else densified(t) for t in (a, b))
        rough = rough or given.dtype in (torch.bfloat16, torch.float16)
        rows.append(torch.stack([b.norm().double(), (a - b).norm().double()]))
    numbers = torch.stack(rows).tolist() if rows else []  # one transfer for all
    largest = max((norm for norm, _ in numbers), default=0.0)
    tolerance = 5e-2 if rough else BATCHED.get(network.dtype, 5e-2)
    return all(not error > tolerance * (norm + 1e-3 * largest) for norm, error in numbers)


def _batched(outputs: Tensor, edges: Sequence[Any], columns: Tensor, options: dict[str, Any]) -> list[Tensor | None]:
    """All columns in one backward pass; torch runs convolutions, pooling and some others one by one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return list(torch.autograd.grad(outputs, edges, columns, is_grads_batched=True, **options))  # type: ignore[arg-type]


def _vmapped(outputs: Tensor, edges: Sequence[Any], columns: Tensor, options: dict[str, Any]) -> list[Tensor | None]:
    """All columns in one backward pass, by vmap."""
    used: list[bool] = []

    def back(column: Tensor) -> tuple[Tensor, ...]:
        found = torch.autograd.grad(outputs, edges, column, **options)  # type: ignore[arg-type]
        used[:] = [g is not None for g in found]
        return tuple(g for g in found if g is not None)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        found = iter(torch.func.vmap(back)(columns))
    return [next(found) if there else None for there in used]
