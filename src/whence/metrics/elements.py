"""What counts, how much, and what is resampled together: masks, weights, groups and their checks.

Index legend: N elements that count, G groups that are resampled as one, B rows of counts, M sums.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from whence.errors import BadData, BadOption

ArrayLike = Any  # Tensor, numpy array, or nested list of numbers


class Common(TypedDict, total=False):
    """Keywords of every metric."""

    mask: ArrayLike | None
    weights: ArrayLike | None
    groups: ArrayLike | None
    resamples: int
    level: float
    seed: int


class ForLabels(Common, total=False):
    """Keywords of every metric of labels."""

    class_weights: ArrayLike | None
    ignore_index: int
    class_dim: int


@dataclass(frozen=True)
class Options:
    """The keywords, checked."""

    mask: ArrayLike | None = None
    weights: ArrayLike | None = None
    groups: ArrayLike | None = None
    resamples: int = 1000
    level: float = 0.95
    seed: int = 0
    class_weights: ArrayLike | None = None
    ignore_index: int = -100
    class_dim: int = 1

    def __post_init__(self) -> None:
        if not is_whole(self.resamples) or self.resamples < 0:
            raise BadOption(f"resamples={self.resamples!r} is no count; take 1000, or 0 for no interval.")
        check_share(self.level, "level", "0.95 gives a 95 % interval")
        if not is_whole(self.seed):
            raise BadOption(f"seed={self.seed!r} is no whole number.")
        if self.ignore_index is None:
            object.__setattr__(self, "ignore_index", NOTHING)
        elif not is_whole(self.ignore_index):
            raise BadOption(f"ignore_index={self.ignore_index!r} is no whole number; None ignores nothing.")


NOTHING = -(2**62)  # an ignore_index that no target has


def is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_share(value: Any, name: str, remedy: str, closed: bool = False) -> float:
    """A number between 0 and 1; 1 itself where ``closed``."""
    number = value if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) else math.nan
    if not (0 < number < 1 or (closed and number == 1)):
        raise BadOption(f"{name}={value!r} is not between 0 and 1; {remedy}.")
    return float(number)


LABEL_KEYWORDS = ("class_weights", "ignore_index", "class_dim")


def read(name: str, given: Mapping[str, Any], labels: bool = False) -> Options:
    """The keywords of ``name``; unknown ones are refused as Python does, with the nearest known one."""
    known = [f.name for f in fields(Options) if labels or f.name not in LABEL_KEYWORDS]
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" It takes {', '.join(known)}."
            raise TypeError(f"{name}() got an unexpected keyword argument {key!r}.{hint}")
    return Options(**given)


def tensor(value: ArrayLike, what: str) -> Tensor:
    """A tensor without gradient; lists of numbers are read in float64, and Apple's GPUs have none."""
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadData(f"{what}: a {type(value).__name__} is no tensor of numbers.") from error
    if value.is_complex():
        raise BadData(f"{what}: complex numbers cannot be scored; pass real ones.")
    value = value.detach()
    return value.cpu() if value.device.type == "mps" else value


def finite(values: Tensor, what: str) -> Tensor:
    """Raise if any value is NaN or infinite."""
    if values.is_floating_point() and values.numel():
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            raise BadData(f"{what}: {bad} of {values.numel()} values are NaN or infinite. Mask or repair them.")
    return values


def fit(value: ArrayLike, shape: torch.Size, what: str) -> Tensor:
    """One number per element, flat: given in ``shape`` (up to dimensions of size 1), or one per example."""
    given = tensor(value, what)
    if squeezed(given.shape) == squeezed(shape):
        return given.reshape(-1)
    if len(shape) > 1 and given.shape == shape[:1]:
        return given.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).reshape(-1)
    raise BadData(f"{what} has shape {tuple(given.shape)}, but the targets have {tuple(shape)}: one value each.")


def squeezed(shape: torch.Size) -> tuple[int, ...]:
    """The example dimension, and those of further ones that are not 1."""
    return (*shape[:1], *(n for n in shape[1:] if n != 1))


