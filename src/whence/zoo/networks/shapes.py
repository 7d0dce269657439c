"""What the networks share: input shapes, widths, activations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import nn

from whence.errors import BadOption, one_of

Shape = int | Sequence[int]

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU}


def features_of(shape: Shape) -> int:
    """Number of input values."""
    return math.prod(as_tuple(shape))


def as_tuple(shape: Shape) -> tuple[int, ...]:
    """A shape given as a number, a list or a tuple of whole numbers."""
    numbers = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if not numbers or not all(isinstance(n, (int, np.integer)) and n >= 1 for n in numbers):
        raise BadOption(f"shape={shape!r}: positive whole numbers are expected, such as 784 or (1, 28, 28).")
    return tuple(int(n) for n in numbers)


def image_shape(shape: Shape, name: str, smallest: int) -> tuple[int, int, int]:
    """(channels, height, width), at least ``smallest`` pixels wide and high."""
    shape = as_tuple(shape)
    if len(shape) != 3:
        raise BadOption(f"{name} takes images: shape={shape!r} is not (channels, height, width).")
    if min(shape[1:]) < smallest:
        raise BadOption(f"{name} needs images of at least {smallest} × {smallest}; shape={shape!r}.")
    return shape[0], shape[1], shape[2]


def scaled(channels: int, width: float) -> int:
    """``channels`` times ``width``, at least one."""
    if channels < 1:
        raise BadOption(f"a layer of {channels} units is none; take 1 or more.")
    if width <= 0:
        raise BadOption(f"width={width} is not positive; 1 is the published network, 0.5 half as wide.")
    return max(1, round(channels * width))


def make_activation(name: str) -> nn.Module:
    return ACTIVATIONS[one_of(name, ACTIVATIONS, "activation")]()


def check_dropout(p: float) -> float:
    if not 0 <= p < 1:
        raise BadOption(f"dropout={p} is not in [0, 1).")
    return p
