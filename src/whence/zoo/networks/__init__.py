"""The networks of the papers and the demo: ``nn.Module``s, by name or by function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from whence.errors import one_of
from whence.zoo.networks.sequential import Shape, alexnet, lenet5, mlp, perceptron, vgg
from whence.zoo.networks.transformer import Transformer, transformer
from whence.zoo.networks.wide_resnet import WideResNet, wide_resnet

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "perceptron": perceptron,
    "mlp": mlp,
    "lenet5": lenet5,
    "alexnet": alexnet,
    "vgg": vgg,
    "wide-resnet": wide_resnet,
    "transformer": transformer,
}

__all__ = [
    "NETWORKS", "Shape", "Transformer", "WideResNet", "alexnet", "lenet5", "mlp", "network", "options_of", "perceptron",
    "transformer", "vgg", "wide_resnet",
]  # fmt: skip


def network(name: str, shape: Shape, outputs: int, **options: Any) -> nn.Module:
    """The network ``name`` for inputs of ``shape`` and ``outputs`` outputs; ``options`` are those of its function."""
    build = NETWORKS[one_of(name, NETWORKS, "network")]
    for option in options:
        one_of(option, options_of(name), f"option of {name}")
    return build(shape, outputs, **options)


def options_of(name: str) -> list[str]:
    """The options of this network besides shape and outputs."""
    return [option for option in inspect.signature(NETWORKS[name]).parameters if option not in ("shape", "outputs")]
