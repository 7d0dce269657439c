"""The scored elements of a metric with their weights and resampling groups, and the common keywords.

An element is one target: an example, or a pixel, token or output of one. Index legend: N scored elements, G groups that
are resampled as one, B rows of counts, M sums.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from whence.errors import BadData, fraction, whole_number

ArrayLike = Any  # Tensor, numpy array, or nested list of numbers
IGNORE_NOTHING = -(2**62)  # an ignore_index that no target has
LABEL_KEYWORDS = ("class_weights", "ignore_index", "class_dim")


class Common(TypedDict, total=False):
    """Keywords of every metric."""

    mask: ArrayLike | None
    weights: ArrayLike | None
    groups: ArrayLike | None
    resamples: int
    level: float
    seed: int


class ForLabels(Common, total=False):
    """Keywords of every metric of class labels."""

    class_weights: ArrayLike | None
    ignore_index: int
    class_dim: int


@dataclass(frozen=True)
class MetricOptions:
    """The common keywords, checked."""

    mask: ArrayLike | None = None
    weights: ArrayLike | None = None
    groups: ArrayLike | None = None
    resamples: int = 1000
    level: float = 0.95
    seed: int = 0
    class_weights: ArrayLike | None = None
    ignore_index: int = -100
    class_dim: int = 1

    @classmethod
    def read(cls, metric: str, given: Mapping[str, Any], labels: bool = False) -> MetricOptions:
        """The keywords of a metric; an unknown one is refused, with a suggestion."""
        known = [f.name for f in fields(cls) if labels or f.name not in LABEL_KEYWORDS]
        for key in given:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else f" It takes {', '.join(known)}."
                raise TypeError(f"{metric}() got an unexpected keyword argument {key!r}.{hint}")
        options = cls(**given)
        whole_number(options.resamples, "resamples", 0, "0 gives no interval")
        fraction(options.level, "level", "0.95 gives a 95% interval")
        whole_number(options.seed, "seed", None)
        if options.ignore_index is None:
            return replace(options, ignore_index=IGNORE_NOTHING)
        whole_number(options.ignore_index, "ignore_index", None, "None ignores nothing")
        return options


# Arrays that users pass


def tensor(value: ArrayLike, what: str) -> Tensor:
    """A tensor without gradient. Lists are read in float64; Apple's GPUs lack it, so their tensors go to the CPU."""
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadData(f"{what}: expected a tensor of numbers, not a {type(value).__name__}.") from error
    if value.is_complex():
        raise BadData(f"{what}: complex numbers cannot be scored; pass real ones.")
    value = value.detach()
    return value.cpu() if value.device.type == "mps" else value


def finite(values: Tensor, what: str) -> Tensor:
    """The values, or an error if any is NaN or infinite."""
    if values.is_floating_point() and values.numel():
        bad = int((~torch.isfinite(values)).sum())
        if bad:
            raise BadData(f"{what}: {bad:,} of {values.numel():,} values are NaN or infinite. Mask or fix them.")
    return values


def per_element(value: ArrayLike, shape: torch.Size, what: str) -> Tensor:
    """One value per element, flat: given in ``shape`` (up to dimensions of size 1), or one per example."""
    given = tensor(value, what)
    if squeezed(given.shape) == squeezed(shape):
        return given.reshape(-1)
    if len(shape) > 1 and given.shape == shape[:1]:
        return given.reshape(-1, *[1] * (len(shape) - 1)).expand(shape).reshape(-1)
    raise BadData(f"{what} has shape {tuple(given.shape)}, but the targets have {tuple(shape)}: pass one value each.")


def squeezed(shape: torch.Size) -> tuple[int, ...]:
    """The shape without dimensions of size 1 after the first."""
    return (*shape[:1], *(n for n in shape[1:] if n != 1))


def as_bool(values: Tensor, what: str) -> Tensor:
    """Booleans, given as such or as 0 and 1."""
    if values.dtype == torch.bool:
        return values
    odd = values[(values != 0) & (values != 1)]
    if odd.numel():
        raise BadData(f"{what} must be true or false for each element; found {odd[0].item():.6g}.")
    return values == 1


def whole_groups(groups: Tensor) -> Tensor:
    if groups.is_floating_point() and bool((groups != groups.round()).any()):
        raise BadData("groups must be whole numbers, equal for elements of the same group.")
    return groups.long()


def check_weights(weights: Tensor, what: str) -> None:
    finite(weights, what)
    if bool((weights < 0).any()):
        raise BadData(f"{what}: the smallest is {float(weights.min()):.4g}; they must not be negative.")


# Scored elements


