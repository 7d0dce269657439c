"""Batches as users have them: tuples, mappings, loaders that fill their buffers again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.engine import batches
from whence.engine.batches import Data
from whence.errors import BadData


def network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(4, 3).double(), torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3


def test_a_tuple_of_batches_is_a_loader() -> None:
    model, x, y = network()
    posterior = whence.laplace(model, (x, y), likelihood="classification")
    for cut in (6, 5):
        found = posterior.predict(((x[:cut], y[:cut]), (x[cut:], y[cut:])))
        assert_close(found.probs, posterior.predict(x).probs, 1e-12)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3).double()

    def forward(self, pair: tuple[Tensor, Tensor], scale: Tensor) -> Tensor:
        return self.head(torch.cat(pair, 1) * scale)


def test_inputs_in_memory_may_be_nested() -> None:
    _, x, y = network()
    inputs = ((x[:, :1], x[:, 1:]), x[:, :1].exp())
    posterior = whence.laplace(Nested(), (inputs, y), likelihood="classification")
    whole = posterior.predict(inputs).probs
    assert_close(posterior.predict([(inputs, y)]).probs, whole, 1e-12)
    assert_close(posterior.predict(((x[:1, :1], x[:1, 1:]), x[:1, :1].exp())).probs, whole[:1], 1e-12)


class OnItsWay:
    """Counts that a GPU would be sending: what the lookahead waits for, on a CPU."""

    is_cuda = True

    def __init__(self, counted: Any) -> None:
        self.host = getattr(counted, "host", counted)
        self.event = self

    def synchronize(self) -> None:
        pass


def looking_ahead(source: Any, monkeypatch: pytest.MonkeyPatch) -> Data:
    monkeypatch.setattr(batches, "_Fetched", OnItsWay)
    data = Data(source, torch.device("cpu"), torch.float32)
    data.counts = lambda y: OnItsWay(y >= 0)  # type: ignore[assignment, return-value]
    return data


def test_a_loader_may_fill_its_buffers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.zeros(2, 1), torch.zeros(2, dtype=torch.long)

    def loader() -> Any:
        for k in range(3):
            x.fill_(k)
            yield x, y

    assert [float(b.inputs[0, 0]) for b in looking_ahead(loader(), monkeypatch)] == [0.0, 1.0, 2.0]


def test_a_batch_is_given_out_before_the_next_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    source = [(torch.ones(2, 1), torch.zeros(2, dtype=torch.long)), "no batch"]
    given = iter(looking_ahead(source, monkeypatch))
    assert float(next(given).inputs[0, 0]) == 1.0
    with pytest.raises(BadData, match="batch 1"):
        next(given)


def mlp(inputs: int = 3, outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))


def classes(count: int = 24) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3), torch.arange(count) % 2


class Answer:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class HuggingFaceLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, values: Tensor) -> Answer:
        return Answer(self.inner(values))


def test_mappings_with_labels_and_objects_with_logits() -> None:
    x, y = classes()
    batch = {"values": x, "labels": y}
    posterior = whence.laplace(HuggingFaceLike(), [batch], likelihood="classification")
    assert_close(posterior.predict(batch).probs, posterior.predict({"values": x}).probs)
    assert_close(posterior.predict([batch]).probs, posterior.predict(batch).probs)
    with pytest.raises(whence.errors.NotDefined, match="one tensor"):
        posterior.as_module()
    alone = whence.laplace(HuggingFaceLike(), (x, y), likelihood="classification")
    assert alone.as_module(3)(x).mean.shape == (24, 2)
    assert_close(posterior.predict((x, y)).probs, posterior.predict(batch).probs)
