"""Which positions of a sequence some output depends on, by moving them one at a time.

Index legend: N examples, C outputs, P parameters, S samples, T shared positions, D layer inputs,
O layer outputs.
"""

import torch
from torch import Tensor, nn

from .curvature import Inputs, output

MOVES = 6


def counted(model: nn.Module, module: nn.Module, x: Inputs, n: int) -> list[list[bool]]:
    """Per call of a Linear layer, per row of its output: whether f_n changes when that row is moved a good way.

    A call with one row counts it. Convolutions count all.
    """
    shapes = calls(model, module, x, n)
    before = output(model, x, n).detach()
    found = []
    for call, rows in enumerate(shapes):
        if rows == 1 or not isinstance(module, nn.Linear):
            found.append([True] * rows)
            continue
        found.append([moves(model, module, x, n, call, row, before) for row in range(rows)])
    return found


def calls(model: nn.Module, module: nn.Module, x: Inputs, n: int) -> list[int]:
    """Rows of the module's output in each of its calls."""
    found: list[int] = []
    handle = module.register_forward_hook(lambda _, __, z: found.append(z.reshape(-1, z.shape[-1]).shape[0]))
    try:
        output(model, x, n)
    finally:
        handle.remove()
    return found


def moves(model: nn.Module, module: nn.Module, x: Inputs, n: int, call: int, row: int, before: Tensor) -> bool:
    """Whether the output moves with a row."""
    generator = torch.Generator().manual_seed(0)
    for step in range(MOVES):
        seen = -1

        def hook(_: nn.Module, __: object, z: Tensor, step: int = step) -> Tensor:
            nonlocal seen
            seen += 1
            if seen != call:
                return z
            size = 10 * torch.randn(z.shape[-1], generator=generator, dtype=z.dtype)
            moved = z.reshape(-1, z.shape[-1]).clone()
            moved[row] += size.abs() if step == 0 else -size.abs() if step == 1 else size
            return moved.reshape(z.shape)

        handle = module.register_forward_hook(hook)
        try:
            after = output(model, x, n).detach()
        finally:
            handle.remove()
        if not torch.equal(after, before):
            return True
    return False
