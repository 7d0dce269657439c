"""Sequences that every batch pads to its own longest: padding them to one length, and which positions count.

A mapping of inputs says by ``attention_mask`` (1 for tokens) or ``key_padding_mask`` (true for padding), [N, T], which
positions are tokens. Nothing is known about inputs without a mask, so they are never padded.

Index legend: N examples, T positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from whence.errors import BadData

ATTENTION, PADDING = "attention_mask", "key_padding_mask"
IGNORED = -100  # label of a position that does not count


def counted_positions(inputs: Any) -> Tensor | None:
    """Which positions are tokens, bool [N, T]; None if the inputs do not say."""
    if not isinstance(inputs, Mapping):
        return None
    for key, value in inputs.items():
        if isinstance(value, Tensor) and value.dim() == 2 and not value.is_floating_point():
            if str(key).endswith(ATTENTION):
                return value != 0
            if str(key).endswith(PADDING):
                return value == 0
    return None


def same_length(inputs: list[Any], targets: list[Tensor], name: str) -> tuple[list[Any], list[Tensor]]:
    """Batches padded to the longest of them, where they differ in length and have a mask; otherwise unchanged.

    Masks are padded with what means padding, token labels with −100, everything else that has a value for each
    position with the value that the batches have at padded positions (0 if none is padded).
    """
    masks = [mask for mask in map(counted_positions, inputs) if mask is not None]
    lengths = [mask.shape[1] for mask in masks]
    if len(set(lengths)) < 2 or len(masks) < len(inputs):
        return inputs, targets
    left = _padded_left(masks, name)
    columns = {key: [one[key] for one in inputs] for key in inputs[0]}
    padded = {key: _padded(parts, lengths, _padding_value(key, parts, masks), left) for key, parts in columns.items()}
    made = [{key: parts[i] for key, parts in padded.items()} for i in range(len(inputs))]
    if targets and _by_position(targets, lengths) and targets[0].is_floating_point():
        raise BadData(
            f"{name}: the targets are numbers for every position of sequences of different lengths ({min(lengths)} to "
            f"{max(lengths)}), and numbers cannot be marked as padding. Pad all to one length."
        )
    return made, _padded(targets, lengths, IGNORED, left) if targets else targets


def _padded(parts: list[Any], lengths: list[int], fill: Any, left: bool) -> list[Any]:
    """One of the inputs, or the targets, of all batches."""
    if not _by_position(parts, lengths):
        return parts
    return [_extended(part, max(lengths) - length, fill, left) for part, length in zip(parts, lengths, strict=True)]


def _by_position(parts: list[Any], lengths: list[int]) -> bool:
    """Whether these have a value for each position, in every batch."""
    pairs = zip(parts, lengths, strict=True)
    return all(isinstance(part, Tensor) and part.dim() > 1 and part.shape[1] == length for part, length in pairs)


def _padded_left(masks: list[Tensor], name: str) -> bool:
    """Whether tokens stand at the end of padded sequences."""
    left = any(bool((~mask[:, 0] & mask[:, -1]).any()) for mask in masks)
    if left and any(bool((mask[:, 0] & ~mask[:, -1]).any()) for mask in masks):
        raise BadData(f"{name}: some sequences are padded at their beginning, others at their end. Pad on one side.")
    return left


def _padding_value(key: Any, parts: list[Any], masks: list[Tensor]) -> Any:
    """What stands at padded positions of one of the inputs."""
    if str(key).endswith(PADDING):
        return 1
    for value, mask in zip(parts, masks, strict=True):
        if isinstance(value, Tensor) and value.shape == mask.shape and not bool(mask.all()):
            return value[~mask.to(value.device)][0].item()
    return 0


def _extended(value: Tensor, more: int, fill: Any, left: bool) -> Tensor:
    extra = value.new_full((len(value), more, *value.shape[2:]), fill)
    return torch.cat([extra, value] if left else [value, extra], 1)


def filled(parts: list[Tensor], dim: int, refuse: Callable[[], Exception]) -> Tensor:
    """Outputs of consecutive batches joined along ``dim``; NaN at positions that only other batches have."""
    sizes = [list(part.shape) for part in parts]
    differ = [d for d in range(parts[0].dim()) if d != dim and len({size[d] for size in sizes}) > 1]
    if not differ:
        return torch.cat(parts, dim)
    if len(differ) > 1 or not parts[0].is_floating_point():
        raise refuse()
    (at,) = differ
    longest = max(size[at] for size in sizes)
    made = []
    for part in parts:
        shape = list(part.shape)
        shape[at] = longest - shape[at]
        made.append(torch.cat([part, part.new_full(shape, torch.nan)], at))
    return torch.cat(made, dim)


def without_padding(outputs: Tensor) -> Tensor:
    """Outputs of draws [S, N, T, …] without those that :func:`filled` added, which are NaN under every draw."""
    if outputs.dim() < 4:
        return outputs
    added = outputs.isnan().all(0)
    if not bool(added.any()) or bool(added.flatten(1).all(1).any()):  # an input without any output is an error
        return outputs
    return outputs[:, ~added]
