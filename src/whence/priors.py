"""Gaussian priors with a diagonal precision: one number, per layer, one for biases, or per weight."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.curvature.blocks import Block, Param
from whence.errors import BadOption


@dataclass(frozen=True)
class Prior:
    """Precision (and mean) to pass as ``prior_precision``: ``Prior(weight=1.0, bias=0.1)``."""

    weight: float = 1.0
    bias: float | None = None


@dataclass(frozen=True)
class BlockPrior:
    """Precision δ · ratio of a block; ``ratio`` is None where all its weights share δ."""

    delta: float
    ratio: Tensor | None  # flat, [P]


@dataclass(frozen=True)
class PriorPrecision:
    """Precision by parameter name: a number, or a tensor in the parameter's shape."""

    values: Mapping[str, float | Tensor]

    @classmethod
    def make(cls, given: Any, blocks: Sequence[Block]) -> PriorPrecision:
        """From what the user passes: see :func:`whence.laplace`."""
        values: dict[str, float | Tensor] = {}
        if isinstance(given, PriorPrecision):
            return given
        if isinstance(given, Mapping):
            return cls(_from_mapping(given, blocks))
        for block in blocks:
            for p in block.params:
                if isinstance(given, Prior):
                    low = given.bias is not None and is_bias(p.name)
                    values[p.name] = positive(given.bias if low else given.weight, f"of {p.name}")
                else:
                    values[p.name] = positive(given, "")
        return cls(values)

    def of(self, blocks: Sequence[Block]) -> BlockPrior:
        """The prior of some blocks' joined vector."""
        params = [p for b in blocks for p in b.params]
        numbers = {v for p in params if not isinstance(v := self.values[p.name], Tensor)}
        if len(numbers) == 1 and not any(isinstance(self.values[p.name], Tensor) for p in params):
            return BlockPrior(numbers.pop(), None)
        flat = self.flat(params)
        delta = float(flat[0]) if len(numbers) else 1.0
        return BlockPrior(delta, flat / delta)

    def flat(self, params: Sequence[Param]) -> Tensor:
        """Precision of every weight, [P], float64."""
        pieces = []
        for p in params:
            value = self.values[p.name]
            if isinstance(value, Tensor):
                pieces.append(value.double().reshape(-1).cpu())
            else:
                pieces.append(torch.full((p.numel,), value, dtype=torch.float64))
        return torch.cat(pieces)

    def scaled(self, factor: float) -> PriorPrecision:
        return PriorPrecision({name: value * factor for name, value in self.values.items()})

    def scaled_by(self, factors: Mapping[str, float]) -> PriorPrecision:
        """Another factor for each parameter."""
        return PriorPrecision({name: value * factors.get(name, 1.0) for name, value in self.values.items()})

    @property
    def number(self) -> float | None:
        """The one precision of all weights, if there is one."""
        values = list(self.values.values())
        first = values[0]
        if isinstance(first, Tensor) or any(isinstance(v, Tensor) or v != first for v in values):
            return None
        return first

    def describe(self) -> str:
        if self.number is not None:
            return f"{self.number:.4g}"
        numbers = [v for v in self.values.values() if not isinstance(v, Tensor)]
        if len(numbers) < len(self.values):
            return "per weight"
        return f"{min(numbers):.3g} … {max(numbers):.3g}, by parameter"


def is_bias(name: str) -> bool:
    """Whether a parameter is a bias, by its own name (``bias``, ``in_proj_bias``, ``bias_ih_l0``)."""
    return "bias" in name.rpartition(".")[2]


def check_numbers(given: Any) -> None:
    """Refuse what can be refused before the data are read."""
    if isinstance(given, Prior):
        positive(given.weight, "of weights")
        if given.bias is not None:
            positive(given.bias, "of biases")
    elif not isinstance(given, (Mapping, PriorPrecision)):
        positive(given, "")


def positive(value: Any, what: str) -> float:
    """A positive, finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise BadOption(
            f"the prior precision {what} must be a positive number, a mapping from layer names to numbers, a mapping "
            f"from parameter names to tensors, or a whence.Prior; not {value!r}."
        ) from None
    if not (math.isfinite(number) and number > 0):
        raise BadOption(f"the prior precision {what} must be positive, but it is {number:g}; 1.0 is a usual start.")
    return number


def _from_mapping(given: Mapping[str, Any], blocks: Sequence[Block]) -> dict[str, float | Tensor]:
    """Keys are layer names, parameter names or globs on them; every parameter must be met."""
    values: dict[str, float | Tensor] = {}
    used: set[str] = set()
    for block in blocks:
        for p in block.params:
            match = next((key for key in (p.name, block.name) if key in given), None)
            match = match or next((k for k in given if fnmatch.fnmatchcase(block.name, k)), None)
            match = match or next((k for k in given if fnmatch.fnmatchcase(p.name, k)), None)
            if match is None:
                raise BadOption(
                    f"the prior precision says nothing of {p.name!r} (layer {block.name!r}); add it, or '*'."
                )
            used.add(match)
            values[p.name] = _entry(given[match], p)
    unknown = set(given) - used - {"*"}
    if unknown:
        names = ", ".join(b.name for b in blocks[:8])
        raise BadOption(f"the prior precision names {sorted(unknown)[0]!r}, which is no layer. Layers: {names}.")
    return values


def _entry(value: Any, param: Param) -> float | Tensor:
    if isinstance(value, Tensor) and value.dim() > 0:
        if tuple(value.shape) != param.shape:
            raise BadOption(
                f"the prior precision of {param.name!r} has shape {list(value.shape)}, the parameter "
                f"{list(param.shape)}."
            )
        if not bool(torch.isfinite(value).all()) or bool((value <= 0).any()):
            raise BadOption(
                f"the prior precision of {param.name!r} must be positive; its least is {float(value.min()):g}."
            )
        return value.detach().double().cpu()
    return positive(value, f"of {param.name!r}")
