"""Plain convolutional networks: LeNet-5, AlexNet for 32 × 32 images, VGG."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from whence.errors import BadOption
from whence.zoo.networks.shapes import Shape, as_tuple, check_dropout, image_shape, make_activation, scaled

# Output channels by block; a maximum pool ends each block (Simonyan & Zisserman 2015, table 1).
VGG_BLOCKS: dict[int, tuple[tuple[int, ...], ...]] = {
    11: ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2),
    13: ((64,) * 2, (128,) * 2, (256,) * 2, (512,) * 2, (512,) * 2),
    16: ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3),
    19: ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
}


def lenet5(
    shape: Shape = (1, 28, 28),
    outputs: int = 10,
    *,
    dropout: float = 0.0,
    activation: str = "relu",
    width: float = 1.0,
) -> nn.Sequential:
    """LeNet-5 (LeCun et al. 1998) in its usual modern form: maximum pooling, ReLU, a linear head.

    Images of 28 × 28 are padded to 32 × 32; larger ones are taken as they are. ``width=0.5`` halves all
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
    """AlexNet for 32 × 32 images as Shridhar et al. (2019) use it: five convolutions, one linear layer."""
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
    """Number of values that ``features`` gives for one image."""
    with torch.no_grad():
        return int(features(torch.zeros(1, *as_tuple(shape))).shape[1])


def _he_init(network: nn.Module) -> None:
    """Normal weights with variance 2 / fan-out (He et al. 2015)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
