"""Where the batches of a training come from."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.batches import Data, Inputs, from_numpy, is_pair, split_batch, to_device
from whence.errors import BadData, BadOption
from whence.functional import arguments, output_tensor
from whence.zoo.data import DataSet, Examples
from whence.zoo.settings import Settings


@dataclass(frozen=True)
class Feed:
    """Training batches on one device, and the validation data beside them."""

    source: Examples | Iterable[Any]
    validation: Examples | Iterable[Any] | None
    task: str
    device: torch.device
    batch_size: int

    @property
    def images(self) -> bool:
        return isinstance(self.source, Examples) and self.source.raw.dim() == 4

    @property
    def steps(self) -> int | None:
        """Batches of one epoch, where they can be counted."""
        if isinstance(self.source, Examples):
            return self.source.size // self.batch_size if self._drop_last else -(-self.source.size // self.batch_size)
        return len(self.source) if isinstance(self.source, Sized) else None

    @property
    def _drop_last(self) -> bool:
        """A last batch of one example is left out: batch normalisation cannot be trained on it."""
        assert isinstance(self.source, Examples)
        return self.source.size % self.batch_size == 1 and self.source.size > 1 and self.batch_size > 1

    def epoch(self, seed: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Shuffled, augmented batches of one pass."""
        if isinstance(self.source, Examples):
            generator = torch.Generator(self.device).manual_seed(seed)
            yield from self.source.epoch(self.batch_size, generator=generator, drop_last=self._drop_last)
        else:
            yield from batches(self.source, self.device)


def feed_for(data: Any, validation: Any, settings: Settings, device: torch.device, explicit: Container[str]) -> Feed:
    """What ``train`` was given, as a feed on the device; options that it could not heed are refused."""
    if isinstance(data, DataSet):
        if data.train is None:
            raise BadData(f"{data.description.name} has no training part here.")
        source: Examples | Iterable[Any] = data.train
        task = data.task
        validation = data.validation if validation is None else validation
    else:
        source = as_examples(data, "data")
        task = _task(source)
    if isinstance(source, Examples):
        source = source.to(device).with_(augment=settings.augment or source.augment)
    else:
        for option in ("batch_size", "augment"):
            if option in explicit:
                raise BadOption(
                    f"{option} is the loader's own affair; pass a pair of tensors or Examples to set it here."
                )
    held = None if validation is None else as_examples(validation, "validation")
    held = held.to(device) if isinstance(held, Examples) else held
    return Feed(source, held, task, device, settings.batch_size)


def as_examples(data: Any, name: str) -> Examples | Iterable[Any]:
    """A pair of tensors or arrays as :class:`Examples`; loaders, and pairs of nested inputs, as batches."""
    if isinstance(data, Examples):
        return data
    data = from_numpy(data)
    if is_pair(data) and isinstance(data[0], Tensor):
        return Examples(data[0], data[1])
    checked = Data(data, torch.device("cpu"), torch.float32, name)  # refuses what is no data
    return [data] if is_pair(data) else checked.source


def batches(source: Examples | Iterable[Any], device: torch.device) -> Iterator[tuple[Inputs, Tensor]]:
    """(inputs, targets) on the device."""
    for index, batch in enumerate(source):
        inputs, targets = split_batch(batch, index)
        yield to_device(inputs, device), torch.as_tensor(targets).to(device)


def outputs_of(network: nn.Module, inputs: Inputs) -> Tensor:
    """What the network gives, called in the natural way."""
    if isinstance(inputs, Tensor):
        return output_tensor(network(inputs))
    args, kwargs = arguments(inputs)
    return output_tensor(network(*args, **kwargs))


def _task(source: Examples | Iterable[Any]) -> str:
    if isinstance(source, Examples):
        targets = source.targets
    else:
        targets = next(batches(source, torch.device("cpu")), (None, torch.zeros(0)))[1]
    return "regression" if targets.is_floating_point() else "classification"
