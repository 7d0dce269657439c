"""What the first batch did not show: other rows, other paths, other uses of a weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.errors import UnsupportedLayer
from whence.recording import layout

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
    with pytest.raises(UnsupportedLayer, match="differently than on the first batch"):
        fit(network(), batches, structure=structure)


def test_two_examples_are_looked_at_where_more_would_take_too_much(
    monkeypatch: pytest.MonkeyPatch, set_sizes: Any
) -> None:
    sizes: list[int] = []
    plain = layout.by_example

    def seen_by(seen: Any, size: int) -> list[Tensor]:
        sizes.append(size)
        return plain(seen, size)

    monkeypatch.setattr(layout, "by_example", seen_by)
    set_sizes(probes=1)
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
        with pytest.raises(UnsupportedLayer, match="differently than on the first batch"):
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


@pytest.mark.parametrize("structure", ["kron", "diag"])
@pytest.mark.parametrize("width", [3, 5])
def test_a_layer_that_a_batch_skips(structure: str, width: int) -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(width, width), nn.Linear(width, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.inner(x).tanh() if bool((x[:, 0] > 0).all()) else x)

    torch.manual_seed(0)
    model = Skips().double()
    x, y = torch.rand(8, width, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    options = {"likelihood": "classification", "structure": structure}
    once = whence.laplace(model, [(x, y)], **options).curvature.structures[0]
    more = whence.laplace(model, [(x, y), (-x, y)], **options).curvature.structures[0]
    for key, value in once.tensors().items():
        assert_close(more.tensors()[key], value, 1e-12)


def test_an_embedding_that_a_batch_leaves_out() -> None:
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

        def forward(self, v: Tensor, i: Tensor | None = None) -> Tensor:
            return self.head(v if i is None else v + self.table(i).sum(1))

    torch.manual_seed(0)
    model, v = Optional().double(), torch.randn(5, 4, dtype=torch.float64)
    i, y = torch.randint(7, (5, 2)), torch.tensor([0, 1, 2, 1, 0])
    whole = {"v": v, "i": i, "labels": y}
    posterior = whence.laplace(model, [whole, {"v": v, "labels": y}], likelihood="classification")
    assert posterior.predict({"v": v}).probs.shape == (5, 3)
    once = whence.laplace(model, [whole], likelihood="classification")
    table = [b.name for b in posterior.blocks].index("table")
    first, second = (p.curvature.structures[table].values for p in (once, posterior))
    assert_close(second, first, 1e-12)


class Switched(nn.Module):
    """Uses one layer or the other, depending on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.left(x) if float(x[0, 0]) > 0 else self.right(x)))


@pytest.mark.filterwarnings("ignore::whence.errors.Notice")
@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "full"])
def test_a_layer_that_some_batches_do_not_use(structure: str) -> None:
    torch.manual_seed(0)
    model = Switched()
    x = torch.randn(12, 3)
    x[:6, 0], x[6:, 0] = 1.0, 1.0
    batches = [(x[:6], torch.arange(6) % 2), (x[6:], torch.arange(6) % 2)]
    posterior = whence.laplace(model, batches, likelihood="classification", structure=structure)
    assert posterior.predict(x).probs.shape == (12, 2)
    other = x.clone()
    other[:, 0] = -1.0
    assert posterior.predict(other).probs.shape == (12, 2)


class Dropped(nn.Module):
    """Drops the dimension of the examples where there is one, and adds a table of tokens or a vector."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4).double(), nn.Linear(4, 3).double()
        self.shift = nn.Parameter(torch.randn(*shape, 4, dtype=DOUBLE))

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        if len(x) == 1:
            h = h[0]
        if self.shift.dim() == 2:
            h = h.unsqueeze(-2).expand(*h.shape[:-1], 5, 4).unsqueeze(-3) + self.shift.unsqueeze(-2)
            h = h.mean((-3, -2))
        else:
            h = h + self.shift
        return self.head(h.tanh().reshape(len(x), 4))


@pytest.mark.parametrize("structure", ["diag", "kron"])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_an_example_alone_whose_dimension_is_dropped(shape: tuple[int, ...], structure: str) -> None:
    torch.manual_seed(0)
    model, x, y = Dropped(*shape), torch.randn(4, 4, dtype=DOUBLE), torch.tensor([0, 1, 2, 0])
    options = {"likelihood": "classification", "structure": structure, "prior_precision": 1.0}
    together = whence.laplace(model, (x, y), **options)
    apart = whence.laplace(model, [(x[:3], y[:3]), (x[3:], y[3:])], **options)
    for name, value in together.variance().items():
        assert_close(apart.variance()[name], value, 1e-12)
    assert_close(apart.predict(x[3:]).logit_cov, together.predict(x).logit_cov[3:], 1e-10)


class Otherwise(Two):
    """Computes something else for an example alone."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            return self.head((x @ (self.a.weight.mT * 2) / 2 + self.a.bias).tanh())
        return self.head(self.a(x).tanh())


def test_an_example_alone_that_uses_a_weight_otherwise_is_refused() -> None:
    torch.manual_seed(0)
    model, x, y = Otherwise(), torch.randn(4, 4, dtype=DOUBLE), torch.tensor([0, 1, 2, 0])
    posterior = whence.laplace(model, [(x, y)], likelihood="classification", layers=["a"])
    with pytest.raises(UnsupportedLayer, match=r"uses 'a\.(weight|bias)' differently"):
        posterior.predict(x[:1])
