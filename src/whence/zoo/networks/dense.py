"""The perceptron and the multilayer perceptron."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from whence.errors import BadOption
from whence.zoo.networks.shapes import Shape, check_dropout, features_of, make_activation, scaled


def perceptron(shape: Shape = 784, outputs: int = 10) -> nn.Sequential:
    """One linear layer."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(features_of(shape), outputs)))


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
    features = features_of(shape)
    if isinstance(hidden, int):
        raise BadOption(f"hidden={hidden}: the units of each hidden layer are expected, such as ({hidden},).")
    for index, units in enumerate(hidden, start=1):
        layers |= _hidden(index, features, scaled(units, width), activation, check_dropout(dropout))
        features = scaled(units, width)
    layers["head"] = nn.Linear(features, outputs)
    return nn.Sequential(layers)


def _hidden(index: int, features: int, units: int, name: str, dropout: float) -> dict[str, nn.Module]:
    layers = {f"hidden{index}": nn.Linear(features, units), f"act{index}": make_activation(name)}
    return layers | ({f"drop{index}": nn.Dropout(dropout)} if dropout else {})
