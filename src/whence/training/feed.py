"""Batches of a training. An epoch is determined by its seed, so there is no random state to save."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from whence.engine.batches import Data, Inputs, as_source, from_numpy, is_pair, take, tensors_in
from whence.engine.files import digest
from whence.engine.sources import OfDataset
from whence.errors import BadData, BadOption
from whence.functional import arguments, source_for
from whence.outputs import output_tensor
from whence.training.examples import Examples

EVALUATED = 2048  # batch size for evaluation


class Feed(ABC):
    """(inputs, targets) on one device."""

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def steps(self) -> int | None:
        """Batches per epoch, if known."""

    @abstractmethod
    def epoch(self, seed: int) -> Iterator[tuple[Inputs, Tensor]]:
        """Batches of one pass, shuffled and augmented unless a loader does it."""

    @abstractmethod
    def in_order(self) -> Iterator[tuple[Inputs, Tensor]]:
        """One pass, neither shuffled nor augmented by us."""

    def first(self) -> tuple[Inputs, Tensor]:
        """The first batch."""
        return next(self.in_order())

    @abstractmethod
    def fingerprint(self) -> str:
        """See :func:`fingerprint`."""


@dataclass(frozen=True)
class ExamplesFeed(Feed):
    """Batches of :class:`Examples`."""

    examples: Examples
    batch_size: int

    @property
    def device(self) -> torch.device:
        return self.examples.device

    @property
    def steps(self) -> int:
        return self.examples.size // self.batch_size if self._drop_last else -(-self.examples.size // self.batch_size)

    @property
    def _drop_last(self) -> bool:
        """Drop a last batch of one example, on which batch normalisation cannot be trained."""
        return self.examples.size % self.batch_size == 1 and self.examples.size > 1 and self.batch_size > 1

    def epoch(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator(self.device).manual_seed(seed)
        return self.examples.epoch(self.batch_size, generator=generator, drop_last=self._drop_last)

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.examples.with_(batch_size=EVALUATED))

    def first(self) -> tuple[Tensor, Tensor]:
        return self.examples.take(min(self.examples.size, self.batch_size)).tensors()

    def fingerprint(self) -> str:
        return self.examples.fingerprint()


@dataclass(frozen=True)
class LoaderFeed(Feed):
    """The batches of a loader, in its order."""

    data: Data

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def steps(self) -> int | None:
        return self.data.length()

    def epoch(self, seed: int) -> Iterator[tuple[Inputs, Tensor]]:
        return self.in_order()

    def in_order(self) -> Iterator[tuple[Inputs, Tensor]]:
        for batch in self.data:
            yield batch.inputs, batch.targets if batch.targets.is_floating_point() else batch.targets.long()

    def fingerprint(self) -> str:
        return fingerprint(self.data.source)


@dataclass(frozen=True)
class PairFeed(LoaderFeed):
    """Inputs of any kind and a tensor of targets, split into batches in a new order for each epoch."""

    batch_size: int

    @property
    def steps(self) -> int:
        return -(-len(self.data.source[1]) // self.batch_size)

    def epoch(self, seed: int) -> Iterator[tuple[Inputs, Tensor]]:
        inputs, targets = self.data.source
        order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
        batches = ((take(inputs, rows), targets[rows]) for rows in order.split(self.batch_size))
        whole = self.data
        return LoaderFeed(Data(batches, whole.device, whole.dtype, whole.name, whole.rule)).in_order()


@dataclass(frozen=True)
class DatasetFeed(LoaderFeed):
    """A data set without a loader, read in a new order for each epoch."""

    batch_size: int

    @property
    def steps(self) -> int:
        return -(-len(self.data.source.dataset) // self.batch_size)

    def epoch(self, seed: int) -> Iterator[tuple[Inputs, Tensor]]:
        given, whole = self.data.source, self.data
        order = torch.randperm(len(given.dataset), generator=torch.Generator().manual_seed(seed)).tolist()
        batches = DataLoader(given.dataset, self.batch_size, sampler=order, collate_fn=given.collate_fn)
        return LoaderFeed(Data(batches, whole.device, whole.dtype, whole.name, whole.rule)).in_order()


def loader_feed(data: Data, batch_size: int) -> LoaderFeed:
    """The feed for checked data: those without a loader are split into shuffled batches."""
    if is_pair(data.source):
        return PairFeed(data, batch_size)
    return DatasetFeed(data, batch_size) if isinstance(data.source, OfDataset) else LoaderFeed(data)


def fingerprint(data: Any) -> str:
    """A digest of examples, tensors or a list of batches; of a loader, whose order may change, its kind and length."""
    if isinstance(data, Examples):
        return data.fingerprint()
    data = as_source(data)
    if is_pair(data) or isinstance(data, (list, tuple)):
        kind = "pair" if is_pair(data) else "batches"  # we split a pair into batches
        return digest(tensors_in([from_numpy(item) for item in data]), kind)
    return f"{type(data).__name__} of {len(data) if hasattr(data, '__len__') else 'unknown'} batches"


def as_feed(data: Any, name: str, network: nn.Module, device: torch.device, batch_size: int = EVALUATED) -> Feed:
    """A feed for the data of ``train`` and ``evaluate``: examples, pairs or loaders."""
    dtype = next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)
    if isinstance(data, str):
        raise BadData(f"{name} is the name {data!r}; pass whence.zoo.load({data!r}).")
    data = data if isinstance(data, Examples) else source_for(network, data, name)
    if is_pair(data) and isinstance(data[0], Tensor):
        data = _examples(data[0], data[1], name)
    if isinstance(data, Examples):
        if data.size == 0:
            raise BadData(f"{name} is empty: it contains no example.")
        return ExamplesFeed(data.with_(dtype=dtype).to(device), batch_size)
    source = Data([data] if is_pair(data) else data, device, dtype, name)
    source.require_passes(2, "training or evaluation")
    return loader_feed(source, batch_size)


def _examples(inputs: Tensor, targets: Tensor, name: str) -> Examples:
    if inputs.dtype == torch.uint8:
        raise BadData(
            f"{name}: uint8 inputs are ambiguous; pass x.float() / 255, or "
            "whence.zoo.Examples(x, y) for images from 0 to 255."
        )
    return Examples(inputs, targets if targets.is_floating_point() else targets.long())


def outputs_of(network: nn.Module, inputs: Inputs) -> Tensor:
    """Raw outputs for the inputs of a feed."""
    args, kwargs = arguments(inputs)
    return output_tensor(network(*args, **kwargs), (args, kwargs))


def device_of(network: nn.Module) -> torch.device:
    first = next(network.parameters(), None)
    if first is None:
        raise BadOption("the network has no parameters, so there is nothing to train or evaluate.")
    return first.device