@dataclass(frozen=True)
class Elements:
    """The elements that are scored, and how their interval is computed."""

    keep: Tensor  # [N] positions in the flattened targets
    weights: Tensor  # [N], float64, positive
    group: Tensor | None  # [N] in 0..G−1; None if every element is its own group
    strata: tuple[int, ...]  # groups in each stratum; strata follow one another
    options: MetricOptions

    @property
    def count(self) -> int:
        return len(self.keep)

    @property
    def groups(self) -> int:
        return sum(self.strata)

    @property
    def once(self) -> Tensor:
        """Every group counted once, [1, G]."""
        return torch.ones(1, self.groups, dtype=torch.float64, device=self.weights.device)

    def rows(self, counts: Tensor) -> Tensor:
        """Weights of the elements [B, N], from how often each group was drawn [B, G]."""
        per_element = counts if self.group is None else counts.index_select(1, self.group)
        return per_element * self.weights

    def sums(self, *columns: Tensor) -> Tensor:
        """Weighted sums of values [N] over each group, [G, M]."""
        values = torch.stack(columns, 1) * self.weights.unsqueeze(1)
        if self.group is None:
            return values
        return values.new_zeros(self.groups, len(columns)).index_add_(0, self.group, values)

    def squared_weights(self, index: Tensor, size: int) -> Tensor:
        """Σ over groups of their squared weight in each bin, from the bin of each element [N]; [size]."""
        if self.group is None:
            return torch.bincount(index, self.weights.square(), size)
        sums = torch.bincount(self.group * size + index, self.weights, self.groups * size)
        return sums.reshape(-1, size).square().sum(0)

    def sorted_by(self, order: Tensor) -> Elements:
        """The same elements in another order; they must be in one stratum."""
        group = None if self.group is None else self.group[order]
        return replace(self, keep=self.keep[order], weights=self.weights[order], group=group)

    def subset(self, which: Tensor) -> Elements:
        """Some of the elements, as one stratum."""
        group, size = (None, len(which)) if self.group is None else _relabelled(self.group[which])
        return Elements(self.keep[which], self.weights[which], group, (size,), self.options)

    def split(self, positive: Tensor) -> tuple[Elements, Tensor]:
        """Positives first, in strata such that no resample loses a class; and their order, [N].

        Strata are groups with only positives, only negatives, or both.
        """
        order = torch.cat([positive.nonzero().flatten(), (~positive).nonzero().flatten()])
        found = self.sorted_by(order)
        if found.group is None:
            ones = int(positive.sum())
            return replace(found, strata=(ones, self.count - ones)), order
        holds = self.weights.new_zeros(self.groups, 2)
        holds[found.group, (~positive[order]).long()] = 1
        kind = (holds[:, 0] + 2 * holds[:, 1]).long()
        ranks = torch.empty_like(kind)
        ranks[kind.argsort(stable=True)] = torch.arange(self.groups, device=kind.device)
        strata = tuple(n for n in torch.bincount(kind, minlength=4).tolist() if n)
        return replace(found, group=ranks[found.group], strata=strata), order


def elements(
    shape: torch.Size, options: MetricOptions, device: torch.device, targets: Tensor | None = None
) -> Elements:
    """The elements of targets in ``shape`` left by mask, weights and ``ignore_index`` (in flat ``targets``)."""
    total = shape.numel()
    keep = torch.ones(total, dtype=torch.bool, device=device)
    reasons = []
    if options.mask is not None:
        keep &= as_bool(per_element(options.mask, shape, "mask"), "mask").to(device)
        reasons.append("the mask")
    if targets is not None and bool((ignored := targets == options.ignore_index).any()):
        keep &= ~ignored
        reasons.append(f"ignore_index={options.ignore_index}")
    weights = torch.ones(total, dtype=torch.float64, device=device)
    if options.weights is not None:
        weights = per_element(options.weights, shape, "weights").to(device, torch.float64)
        check_weights(weights[keep], "weights")
        keep &= weights > 0
        reasons.append("the weights")
    if not bool(keep.any()):
        because = f" after {' and '.join(reasons)}" if reasons else ""
        raise BadData(f"nothing to score: none of {total:,} elements counts{because}. Check the inputs and the mask.")
    where = keep.nonzero().flatten()
    inner = total // shape[0] if shape else 1  # elements of one example belong together
    if options.groups is not None:
        group, size = _relabelled(whole_groups(per_element(options.groups, shape, "groups")).to(device)[where])
    else:
        group, size = (None, len(where)) if inner == 1 else _relabelled(where // inner)
    return Elements(where, weights[where], group, (size,), options)


def _relabelled(group: Tensor) -> tuple[Tensor | None, int]:
    """Groups as 0..G−1, and G; None if each group has one element."""
    found, inverse = torch.unique(group, return_inverse=True)
    return (None if len(found) == len(group) else inverse), len(found)
