"""Data that a reference names, looked at before the long work starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from whence import batches
from whence.cli import references
from whence.errors import BadData, WhenceError
from whence.functional import Network
from whence.likelihoods import Categorical, Likelihood

EXPECTED = "a DataLoader, a Dataset, a pair of tensors or a list of (inputs, targets) batches"
BARE = "a tensor of inputs, a DataLoader, a Dataset, a pair of tensors or a list of batches"


@dataclass(frozen=True)
class Named:
    """Data, and how the user calls them."""

    option: str  # "--train"
    reference: str
    source: Any

    def __str__(self) -> str:
        return f"{self.option} {self.reference}"


def read(reference: str, option: str, batch_size: int, bare: bool = False) -> Named:
    """What a reference names, as whence reads it; ``bare`` allows inputs without targets."""

    def wanted(value: Any) -> bool:
        if isinstance(value, Tensor):
            return bare
        loader = isinstance(value, (Dataset, Iterable)) and not isinstance(value, (str, bytes, type))
        return loader and not isinstance(value, nn.Module)

    source = references.made(reference, option, wanted, BARE if bare else EXPECTED)
    if isinstance(source, Dataset):
        source = DataLoader(source, batch_size=batch_size)
    named = Named(option, reference, batches.from_numpy(source))
    if not isinstance(source, Tensor) and not batches.is_pair(named.source) and iter(source) is source:
        raise BadData(
            f"{named}: expected data that can be read again, but {references.kind(source)} can be read only once; "
            "return a DataLoader, a list of batches or a pair of tensors."
        )
    return named


def first_batch(data: Named, bare: bool = False) -> tuple[Any, Any]:
    """Inputs and targets (None where there are none) of the first batch."""
    source = data.source
    if isinstance(source, Tensor):
        return source[: batches.PAIR_BATCH], None
    if batches.is_pair(source):
        if len(source[1]) != batches.size_of(source[0]):
            raise BadData(f"{data}: {batches.size_of(source[0])} inputs but {len(source[1])} targets.")
        piece = slice(0, batches.PAIR_BATCH)
        return batches.take(source[0], piece), source[1][piece]
    try:
        batch = next(iter(source), None)
    except WhenceError:
        raise
    except Exception as error:
        raise BadData(f"{data}: reading its first batch failed: {type(error).__name__}: {error}") from error
    if batch is None:
        raise BadData(f"{data} is empty: it gave no batch.")
    return _parts(data, batch, bare)


def _parts(data: Named, batch: Any, bare: bool) -> tuple[Any, Any]:
    """Inputs and targets of a batch, or the line that says what it is instead."""
    targets: Any = None
    if bare and not isinstance(batch, str):
        inputs = batches.inputs_of(batch)
    else:
        keys = isinstance(batch, Mapping)
        if not keys and not (isinstance(batch, (tuple, list)) and len(batch) == 2):
            raise BadData(f"{data}: expected batches (inputs, targets), but it yields {_what(batch)}.")
        try:
            inputs, targets = batches.split_batch(batch, 0)
        except BadData as error:
            raise BadData(f"{data}: {error}") from error
    if not any(True for _ in batches.tensors_in(inputs)):
        raise BadData(f"{data}: expected inputs that are tensors, but it yields {_what(inputs)}.")
    if targets is not None and not isinstance(targets, Tensor):
        batches.as_targets(targets, str(data), 0)
    return inputs, targets


def _what(value: Any) -> str:
    """In words, with a tensor's shape or what a collection holds."""
    if isinstance(value, Tensor):
        return f"one tensor of shape {list(value.shape)}"
    if isinstance(value, (tuple, list)) and value:
        return f"{references.kind(value)} ({', '.join(type(v).__name__ for v in value[:4])}{', …' * (len(value) > 4)})"
    return references.kind(value)


def check(model: nn.Module, sets: list[Named], likelihood: Likelihood | None, device: str | None) -> int | None:
    """Run the first batch of each set through the network; returns its number of outputs.

    The sets must give what the network takes, with outputs of one shape; the first set is the measure of the others.
    """
    network = Network.snapshot(model)
    network = network if device is None else network.to(device)
    usual: tuple[str, str, tuple[int, ...]] | None = None
    for data in sets:
        inputs, targets = first_batch(data, bare=data.option == "--ood")
        try:
            batches.check_finite(inputs, f"{data}: the inputs", 0)
            outputs = _outputs(network, inputs)
            if targets is not None and likelihood is not None and data.option != "--ood":
                likelihood.check(outputs, batches.as_targets(targets, str(data), 0).to(network.device), 0)
        except WhenceError as error:
            raise BadData(f"{data}: {str(error).removeprefix(f'{data}: ')}") from error
        except Exception as error:
            raise BadData(_refused(data, inputs, error, network.module, usual)) from error
        shape = tuple(outputs.shape[1:])
        if usual is not None and shape != usual[2]:
            raise BadData(
                f"{data}: expected inputs of shape {usual[1]} as from {usual[0]}, but got {_shape(inputs)}, for which "
                f"the network gives outputs of shape {list(shape)} instead of {list(usual[2])}."
            )
        usual = usual or (data.option, _shape(inputs), shape)
    return None if usual is None or not usual[2] else usual[2][0 if isinstance(likelihood, Categorical) else -1]


@torch.no_grad()
def _outputs(network: Network, inputs: Any) -> Tensor:
    return network(batches.to_device(inputs, network.device, network.dtype))


def _shape(inputs: Any) -> str:
    """Of one example, for people: [1, 8, 8]."""
    shapes = [str(list(t.shape[1:])) for t in batches.tensors_in(inputs)]
    return shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"


def _refused(
    data: Named, inputs: Any, error: Exception, module: nn.Module, usual: tuple[str, str, tuple[int, ...]] | None
) -> str:
    """What was expected and what came, where the network does not take the inputs."""
    said = f"the network fails on them with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if usual is not None:
        return f"{data}: expected inputs of shape {usual[1]} as from {usual[0]}, but got {_shape(inputs)}; {said}"
    return f"{data}: expected {_taken(module)}, but got inputs of shape {_shape(inputs)}; {said}"


def _taken(module: nn.Module) -> str:
    """What the layer that is registered first takes."""
    for name, part in module.named_modules():
        where = f"the first layer, {name or 'the network'} ({type(part).__name__}),"
        if isinstance(getattr(part, "in_features", None), int):
            return f"inputs that end in {part.in_features} features for {where}"
        if isinstance(getattr(part, "in_channels", None), int):
            return f"inputs with {part.in_channels} channels for {where}"
        if isinstance(part, nn.Embedding):
            return f"whole numbers below {part.num_embeddings} for {where}"
    return "inputs that the network takes"
