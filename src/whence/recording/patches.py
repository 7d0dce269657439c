"""Convolutions as matrix products: the input patch of each output position."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def per_dimension(value: int | tuple[int, ...] | list[int], dims: int) -> tuple[int, ...]:
    """An option of a convolution, as one number per spatial dimension."""
    if isinstance(value, int):
        return (value,) * dims
    value = tuple(value)
    return value * dims if len(value) == 1 else value


def padding_of(
    padding: str | int | tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> list[tuple[int, int]]:
    """(before, after) for each spatial dimension; ``"same"`` puts the odd one after, as torch does."""
    dims = len(kernel)
    if padding == "valid":
        return [(0, 0)] * dims
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]
    assert not isinstance(padding, str)
    return [(p, p) for p in per_dimension(padding, dims)]


def pad(x: Tensor, amounts: list[tuple[int, int]]) -> Tensor:
    """Zero padding of the trailing dimensions; negative amounts crop."""
    if not any(a or b for a, b in amounts):
        return x
    flat = [side for pair in reversed(amounts) for side in pair]
    return F.pad(x, flat)


def patches(
    x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], groups: int
) -> Tensor:
    """Patches of a padded input [B, channels, *space] → [groups, B, T, (channels / groups) · ∏ kernel]."""
    x = x.contiguous()
    batch, channels = x.shape[:2]
    space = x.shape[2:]
    out = [(s - d * (k - 1) - 1) // st + 1 for s, d, k, st in zip(space, dilation, kernel, stride, strict=True)]
    steps = x.stride()
    view = x.as_strided(
        (groups, batch, *out, channels // groups, *kernel),
        (
            steps[1] * (channels // groups),
            steps[0],
            *(step * st for step, st in zip(steps[2:], stride, strict=True)),
            steps[1],
            *(step * d for step, d in zip(steps[2:], dilation, strict=True)),
        ),
    )
    return view.reshape(groups, batch, math.prod(out), channels // groups * math.prod(kernel))


def conv_patches(
    x: Tensor,
    kernel: tuple[int, ...],
    stride: int | tuple[int, ...],
    padding: str | int | tuple[int, ...],
    dilation: int | tuple[int, ...],
    groups: int,
) -> Tensor:
    """The input patch of each output position, in the order of ``weight.flatten(1)``."""
    dims = len(kernel)
    dilation = per_dimension(dilation, dims)
    padded = pad(x, padding_of(padding, kernel, dilation))
    return patches(padded, kernel, per_dimension(stride, dims), dilation, groups)


def transposed_patches(
    x: Tensor,
    kernel: tuple[int, ...],
    stride: int | tuple[int, ...],
    padding: int | tuple[int, ...],
    output_padding: int | tuple[int, ...],
    dilation: int | tuple[int, ...],
    groups: int,
) -> Tensor:
    """The same for a transposed convolution, in the order (input channel, kernel offset).

    It is a plain convolution of the zero-stuffed input with the flipped kernel; here the patch is flipped.
    """
    dims = len(kernel)
    stride, dilation = per_dimension(stride, dims), per_dimension(dilation, dims)
    before = per_dimension(padding, dims)
    extra = per_dimension(output_padding, dims)
    stuffed_space = [(s - 1) * st + 1 for s, st in zip(x.shape[2:], stride, strict=True)]
    stuffed = x.new_zeros(*x.shape[:2], *stuffed_space)
    stuffed[(slice(None), slice(None), *(slice(None, None, st) for st in stride))] = x
    amounts = [
        (d * (k - 1) - p, d * (k - 1) - p + e) for d, k, p, e in zip(dilation, kernel, before, extra, strict=True)
    ]
    seen = patches(pad(stuffed, amounts), kernel, (1,) * dims, dilation, groups)  # [E, B, T, I·k]
    split = seen.reshape(*seen.shape[:3], x.shape[1] // groups, *kernel)
    return torch.flip(split, dims=list(range(-dims, 0))).reshape(seen.shape)
