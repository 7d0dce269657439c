"""Diagonal matrices D of a prior precision δ D; curvature is decomposed relative to them.

Index legend: E Kronecker pairs, O outputs, D inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from whence.engine.files import digest
from whence.errors import BadOption

SEPARABLE = 1e-5  # relative difference from a product d_o e_i that rounding may cause


@dataclass(frozen=True, eq=False)
class Ratio(ABC):
    """The diagonal of D."""

    key: str = field(default="", kw_only=True)  # digest of the values: equal ratios share a decomposition

    def __post_init__(self) -> None:
        if not self.key:
            found = digest((value.double() for value in self.tensors().values()), type(self).__name__)
            object.__setattr__(self, "key", found)

    @abstractmethod
    def dense(self) -> Tensor:
        """All entries, in the native shape."""

    def root(self) -> Tensor:
        """D^{-1/2}, in the native shape."""
        return self.dense().rsqrt()

    def tensors(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "key"}

    def to(self, *args: Any, **kwargs: Any) -> Ratio:
        """A copy on another device or in another dtype, with the same key."""
        moved = {name: value.to(*args, **kwargs) for name, value in self.tensors().items()}
        return type(self)(**moved, key=self.key)


@dataclass(frozen=True, eq=False)
class PerWeight(Ratio):
    """One value per weight."""

    values: Tensor  # [*native]

    def dense(self) -> Tensor:
        return self.values


@dataclass(frozen=True, eq=False)
class Separable(Ratio):
    """d_o e_i for each of E pairs, which splits over the two factors of a Kronecker product."""

    rows: Tensor  # d, [E, O]
    columns: Tensor  # e, [E, D]

    def dense(self) -> Tensor:
        return self.rows.unsqueeze(-1) * self.columns.unsqueeze(-2)


def as_separable(ratio: Ratio, what: str) -> Separable:
    """The ratio as a product d_o e_i; an error if it is not one."""
    if isinstance(ratio, Separable):
        return ratio
    values = ratio.dense()  # [E, O, D]
    rows, columns = values[..., 0] / values[..., :1, 0], values[..., 0, :]
    found = Separable(rows, columns, key=ratio.key)
    if not torch.allclose(found.dense(), values, rtol=SEPARABLE, atol=0):
        raise BadOption(
            f"{what}: the prior precision of a Kronecker block must be a product d_o · e_i of one value per "
            "output and one per input (of weight and bias together). Use structure='diag', 'block' or 'full' for "
            "other precisions per weight."
        )
    return found
