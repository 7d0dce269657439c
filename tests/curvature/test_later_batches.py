"""What the first batch did not show: other rows, other paths, other uses of a weight."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.curvature import layout
from whence.errors import UnsupportedLayer

DOUBLE = torch.float64


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()


class Sorts(Two):
    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.head(self.a(x[order]).tanh())[order.argsort()]


class Tokens(Two):
    """A layer that sees only what is no padding."""

    def forward(self, x: Tensor) -> Tensor:
        there = x[..., 0] > -1
        z = x.new_zeros(*there.shape, 5)
        z[there] = self.a(x[there]).tanh()
        return self.head(z.mean(1))


class Routed(Two):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Linear(4, 5).double()

    def forward(self, x: Tensor) -> Tensor:
        left = x[:, 0] > 0
        z = x.new_zeros(len(x), 5)
        if left.any():
            z[left] = self.a(x[left])
        if not left.all():
            z[~left] = self.b(x[~left])
        return self.head(z.tanh())


class Frames(Two):
    """Positions before examples, in one dimension."""

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        return self.head(self.a(x.transpose(0, 1).reshape(t * n, d)).tanh().reshape(t, n, 5).mean(0))


class Twice(Two):
    """A weight that some inputs use once more."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.a(x)
        if (x[:, 0] > 0).any():
            z = torch.where(x[:, :1] > 0, z * self.a.weight.sum(), z)
        return self.head(z.tanh())


class Loop(Two):
    """Layers that are called on single vectors."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.head(self.a(row).tanh()) for row in x])


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))


def labels(size: int) -> Tensor:
    return torch.arange(size) % 3


def fit(network: nn.Module, batches: list[Tensor], **options: Any) -> whence.Laplace:
    data = [(x, labels(len(x))) for x in batches]
    return whence.laplace(network, data, likelihood="classification", progress=False, **options)


X = draw(20, 4)
FULL = draw(4, 4, 4).abs()
PADDED = FULL.clone()
PADDED[:2, 2:, 0] = -2  # twelve rows for four examples
ODD = PADDED.clone()
ODD[1, 3, 0] = 0.0  # thirteen
NEGATIVE = torch.cat([-X[:, :1].abs(), X[:, 1:]], 1)


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
@pytest.mark.parametrize(
    ("network", "batches"),
    [
        (Sorts, [X[X[:, 0].argsort()], X]),
        (Tokens, [FULL, PADDED]),
        (Tokens, [FULL, ODD]),
        (Routed, [X[X[:, 0] > 0], X]),
    ],
)
def test_a_later_batch_that_does_otherwise_is_refused(
    network: type[nn.Module], batches: list[Tensor], structure: str
) -> None:
    with pytest.raises(UnsupportedLayer, match="in a way that it did not on the first batch"):
        fit(network(), batches, structure=structure)


def test_two_examples_are_looked_at_where_more_would_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    plain = layout.by_example

    def seen_by(seen: Any, size: int) -> list[Tensor]:
        sizes.append(size)
        return plain(seen, size)

    monkeypatch.setattr(layout, "by_example", seen_by)
    monkeypatch.setattr(layout, "PROBED", 1)
    falling = X[X[:, 0].argsort(descending=True)]
    with pytest.raises(UnsupportedLayer, match="belong to other examples"):
        fit(Sorts(), [X[X[:, 0].argsort()], falling])
    assert sizes == [2, 2]


@pytest.mark.parametrize(
    ("network", "batches", "x"),
    [
        (Sorts, [X[i : i + 1] for i in range(20)], X),
        (Tokens, [FULL], PADDED),
        (Tokens, [FULL], ODD),
        (Twice, [NEGATIVE], X),
    ],
)
def test_inputs_that_do_otherwise_are_refused(network: type[nn.Module], batches: list[Tensor], x: Tensor) -> None:
    posterior = fit(network(), batches)
    for ask in (posterior.predict, posterior.predict, posterior.where):  # every time
        with pytest.raises(UnsupportedLayer, match="in a way that it did not on the first batch"):
            ask(x)


@pytest.mark.parametrize("structure", ["kron", "diag", "block", "full", "lowrank"])
def test_more_positions_than_the_first_batch_had(structure: str) -> None:
    network, x = Frames(), draw(6, 4, 4)
    one, other = (fit(network, batches, structure=structure) for batches in ([x[:, :1], x], [x, x[:, :1]]))
    assert_close(one.covariance(), other.covariance(), 1e-9)
    assert_close(one.predict(x).logit_cov, other.predict(x).logit_cov, 1e-9)


@pytest.mark.parametrize("network", [Sorts, Routed, Twice, Loop])
def test_with_a_telling_first_batch_all_is_well(network: type[nn.Module]) -> None:
    """Rows that cannot be followed get an exact diagonal, example by example."""
    model = network()
    posterior = fit(model, [X[:12], X[12:]], structure="diag")
    together = posterior.predict(X).logit_cov
    alone = torch.cat([posterior.predict(x.unsqueeze(0)).logit_cov for x in X])
    assert_close(together, alone, 1e-9)


class Mean(Two):
    def forward(self, x: Tensor) -> Tensor:
        z = self.a(x).tanh()
        return self.head(z - z.mean(0))


class Dropping(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.a(x).tanh(), 0.5))


def test_examples_that_see_each_other_are_refused_and_chance_is_said() -> None:
    with pytest.raises(whence.errors.UnsupportedLayer, match="so that examples see each other"):
        fit(Mean(), [X], structure="diag")
    with pytest.warns(whence.errors.Notice, match="something is random in evaluation mode"):
        fit(Dropping(), [X], structure="diag")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rounding_is_not_taken_for_that(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.BatchNorm1d(400), nn.Dropout(), nn.Linear(400, 3))
    x = torch.randn(64, 300).to(dtype)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        whence.laplace(network.to(dtype), (x, labels(64)), likelihood="classification", layers="last", progress=False)
    assert not [w for w in seen if "random" in str(w.message)]
