"""Where the batches of a training come from."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.batches import Data, Inputs, check_finite, from_numpy, is_pair, split_batch, to_device
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

    def first(self) -> tuple[Inputs, Tensor] | None:
        """The first batch as it lies, neither shuffled nor augmented by us; None of no data."""
        if isinstance(self.source, Examples):
            return self.source.take(min(self.source.size, self.batch_size)).tensors() if self.source.size else None
        return next(batches(self.source, self.device), None)

    def fingerprints(self) -> list[str]:
        """Of the training and validation numbers, where they are at hand."""
        return [part.fingerprint() for part in (self.source, self.validation) if isinstance(part, Examples)]


def feed_for(
    data: Any, validation: Any, settings: Settings, network: nn.Module, device: torch.device, explicit: Container[str]
) -> Feed:
    """What ``train`` was given, as a feed on the device; options that it could not heed are refused."""
    dtype = dtype_of(network)
    if isinstance(data, DataSet):
        if data.train is None:
            raise BadData(f"{data.description.name} has no training part here.")
        source: Examples | Iterable[Any] = data.train.with_(dtype=dtype)
        task = data.task
        validation = data.validation if validation is None else validation
    else:
        source = as_examples(data, "data", dtype)
        task = task_of(source)
    if isinstance(source, Examples):
        augment = source.augment if settings.augment is None else settings.augment or None
        source = source.to(device).with_(augment=augment)
        check_finite(source.raw, "data: the inputs", 0)
        check_finite(source.targets, "data: the targets", 0)
    else:
        plain = Settings()
        for option in ("batch_size", "augment"):
            if option in explicit or getattr(settings, option) != getattr(plain, option):
                raise BadOption(f"{option} is the loader's own affair; to set it here, pass a pair of tensors.")
    held = None if validation is None else as_examples(validation, "validation", dtype)
    held = held.to(device) if isinstance(held, Examples) else held
    return Feed(source, held, task, device, settings.batch_size)


def as_examples(data: Any, name: str, dtype: torch.dtype) -> Examples | Iterable[Any]:
    """A pair of tensors or arrays as :class:`Examples`; loaders, and pairs of nested inputs, as batches."""
    if isinstance(data, Examples):
        return data.with_(dtype=dtype)
    if isinstance(data, str):
        raise BadData(f"{name} is the name {data!r}; pass whence.zoo.load({data!r}).")
    data = from_numpy(data)
    if is_pair(data) and isinstance(data[0], Tensor):
        x, y = data
        if x.dtype == torch.uint8:
            raise BadData(
                f"{name}: inputs of whole bytes (uint8) could mean many things; pass x.float() / 255, or "
                "whence.zoo.Examples(x, y) for images from 0 to 255."
            )
        if len(y) == 0:
            raise BadData(f"{name} is empty: it holds no example.")
        return Examples(x, y if y.is_floating_point() else y.long(), dtype=dtype)
    checked = Data(data, torch.device("cpu"), torch.float32, name)  # refuses what is no data
    checked.require_passes(2, "training or evaluation")
    return [data] if is_pair(data) else checked.source


def batches(source: Examples | Iterable[Any], device: torch.device) -> Iterator[tuple[Inputs, Tensor]]:
    """(inputs, targets) on the device; whole numbers as int64."""
    for index, batch in enumerate(source):
        inputs, targets = split_batch(batch, index)
        y = torch.as_tensor(targets).to(device)
        yield to_device(inputs, device), y if y.is_floating_point() else y.long()


def outputs_of(network: nn.Module, inputs: Inputs) -> Tensor:
    """What the network gives, called in the natural way."""
    if isinstance(inputs, Tensor):
        return output_tensor(network(inputs))
    args, kwargs = arguments(inputs)
    return output_tensor(network(*args, **kwargs))


def device_of(network: nn.Module) -> torch.device:
    return _first(network).device


def dtype_of(network: nn.Module) -> torch.dtype:
    return next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)


def _first(network: nn.Module) -> Tensor:
    first = next(network.parameters(), None)
    if first is None:
        raise BadOption("the network has no parameter: there is nothing to train or to evaluate.")
    return first


def task_of(source: Examples | Iterable[Any]) -> str:
    """By the targets: numbers are regression, whole numbers classes."""
    if isinstance(source, Examples):
        targets = source.targets
    else:
        targets = next(batches(source, torch.device("cpu")), (None, torch.zeros(0)))[1]
    return "regression" if targets.is_floating_point() else "classification"
