"""Parameters that are added to what examples have: position tables, biases of one's own.

An embedding of positions that is looked up once for all examples and then added is seen at the sum, where the examples
have parted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from whence.curvature.rules import ElementRule, EmbeddingRule

ADDITIONS = {
    torch.add,
    torch.Tensor.add,
    torch.Tensor.add_,
    torch.Tensor.__add__,
    torch.Tensor.__radd__,
    torch.Tensor.__iadd__,
}


@dataclass(frozen=True)
class AddedRule(ElementRule):
    """x + p with p repeated over some dimensions, those of the examples among them."""

    label: ClassVar[str] = "Added"
    repeated: tuple[int, ...]  # dimensions of the sum that p does not have

    def features(self) -> Tensor:
        raise AssertionError("a sum has no factor")

    def gradient(self, g: Tensor) -> Tensor:
        own = [d for d in range(g.dim() - 1) if d not in self.repeated]
        moved = g.permute(0, *(d + 1 for d in self.repeated), *(d + 1 for d in own))
        return moved.reshape(*moved.shape[: 1 + len(self.repeated)], -1)


def operands(args: Any, kwargs: Any) -> list[tuple[Tensor, Tensor]]:
    """The two ways to read a sum of tensors as something and what is added to it."""
    if kwargs or len(args) != 2 or not all(isinstance(a, Tensor) for a in args):
        return []
    return [(args[0], args[1]), (args[1], args[0])]


def added_parameter(x: Tensor, p: Tensor, out: Tensor) -> AddedRule | None:
    """The rule of a parameter ``p`` that is repeated to make the sum ``out``."""
    missing = out.dim() - p.dim()
    repeated = tuple(d for d in range(out.dim()) if d < missing or p.shape[d - missing] == 1)  # for one example too
    return AddedRule(x, repeated) if repeated else None


def added_rows(looked_up: EmbeddingRule, rows: Tensor, out: Tensor) -> EmbeddingRule | None:
    """The rule of rows of a table that were looked up once, and are repeated to make the sum ``out``."""
    if rows.shape == out.shape or rows.shape[-1] != out.shape[-1]:
        return None
    return replace(looked_up, x=looked_up.x.expand(out.shape[:-1]))
