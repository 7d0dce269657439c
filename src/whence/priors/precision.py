"""Gaussian priors with a given diagonal precision: one number, per layer, separate for biases, or per weight."""

from __future__ import annotations

import fnmatch
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.memory import remembered
from whence.errors import BadOption
from whence.linalg.ratios import PerWeight, Ratio
from whence.numerals import number
from whence.recording.blocks import Block, Param

SMALLEST, LARGEST = 1e-30, 1e30  # precisions


@dataclass(frozen=True)
class Prior:
    """Precision of weights and of biases, to pass as ``prior_precision``: ``Prior(weight=1.0, bias=0.1)``."""

    weight: float = 1.0
    bias: float | None = None


@dataclass(frozen=True)
class BlockPrior:
    """Precision δ D of some blocks; ``ratio`` is D in their native shape, None if all weights share δ."""

    delta: float
    ratio: Ratio | None


class PriorPrecision(ABC):
    """The diagonal precision of a Gaussian prior, by block."""

    values: Mapping[str, float | Tensor]  # by parameter: a number, or a tensor in its shape (float64, on the CPU)
    notes: tuple[str, ...] = ()  # deviations from the requested prior

    @abstractmethod
    def scaled_by(self, factors: Mapping[str, float]) -> PriorPrecision:
        """A copy with each parameter's precision multiplied by a factor."""

    @abstractmethod
    def restricted(self, blocks: Sequence[Block]) -> PriorPrecision:
        """The prior of some blocks only."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Its plain values, for files; tensors are saved separately."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors for files, by parameter."""

    @abstractmethod
    def describe(self) -> str:
        """A short description."""

    @abstractmethod
    def given(self) -> Any:
        """A value of ``prior_precision`` that gives this prior again."""

    @abstractmethod
    def _joined(self, blocks: Sequence[Block], keep: Tensor | None) -> BlockPrior: ...

    def of(self, blocks: Sequence[Block], keep: Tensor | None = None) -> BlockPrior:
        """The prior of blocks that share a structure; ``keep`` selects entries of their concatenated vector."""
        key, known = (tuple(b.name for b in blocks), keep is None), _joined_before(self)
        if key not in known:
            known[key] = self._joined(blocks, keep)
        return known[key]

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

    def variances(self, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Variance of every weight, in the shapes and dtypes of ``like``."""
        known = {n: torch.as_tensor(v, dtype=torch.float64) for n, v in self.values.items()}
        return {n: known[n].reciprocal().expand(v.shape).to(v) for n, v in like.items()}

    @property
    def number(self) -> float | None:
        """The one precision of all weights, if there is one."""
        return None


@remembered
def _joined_before(prior: PriorPrecision) -> dict[Any, BlockPrior]:
    """Priors of blocks that were asked for, by the names of the blocks."""
    return {}


@dataclass(frozen=True, eq=False)
class ByParameter(PriorPrecision):
    """Precisions given by parameter."""

    values: Mapping[str, float | Tensor]

    def _joined(self, blocks: Sequence[Block], keep: Tensor | None) -> BlockPrior:
        params = [p for b in blocks for p in b.params]
        numbers = {v for p in params if not isinstance(v := self.values[p.name], Tensor)}
        if len(numbers) == 1 and not any(isinstance(self.values[p.name], Tensor) for p in params):
            return BlockPrior(numbers.pop(), None)
        flat = self.flat(params)
        delta = float(flat[0]) if len(numbers) else 1.0
        ratio = flat / delta if keep is None else flat[keep.cpu()] / delta
        return BlockPrior(delta, PerWeight(blocks[0].to_native(ratio) if len(blocks) == 1 and keep is None else ratio))

    def scaled_by(self, factors: Mapping[str, float]) -> PriorPrecision:
        return ByParameter({name: value * factors.get(name, 1.0) for name, value in self.values.items()})

    def restricted(self, blocks: Sequence[Block]) -> PriorPrecision:
        return ByParameter({p.name: self.values[p.name] for b in blocks for p in b.params})

    def spec(self) -> dict[str, Any]:
        return {name: None if isinstance(value, Tensor) else value for name, value in self.values.items()}

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.values.items() if isinstance(value, Tensor)}

    def given(self) -> float | dict[str, float | Tensor]:
        return self.number if self.number is not None else dict(self.values)

    @property
    def number(self) -> float | None:
        values = list(self.values.values())
        first = values[0]
        if isinstance(first, Tensor) or any(isinstance(v, Tensor) or v != first for v in values):
            return None
        return first

    def describe(self) -> str:
        if self.number is not None:
            return number(self.number, 4)
        numbers = [v for v in self.values.values() if not isinstance(v, Tensor)]
        if len(numbers) < len(self.values):
            return "per weight"
        return f"{number(min(numbers))} … {number(max(numbers))}, by parameter"


def by_parameter(given: Any, blocks: Sequence[Block]) -> ByParameter:
    """A number, a :class:`Prior`, or a mapping from layer or parameter names, for every parameter of the blocks."""
    if isinstance(given, Mapping):
        return ByParameter(_from_mapping(given, blocks))
    values: dict[str, float | Tensor] = {}
    for block in blocks:
        for p in block.params:
            if isinstance(given, Prior):
                low = given.bias is not None and is_bias(p.name)
                values[p.name] = positive(given.bias if low else given.weight, f"of {p.name}")
            else:
                values[p.name] = positive(given, "")
    return ByParameter(values)


def by_layer(given: Mapping[str, Any], blocks: Sequence[Block]) -> dict[str, float]:
    """One number per block, from a mapping of layer names (globs) to numbers."""
    values = _from_mapping(given, blocks)
    found = {b.name: {values[p.name] for p in b.params} for b in blocks if not _has_tensor(values, b)}
    wrong = [b.name for b in blocks if len(found.get(b.name, ())) != 1]
    if wrong:
        raise BadOption(f"τ of {wrong[0]!r} must be one number for the whole layer.")
    return {name: float(numbers.pop()) for name, numbers in found.items()}


def _has_tensor(values: Mapping[str, float | Tensor], block: Block) -> bool:
    return any(isinstance(values[p.name], Tensor) for p in block.params)


def is_bias(name: str) -> bool:
    """Whether a parameter is a bias, by its own name (``bias``, ``in_proj_bias``, ``bias_ih_l0``)."""
    return "bias" in name.rpartition(".")[2]


def positive(value: Any, what: str) -> float:
    """A positive number that single precision can hold, with room for products."""
    what = f" {what}" if what else ""
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise BadOption(
            f"the prior precision{what} must be a positive number, whence.Relative(τ), a mapping from layer names to "
            f"numbers, a mapping from parameter names to tensors, or a whence.Prior; not {value!r}."
        ) from None
    if not (math.isfinite(number) and number > 0):
        raise BadOption(f"the prior precision{what} must be positive, but it is {number:g}; 1.0 is a common choice.")
    if not SMALLEST <= number <= LARGEST:
        raise BadOption(
            f"the prior precision{what} must be between {SMALLEST:g} and {LARGEST:g}, but it is {number:g}; 1.0 is a "
            "common choice."
        )
    return number


def _from_mapping(given: Mapping[str, Any], blocks: Sequence[Block]) -> dict[str, float | Tensor]:
    """Keys are layer names, parameter names or globs on them; every parameter must be covered."""
    values: dict[str, float | Tensor] = {}
    used: set[str] = set()
    for block in blocks:
        for p in block.params:
            match = next((key for key in (p.name, block.name) if key in given), None)
            match = match or next((k for k in given if fnmatch.fnmatchcase(block.name, k)), None)
            match = match or next((k for k in given if fnmatch.fnmatchcase(p.name, k)), None)
            if match is None:
                raise BadOption(
                    f"the prior precision has no entry for {p.name!r} (layer {block.name!r}); add one, or '*'."
                )
            used.add(match)
            values[p.name] = _entry(given[match], p)
    unknown = set(given) - used - {"*"}
    if unknown:
        names = ", ".join(b.name for b in blocks[:8])
        raise BadOption(f"the prior precision names {sorted(unknown)[0]!r}, which is not a layer. Layers: {names}.")
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
                f"the prior precision of {param.name!r} must be positive; its smallest value is {float(value.min()):g}."
            )
        return value.detach().double().cpu()
    return positive(value, f"of {param.name!r}")
