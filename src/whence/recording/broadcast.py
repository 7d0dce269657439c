"""Parameters that are added to features or multiply them by broadcasting: position tables, biases, layer scales.

A position embedding that is looked up once for all examples and then added is recorded at the sum, where it is
expanded over the examples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from whence.recording.rules import ElementRule, EmbeddingRule

ADDITIONS = {
    torch.add,
    torch.Tensor.add,
    torch.Tensor.add_,
    torch.Tensor.__add__,
    torch.Tensor.__radd__,
    torch.Tensor.__iadd__,
}
PRODUCTS = {
    torch.mul,
    torch.multiply,
    torch.Tensor.mul,
    torch.Tensor.multiply,
    torch.Tensor.__mul__,
    torch.Tensor.__rmul__,
}
EXPANSIONS = {
    torch.Tensor.expand,
    torch.Tensor.expand_as,
    torch.Tensor.repeat,
    torch.Tensor.broadcast_to,
    torch.broadcast_to,
}
PRODUCTS_IN_PLACE = {torch.Tensor.mul_, torch.Tensor.multiply_, torch.Tensor.__imul__}


@dataclass(frozen=True)
class BroadcastRule(ElementRule):
    """An operation on x and p, with p repeated over some dimensions, including the examples."""

    repeated: tuple[int, ...]  # dimensions of the result that p does not have
    shape: torch.Size  # of the result

    def gradient(self, g: Tensor) -> Tensor:
        own = [d for d in range(g.dim() - 1) if d not in self.repeated]
        moved = g.permute(0, *(d + 1 for d in self.repeated), *(d + 1 for d in own))
        return moved.reshape(*moved.shape[: 1 + len(self.repeated)], -1)

    def spread_input(self) -> Tensor:
        """x arranged by entries of p, [*repeated, F]."""
        return self.gradient(self.x.expand(self.shape).unsqueeze(0))[0]


@dataclass(frozen=True)
class AddedRule(BroadcastRule):
    """x + p."""

    label: ClassVar[str] = "Added"

    def features(self) -> Tensor:
        raise AssertionError("a sum has no factor")


@dataclass(frozen=True)
class ExpandedRule(AddedRule):
    """p itself, repeated for every example (a class token)."""


@dataclass(frozen=True)
class ScaledRule(BroadcastRule):
    """x ⊙ p (a hand-written root-mean-square norm, a layer scale)."""

    label: ClassVar[str] = "Scaled"

    def features(self) -> Tensor:
        return self.spread_input()


def operands(args: Any, kwargs: Any) -> list[tuple[Tensor, Tensor]]:
    """The two ways to read a sum or product of tensors as (features, parameter)."""
    if kwargs or len(args) != 2 or not all(isinstance(a, Tensor) for a in args):
        return []
    return [(args[0], args[1]), (args[1], args[0])]


def broadcast_rule(kind: type[BroadcastRule], x: Tensor, p: Tensor, out: Tensor) -> BroadcastRule | None:
    """The rule of a parameter ``p`` that is broadcast to the result ``out``."""
    missing = out.dim() - p.dim()
    repeated = tuple(d for d in range(out.dim()) if d < missing or p.shape[d - missing] == 1)  # also with one example
    return kind(x, repeated, out.shape) if repeated else None


def expanded_rule(p: Tensor, out: Tensor) -> BroadcastRule | None:
    """The rule of a parameter that was expanded to ``out`` along dimensions of size one."""
    missing = out.dim() - p.dim()
    same = all(n in (1, out.shape[d + missing]) for d, n in enumerate(p.shape))
    return broadcast_rule(ExpandedRule, p.detach().new_zeros(()), p, out) if same and missing >= 0 else None


def added_rows(looked_up: EmbeddingRule, rows: Tensor, out: Tensor) -> EmbeddingRule | None:
    """The rule of table rows that were looked up once and are broadcast in the sum ``out``."""
    if rows.shape == out.shape or rows.shape[-1] != out.shape[-1]:
        return None
    return replace(looked_up, x=looked_up.x.expand(out.shape[:-1]))
