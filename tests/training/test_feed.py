"""Where the batches of a training come from: orders by seed, sizes, fingerprints."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from whence.engine.batches import Data
from whence.errors import BadData
from whence.training.examples import Examples
from whence.training.feed import ExamplesFeed, LoaderFeed, PairFeed, as_feed, fingerprint

CPU = torch.device("cpu")


def numbered(size: int) -> tuple[Tensor, Tensor]:
    return torch.arange(size, dtype=torch.float32).unsqueeze(1), torch.arange(size)


def test_a_pair_is_cut_into_batches_of_the_size_asked_for() -> None:
    """Also beyond the size that a pair is read in where its batches do not matter."""
    feed = PairFeed(Data(numbered(1500), CPU, torch.float32), 700)
    batches = list(feed.epoch(3))
    assert [len(y) for _, y in batches] == [700, 700, 100] and feed.steps == 3
    assert torch.equal(torch.cat([y for _, y in batches]).sort().values, torch.arange(1500))
    assert all(torch.equal(x[:, 0].long(), y) for x, y in batches)
    again, other = ([y for _, y in feed.epoch(seed)] for seed in (3, 4))
    assert all(torch.equal(y, z) for (_, y), z in zip(batches, again, strict=True))
    assert not torch.equal(batches[0][1], other[0])


def test_nested_inputs_are_shuffled_together() -> None:
    x, y = numbered(50)
    feed = PairFeed(Data(({"a": x, "b": x + 100}, y), CPU, torch.float32), 16)
    for inputs, targets in feed.epoch(0):
        assert torch.equal(inputs["a"][:, 0].long(), targets) and torch.equal(inputs["b"], inputs["a"] + 100)


def test_loaders_and_pairs_become_feeds_in_the_networks_type() -> None:
    network = nn.Linear(1, 2).double()
    x, y = numbered(30)
    loader = DataLoader(TensorDataset(x, y.int()), 8)
    for data, kind in (((x, y), ExamplesFeed), ((x.numpy(), y.numpy()), ExamplesFeed), (loader, LoaderFeed)):
        feed = as_feed(data, "data", network, CPU, 8)
        inputs, targets = feed.first()
        assert type(feed) is kind and feed.steps == 4
        assert inputs.dtype == torch.float64 and targets.dtype == torch.int64 and len(targets) == 8
    with pytest.raises(BadData, match="contain 30 NaN"):
        list(as_feed([(x / x[0], y)], "data", network, CPU).in_order())


def test_fingerprints_tell_data_apart_and_know_a_loader_by_its_length() -> None:
    x, y = numbered(30)
    known = [
        fingerprint(data)
        for data in ((x, y), (x + 1, y), [(x, y)], Examples(x, y), DataLoader(TensorDataset(x, y), 8), iter([(x, y)]))
    ]
    assert len(set(known)) == len(known)
    assert fingerprint((x.numpy(), np.arange(30))) == known[0]
    assert fingerprint(DataLoader(TensorDataset(x + 1, y), 8, shuffle=True)) == known[4]
