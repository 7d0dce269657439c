"""Which outputs a profile is about, by which measure, and whether it is exact or uses random columns.

A profile divides tr(T V Tᵀ), with V = J Σ Jᵀ and T the measure: the identity (for class labels minus the mean over the
classes), or TᵀT = ½ Λ. One backward pass for each row of T is exact. For many outputs K random columns replace them:
with z of independent signs, E[zᵀ T V Tᵀ z] = tr(T V Tᵀ) (Hutchinson 1990). Every input has columns of its own.

Index legend: N inputs, M positions, C outputs at a position, K columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from whence.engine.batches import from_numpy
from whence.engine.memory import sizes
from whence.engine.options import Option
from whence.engine.randomness import example_uniform
from whence.errors import BadOption, notice
from whence.likelihoods import Likelihood
from whence.predictive.linearised_draws import BACKWARD, Probes, check_probes
from whence.recording.calls import Recording

ProbesOption = Literal["auto", "exact"] | int
DRAWN_TOGETHER = 2**22  # random numbers
PROBES = 16  # random columns of an input


class Measure(Option):
    """What is shared out: tr V, or ½ tr(Λ V)."""

    VARIANCE = "variance"
    INFORMATION = "information"


@dataclass(frozen=True)
class Question:
    """``probes`` random columns for each input, all outputs, or by cost; ``at`` is an index or a mask of targets."""

    measure: Measure = Measure.VARIANCE
    at: Any = None
    probes: Probes | int = Probes.AUTO
    same_columns: bool = False  # random columns that all inputs have in common
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "measure", Measure.parse(self.measure, "measure"))
        object.__setattr__(self, "at", from_numpy(self.at))
        object.__setattr__(self, "probes", check_probes(self.probes))

    @property
    def random_columns(self) -> int | None:
        """Random columns of an input; None if exact."""
        return self.probes if isinstance(self.probes, int) else None

    @property
    def is_whole(self) -> bool:
        """Whether it is exact and about the variance of all outputs."""
        return self.random_columns is None and self.measure is Measure.VARIANCE and self.at is None

    def decided(
        self, likelihood: Likelihood, one: Recording, inputs: int, what: str, memory: Callable[[int], int]
    ) -> Question:
        """The question with ``Probes.AUTO`` resolved by cost; a Notice says if random columns are used.

        ``memory``: bytes of one input by its number of columns.
        """
        if self.probes is Probes.EXACT:
            return self
        outputs = one.outputs.detach()
        exact = self.exact_count(likelihood, outputs)
        count = self.random_columns or PROBES
        chosen = self._chosen(likelihood, outputs, self._largest_mask())
        redundant = int(chosen.any(-1).sum()) if likelihood.shift_invariant else 0  # a centred position has rank C − 1
        if exact - redundant <= count:
            return replace(self, probes=Probes.EXACT)
        if self.random_columns is not None:
            return self
        work = BACKWARD * exact * inputs * one.multiplications
        light = memory(exact) <= sizes().exact_bytes(outputs.device)
        if light and work <= sizes().exact_shares(outputs.device):
            return replace(self, probes=Probes.EXACT)
        notice(
            f"{what} uses {count} random columns for each input instead of all {exact:,} outputs and gives standard "
            f"errors; probes='exact' takes about {exact / count:.0f} times as long."
        )
        return replace(self, probes=count)

    def exact_count(self, likelihood: Likelihood, outputs: Tensor) -> int:
        """Rows of T, for the input that has the most."""
        chosen = self._chosen(likelihood, outputs[:1], self._largest_mask())  # [1, M, C]
        if self.measure is Measure.VARIANCE:
            return int(chosen.sum())
        return int(chosen.any(-1).sum()) * _root(likelihood, outputs[:1]).shape[-1]

    def columns(self, likelihood: Likelihood, outputs: Tensor, first: int = 0, counted: Tensor | None = None) -> Tensor:
        """What is sent backward, [K, *outputs.shape]; ``first`` is the number of the first input.

        ``counted``: which positions are tokens, bool [N, M], where ``at`` does not say which outputs are meant.
        """
        chosen = self._chosen(likelihood, outputs, first)  # [1 or N, M, C]
        if self.random_columns is not None:
            flat = self._random(likelihood, outputs, chosen, first)
        elif self.measure is Measure.INFORMATION:
            flat = _root_columns(_root(likelihood, outputs), chosen)
        else:
            flat = _identity(chosen, outputs.dtype) if self.at is None else _unit_columns(chosen, outputs.dtype)
            if likelihood.shift_invariant:
                flat = flat - flat.sum(-1, keepdim=True) / flat.shape[-1]
            flat = flat.expand(-1, len(outputs), -1, -1)
        if self.at is None and counted is not None:
            tokens = counted.shape[1:]  # as many numbers for an input as it has tokens are no positions
            if flat.shape[2:3] == tokens == target_shape(likelihood, outputs):
                flat = flat * counted.unsqueeze(-1)  # outputs at padding are no predictions
        return likelihood.unflatten(flat, outputs).to(outputs.dtype)

    def _random(self, likelihood: Likelihood, outputs: Tensor, chosen: Tensor, first: int) -> Tensor:
        assert self.random_columns is not None
        size, (positions, classes) = len(outputs), chosen.shape[1:]
        root = _root(likelihood, outputs) if self.measure is Measure.INFORMATION else None
        shape = (size, positions, classes if root is None else root.shape[-1])
        rows = torch.arange(first, first + size, device=outputs.device) * (not self.same_columns)
        step = max(1, DRAWN_TOGETHER // max(torch.Size(shape).numel(), 1))
        parts = [range(k, min(k + step, self.random_columns)) for k in range(0, self.random_columns, step)]
        uniform = (example_uniform(self.seed, part, rows, shape) for part in parts)
        found = torch.cat([torch.where(u < 0.5, -1.0, 1.0).to(outputs.dtype) for u in uniform])  # [K, N, M, C]
        if root is not None:
            found = torch.einsum("nmcj,knmj->knmc", root, found)
        elif likelihood.shift_invariant:
            found = found - found.mean(-1, keepdim=True)
        return found * chosen / self.random_columns**0.5

    def _chosen(self, likelihood: Likelihood, outputs: Tensor, first: int = 0) -> Tensor:
        """The selected outputs, bool [1, M, C], or [N, M, C] if inputs differ."""
        flat = likelihood.flatten(outputs)
        if self.at is None:
            return torch.ones_like(flat[:1], dtype=torch.bool)
        shape = target_shape(likelihood, outputs)
        asked = _mask(self.at, shape, len(outputs), first).to(outputs.device)
        if likelihood.shift_invariant:
            return asked.reshape(len(asked), -1, 1).expand(-1, -1, flat.shape[-1])
        return asked.reshape(len(asked), *flat.shape[1:])

    def masks(self, likelihood: Likelihood, outputs: Tensor) -> int | None:
        """Number of masks, where each input has its own."""
        if not (isinstance(self.at, Tensor) and self.at.dtype == torch.bool):
            return None
        return len(self.at) if self.at.dim() == len(target_shape(likelihood, outputs)) + 1 else None

    def _largest_mask(self) -> int:
        """Index of the largest mask, if every input has its own."""
        masks = self.at
        if not (isinstance(masks, Tensor) and masks.dtype == torch.bool and masks.dim() > 1):
            return 0
        return int(masks.flatten(1).sum(1).argmax())


def _identity(chosen: Tensor, dtype: torch.dtype) -> Tensor:
    """:func:`_unit_columns` of all outputs, [M · C, 1, M, C], which needs no look at ``chosen``."""
    size = chosen[0].numel()
    return torch.eye(size, dtype=dtype, device=chosen.device).reshape(size, *chosen[:1].shape)


def _unit_columns(chosen: Tensor, dtype: torch.dtype) -> Tensor:
    """Column j of input n is 1 at its j-th chosen output, [K, N, M, C] of [N, M, C]."""
    flat = chosen.flatten(1)
    counts = flat.sum(1)
    index = flat.int().argsort(dim=1, descending=True, stable=True)[:, : int(counts.max())]  # [N, K]
    there = torch.arange(index.shape[1], device=flat.device) < counts.unsqueeze(1)
    columns = torch.zeros(index.shape[1], *flat.shape, dtype=dtype, device=flat.device)
    return columns.scatter_(2, index.mT.unsqueeze(-1), there.mT.unsqueeze(-1).to(dtype)).unflatten(-1, chosen.shape[1:])


def _root_columns(root: Tensor, chosen: Tensor) -> Tensor:
    """Columns of the root [N, M, C, k] at the chosen positions of each input, [K · k, N, M, C]."""
    chosen = chosen.expand(len(root), -1, -1)
    places = _unit_columns(chosen.any(-1, keepdim=True), root.dtype)  # [K, N, M, 1]
    found = places.unsqueeze(1) * root.movedim(-1, 0) * chosen  # [K, k, N, M, C]
    return found.flatten(0, 1)


def target_shape(likelihood: Likelihood, outputs: Tensor) -> tuple[int, ...]:
    """The shape of one input's targets: the outputs', for class labels without the dimension of the classes."""
    shape = list(outputs.shape[1:])
    if likelihood.shift_invariant:
        dim = getattr(likelihood, "class_dim", 1)
        shape.pop(dim if dim < 0 else dim - 1)
    return tuple(shape)


def _mask(at: Any, shape: tuple[int, ...], size: int, first: int) -> Tensor:
    """``at`` as a boolean mask, [1 or N, *shape]."""
    if not shape:
        raise BadOption("at= selects among several targets of an input (pixels, tokens, outputs); here it has one.")
    if isinstance(at, Tensor) and at.dtype == torch.bool:
        if not bool(at.any()):
            raise BadOption("the mask at= selects nothing.")
        if tuple(at.shape) == shape:
            return at.unsqueeze(0)
        if tuple(at.shape[1:]) == shape and len(at) >= first + size:
            return at[first : first + size]
        raise BadOption(
            f"at= is a mask of shape {list(at.shape)}, but the targets of an input have shape {list(shape)}: pass a "
            "mask of that shape, or one for every input."
        )
    mask = torch.zeros(shape, dtype=torch.bool)
    try:
        if isinstance(at, bool):
            raise TypeError("pass an index or a mask")
        mask[at.cpu() if isinstance(at, Tensor) else at] = True
    except (IndexError, TypeError, ValueError, RuntimeError) as error:
        raise BadOption(f"at={at!r} is no index of targets of shape {list(shape)}: {error}.") from None
    if not bool(mask.any()):
        raise BadOption(f"at={at!r} selects none of the targets of shape {list(shape)}.")
    return mask.unsqueeze(0)


def _root(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """A root of ½ Λ, with median targets where Λ depends on them, [N, M, C, K]."""
    targets = likelihood.sample(outputs, torch.full_like(likelihood.flatten(outputs), 0.5))
    if likelihood.shift_invariant:
        targets = targets.reshape(len(outputs), *target_shape(likelihood, outputs))
    return likelihood.root(outputs, likelihood.check(outputs, targets)) / 2**0.5