@dataclass(frozen=True)
class Elements:
    """The elements that count: where they are, what they weigh, which are resampled together."""

    keep: Tensor  # [N] positions in the flattened targets
    weights: Tensor  # [N], float64, positive
    group: Tensor | None  # [N] in 0..G−1; None where every element is a group of its own
    sizes: tuple[int, ...]  # groups in each stratum; strata follow one another

    @property
    def count(self) -> int:
        return len(self.keep)

    @property
    def groups(self) -> int:
        return sum(self.sizes)

    def rows(self, counts: Tensor) -> Tensor:
        """Weights of the elements [B, N], from how often each group was drawn [B, G]."""
        spread = counts if self.group is None else counts.index_select(1, self.group)
        return spread * self.weights

    def sums(self, *columns: Tensor) -> Tensor:
        """Weighted sums of values [N] over each group, [G, M]."""
        values = torch.stack(columns, 1) * self.weights.unsqueeze(1)
        if self.group is None:
            return values
        return values.new_zeros(self.groups, len(columns)).index_add_(0, self.group, values)

    def ordered(self, order: Tensor) -> Elements:
        """The same elements in another order; of one stratum only."""
        group = None if self.group is None else self.group[order]
        return replace(self, keep=self.keep[order], weights=self.weights[order], group=group)

    def split(self, positive: Tensor) -> tuple[Elements, Tensor]:
        """Positives first, and strata such that no resample loses a class; and the order this took, [N].

        Groups are strata by what they hold: positives only, negatives only, or both.
        """
        order = torch.cat([positive.nonzero().flatten(), (~positive).nonzero().flatten()])
        moved = self.ordered(order)
        if moved.group is None:
            ones = int(positive.sum())
            return replace(moved, sizes=(ones, self.count - ones)), order
        holds = self.weights.new_zeros(self.groups, 2)
        holds[moved.group, (~positive[order]).long()] = 1
        kind = (holds[:, 0] + 2 * holds[:, 1]).long()
        ranks = torch.empty_like(kind)
        ranks[kind.argsort(stable=True)] = torch.arange(self.groups, device=kind.device)
        sizes = tuple(n for n in torch.bincount(kind, minlength=4).tolist() if n)
        return replace(moved, group=ranks[moved.group], sizes=sizes), order


def elements(
    shape: torch.Size, options: Options, device: torch.device, counts: Tensor | None = None, why: str = ""
) -> Elements:
    """The elements of targets in ``shape`` that mask, weights and ``counts`` (flat, with its reason) leave."""
    total = shape.numel()
    keep = torch.ones(total, dtype=torch.bool, device=device)
    reasons = []
    if options.mask is not None:
        keep &= truth(fit(options.mask, shape, "mask"), "mask").to(device)
        reasons.append("the mask")
    if counts is not None and not bool(counts.all()):
        keep &= counts
        reasons.append(why)
    weights = torch.ones(total, dtype=torch.float64, device=device)
    if options.weights is not None:
        weights = fit(options.weights, shape, "weights").to(device, torch.float64)
        check_weights(weights[keep], "weights")
        keep &= weights > 0
        reasons.append("the weights")
    if not bool(keep.any()):
        because = f" after {' and '.join(reasons)}" if reasons else ""
        raise BadData(f"nothing to score: 0 of {total} elements count{because}. Check the inputs and the mask.")
    where = keep.nonzero().flatten()
    group, size = _groups(shape, options, where)
    return Elements(where, weights[where], group, (size,))


def reweighted(found: Elements, factors: Tensor) -> tuple[Elements, Tensor]:
    """Weights multiplied by ``factors`` [N]; and the places among N that keep a weight above 0."""
    weights = found.weights * factors
    left = (weights > 0).nonzero().flatten()
    if not len(left):
        raise BadData(f"nothing to score: 0 of {found.count} elements have a class of positive weight.")
    if found.group is None:
        return Elements(found.keep[left], weights[left], None, (len(left),)), left
    group, size = relabelled(found.group[left])
    return Elements(found.keep[left], weights[left], group, (size,)), left


def check_weights(weights: Tensor, what: str) -> None:
    finite(weights, what)
    if bool((weights < 0).any()):
        raise BadData(f"{what}: the smallest is {float(weights.min()):.4g}; they must not be negative.")


def truth(values: Tensor, what: str) -> Tensor:
    """Truth values, given as such or as 0 and 1."""
    if values.dtype == torch.bool:
        return values
    odd = values[(values != 0) & (values != 1)]
    if odd.numel():
        raise BadData(f"{what} must be true or false for each element; found {odd[0].item():.6g}.")
    return values == 1


def _groups(shape: torch.Size, options: Options, where: Tensor) -> tuple[Tensor | None, int]:
    """Group of each element: the given one, or its example."""
    if options.groups is None:
        inner = shape.numel() // shape[0] if shape else 1
        if inner == 1:
            return None, len(where)
        return relabelled(where // inner)
    return relabelled(whole_groups(fit(options.groups, shape, "groups")).to(where.device)[where])


def whole_groups(groups: Tensor) -> Tensor:
    """Groups as whole numbers."""
    if groups.is_floating_point() and bool((groups != groups.round()).any()):
        raise BadData("groups must be whole numbers, the same for elements that belong together.")
    return groups.long()


def relabelled(group: Tensor) -> tuple[Tensor | None, int]:
    """Groups as 0..G−1, and G; None for the groups where each has one element."""
    found, inverse = torch.unique(group, return_inverse=True)
    return (None if len(found) == len(group) else inverse), len(found)
