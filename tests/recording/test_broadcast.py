"""Parameters that are added to every example: position tables, biases of one's own, in batches of any size."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.errors import Notice


class Added(nn.Module):
    """A parameter that is added to every example."""

    def __init__(self, shape: tuple[int, ...], conv: bool) -> None:
        super().__init__()
        self.p = nn.Parameter(0.3 * torch.randn(shape))
        self.first = nn.Conv2d(2, 3, 1) if conv else nn.Linear(2, 3)
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last((self.first(x) + self.p).tanh().flatten(1))


@pytest.mark.parametrize(
    ("shape", "conv"),
    [((1, 4, 3), False), ((1, 1, 3), False), ((4, 3), False), ((1, 3, 1, 1), True), ((3, 1, 1), True)],
)
def test_added_parameters_in_batches_of_one(shape: tuple[int, ...], conv: bool) -> None:
    torch.manual_seed(0)
    model = Added(shape, conv).double()
    x = torch.randn(6, 2, 2, 2) if conv else torch.randn(6, 4, 2)
    x, y = x.double(), torch.tensor([0, 1, 2, 2, 1, 0])

    def fit(sizes: list[int]) -> whence.Laplace:
        data = list(zip(x.split(sizes), y.split(sizes), strict=True))
        return whence.laplace(model, data, likelihood="classification", structure="diag")

    whole, cut = fit([6]), fit([3, 1, 1, 1])
    assert_close(cut.covariance(), whole.covariance(), 1e-10)
    assert_close(whole.predict(x[:1]).logit_cov, whole.predict(x).logit_cov[:1], 1e-10)


def quietly(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(*args, progress=False, **kwargs)


class Positions(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.table = how, nn.Embedding(3, 4)
        self.free = nn.Parameter(torch.randn(1, 3, 4) if how != "channel" else torch.randn(3, 1))
        self.head = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(3)
        if self.how == "looked up":
            x = x + self.table(places)
        elif self.how == "looked up in one row":
            x = self.table(places[None]) + x
        elif self.how == "in place":
            x = x.clone()
            x += self.free
        else:
            x = torch.add(x, self.free)
        return self.head(torch.tanh(x).flatten(1))


@pytest.mark.parametrize("how", ["looked up", "looked up in one row", "added", "in place", "channel"])
def test_what_is_added_needs_no_fallback(how: str) -> None:
    torch.manual_seed(1)
    model = Positions(how).double()
    x, y = torch.randn(7, 3, 4, dtype=torch.float64), torch.randint(2, (7,))
    name = "table" if how.startswith("looked") else "free"
    posterior = quietly(model, (x, y), likelihood="classification", structure="diag", layers=[name])
    (block,) = posterior.blocks
    assert block.source in ("table", "rows")
    wanted = torch.zeros(block.size, dtype=torch.float64)
    params = {n: p.detach() for n, p in model.named_parameters()}
    chosen = block.params[0].name
    for row in x:

        def f(p: Tensor, row: Tensor = row) -> Tensor:
            return torch.func.functional_call(model, {**params, chosen: p}, row[None])[0]

        j = torch.func.jacrev(f)(params[chosen]).flatten(1)
        q = f(params[chosen]).softmax(-1)
        wanted += (j.mT @ (q.diag() - q.outer(q)) @ j).diagonal()
    torch.testing.assert_close(posterior.curvature.structures[0].values, wanted, rtol=1e-9, atol=1e-12)
