"""Networks that are plain sequences of layers: perceptrons, LeNet-5, AlexNet, VGG; and shared helpers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from whence.errors import BadOption, one_of

Shape = int | Sequence[int]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
}
# Output channels by block; a max pool ends each block (Simonyan & Zisserman 2015, table 1).
VGG_BLOCKS: dict[int, tuple[tuple[int, ...], ...]] = {
    11: ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2),
    13: ((64,) * 2, (128,) * 2, (256,) * 2, (512,) * 2, (512,) * 2),
    16: ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    19: ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
}


def perceptron(shape: Shape = 784, outputs: int = 10) -> nn.Sequential:
    """One linear layer."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(math.prod(as_tuple(shape)), outputs)))


def mlp(
    shape: Shape = 784,
    outputs: int = 10,
    *,
    hidden: Sequence[int] = (1024, 1024),
    dropout: float = 0.0,
    activation: str = "relu",
    width: float = 1.0,
) -> nn.Sequential:
    """Linear layers with an activation, and dropout after it, between them.

    The default is the network of Ritter et al. (2018), section 5.2, without its dropout of 0.5;
    ``width=0.5`` halves it.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    features = math.prod(as_tuple(shape))
    if isinstance(hidden, int):
        raise BadOption(f"hidden={hidden}: pass the units of each hidden layer, such as ({hidden},).")
    for index, units in enumerate(hidden, start=1):
        units = scaled(units, width)
        layers |= {f"hidden{index}": nn.Linear(features, units), f"act{index}": make_activation(activation)}
        layers |= _drop(f"drop{index}", dropout)
        features = units
    layers["head"] = nn.Linear(features, outputs)
    return nn.Sequential(layers)


def lenet5(
    shape: Shape = (1, 28, 28),
    outputs: int = 10,
    *,
    dropout: float = 0.0,
    activation: str = "relu",
    width: float = 1.0,
) -> nn.Sequential:
    """LeNet-5 (LeCun et al. 1998) in its usual modern form: maximum pooling, ReLU, a linear head.

    Images of 28 × 28 are padded to 32 × 32; larger ones are not padded. ``width=0.5`` halves all
    filters and units.
    """
    channels, height, _ = image_shape(shape, "lenet5", 16)
    first, second, third, fourth = (scaled(units, width) for units in (6, 16, 120, 84))
    padding = 2 if height < 32 else 0
    features = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, first, 5, padding=padding),
            act1=make_activation(activation),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(first, second, 5),
            act2=make_activation(activation),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
        )
    )
    dense: OrderedDict[str, nn.Module] = OrderedDict(
        dense1=nn.Linear(_width_after(features, shape), third),
        act3=make_activation(activation),
        **_drop("drop1", dropout),
        dense2=nn.Linear(third, fourth),
        act4=make_activation(activation),
        **_drop("drop2", dropout),
        head=nn.Linear(fourth, outputs),
    )
    return nn.Sequential(OrderedDict(**dict(features.named_children()), **dense))


def alexnet(
    shape: Shape = (3, 32, 32),
    outputs: int = 10,
    *,
    dropout: float = 0.0,
    activation: str = "relu",
    width: float = 1.0,
) -> nn.Sequential:
    """AlexNet for 32 × 32 images as in Shridhar et al. (2019): five convolutions, one linear layer."""
    channels, _, _ = image_shape(shape, "alexnet", 32)
    a, b, c, d, e = (scaled(units, width) for units in (64, 192, 384, 256, 128))
    features = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, a, 11, stride=4, padding=5),
            act1=make_activation(activation),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(a, b, 5, padding=2),
            act2=make_activation(activation),
            pool2=nn.MaxPool2d(2),
            conv3=nn.Conv2d(b, c, 3, padding=1),
            act3=make_activation(activation),
            conv4=nn.Conv2d(c, d, 3, padding=1),
            act4=make_activation(activation),
            conv5=nn.Conv2d(d, e, 3, padding=1),
            act5=make_activation(activation),
            pool3=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
        )
    )
    tail = OrderedDict(**_drop("drop", dropout), head=nn.Linear(_width_after(features, shape), outputs))
    return nn.Sequential(OrderedDict(**dict(features.named_children()), **tail))


def vgg(
    shape: Shape = (3, 32, 32),
    outputs: int = 10,
    *,
    depth: int = 11,
    batch_norm: bool = True,
    dropout: float = 0.0,
    width: float = 1.0,
) -> nn.Sequential:
    """VGG-11, 13, 16 or 19 (Simonyan & Zisserman 2015) for small images: one linear layer after the convolutions."""
    channels, _, _ = image_shape(shape, "vgg", 32)
    if depth not in VGG_BLOCKS:
        raise BadOption(f"there is no VGG-{depth}; depth is one of {', '.join(map(str, VGG_BLOCKS))}.")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for block, sizes in enumerate(VGG_BLOCKS[depth], start=1):
        for index, size in enumerate(sizes, start=1):
            units = scaled(size, width)
            layers[f"conv{block}_{index}"] = nn.Conv2d(channels, units, 3, padding=1, bias=not batch_norm)
            if batch_norm:
                layers[f"norm{block}_{index}"] = nn.BatchNorm2d(units)
            layers[f"act{block}_{index}"] = nn.ReLU()
            channels = units
        layers[f"pool{block}"] = nn.MaxPool2d(2)
    layers |= {"average": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), **_drop("drop", dropout)}
    layers["head"] = nn.Linear(channels, outputs)
    network = nn.Sequential(layers)
    _he_init(network)
    return network


def _drop(name: str, p: float) -> dict[str, nn.Module]:
    return {name: nn.Dropout(p)} if check_dropout(p) else {}


def _width_after(features: nn.Module, shape: Shape) -> int:
    """Number of outputs of ``features`` for one image."""
    with torch.no_grad():
        return int(features(torch.zeros(1, *as_tuple(shape))).shape[1])


def _he_init(network: nn.Module) -> None:
    """Normal weights with variance 2 / fan-out (He et al. 2015)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


# Shared helpers


def as_tuple(shape: Shape) -> tuple[int, ...]:
    """A shape given as a number, a list or a tuple of whole numbers."""
    numbers = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if not numbers or not all(isinstance(n, (int, np.integer)) and n >= 1 for n in numbers):
        raise BadOption(f"shape={shape!r}: pass positive whole numbers, such as 784 or (1, 28, 28).")
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
        raise BadOption(f"a layer needs 1 or more units, not {channels}.")
    if width <= 0:
        raise BadOption(f"width={width} is not positive; 1 is the published network, 0.5 is half as wide.")
    return max(1, round(channels * width))


def make_activation(name: str) -> nn.Module:
    return ACTIVATIONS[one_of(name, ACTIVATIONS, "activation")]()


def check_dropout(p: float) -> float:
    if not 0 <= p < 1:
        raise BadOption(f"dropout={p} is not in [0, 1).")
    return p
