"""Backward passes of many columns at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import whence
from tests.comparison import assert_close
from tests.reference import curvature as slow
from whence.errors import UnsupportedLayer
from whence.recording import backward


def test_a_backward_pass_that_vmap_refuses_is_batched_in_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("vmap: no batching rule")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.randint(3, (9,))
    plain = whence.laplace(model, (x, y), likelihood="classification")
    monkeypatch.setattr(backward, "_vmapped", refuse)
    found = whence.laplace(model, (x, y), likelihood="classification")
    assert (found.network.runtime.vmapped_backward, found.network.runtime.batched_backward) == (False, True)
    assert_close(found.covariance(), plain.covariance(), 1e-12)


class Distances(nn.Module):
    """Distances from learned centres: torch's rule for the derivative of cdist under vmap is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(6, 3)
        self.centres = nn.Parameter(torch.randn(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.exp(-torch.cdist(self.first(x), self.centres)))


class Slopes(nn.Module):
    """The derivative of a network in its inputs, by torch.func."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.grad(lambda one: self.head(self.first(one).tanh()).sum()))(x)


class Pooled(nn.Module):
    """A network without the class token that it has a (then empty) parameter for, and with a sparse buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.head = nn.Parameter(torch.zeros(0, 4)), nn.Linear(4, 3)
        self.register_buffer("mix", torch.eye(4).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.cat([self.token.expand(len(x), 0, 4), x.unsqueeze(1)], 1)
        return self.head(torch.sparse.mm(self.mix.to(x.dtype), rows.mean(1).T).T.tanh())


class Ranges(nn.Module):
    """Ranges of one vector and of one table, in every role."""

    def __init__(self) -> None:
        super().__init__()
        self.vector, self.table = nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(8, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.layer_norm((x + self.vector[:4]).tanh() * self.vector[4:8], (4,), self.vector[8:12], self.vector[12:])
        words = (x > 0).long()
        looked_up = F.embedding(words, self.table[:4]) + F.embedding(words, self.table[4:])
        first = self.table[:1].expand(len(x), 4)
        return self.head((h + looked_up.mean(1) + first).tanh())


@pytest.mark.parametrize("kind", [Distances, Slopes, Pooled, Ranges])
def test_networks_for_which_torch_or_the_recorder_needs_care(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind().double()
    x, y = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    found = whence.laplace(model, (x, y), likelihood="classification", structure="full", prior_precision=1.0)
    lam = torch.stack([p.diag() - torch.outer(p, p) for p in model(x).detach().softmax(-1)])  # [N, C, C]
    used = {name: p for name, p in model.named_parameters() if p.numel()}
    hessian = slow.ggn_full(model, used, x, lam)
    assert_close(found.covariance(), torch.linalg.inv(hessian + torch.eye(len(hessian))), 1e-9)
    diagonal = whence.laplace(model, (x, y), likelihood="classification", structure="diag", prior_precision=1.0)
    assert_close(diagonal.covariance().diagonal(), 1 / (hessian.diagonal() + 1), 1e-9)


def test_second_derivatives_that_torch_does_not_have_are_refused_in_words() -> None:
    torch.manual_seed(0)
    model, x, y = Distances().double(), torch.randn(5, 4, dtype=torch.float64), torch.arange(5) % 3
    posterior = whence.laplace(model, (x, y), likelihood="classification", structure="diag")
    with pytest.raises(UnsupportedLayer, match="an attribution needs second derivatives"):
        posterior.attribute(x[:1])
    with pytest.raises(UnsupportedLayer, match="the Hessian needs second derivatives"):
        whence.laplace(model, (x, y), likelihood="classification", structure="full", curvature="hessian")


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x).tanh()).squeeze()


def test_a_network_may_squeeze_the_dimension_of_one_example_away() -> None:
    torch.manual_seed(0)
    model, x, y = Squeezed(), torch.randn(9, 4), torch.randn(9)
    likelihood = whence.Gaussian(noise=0.5)
    posterior = whence.laplace(model, (x, y), likelihood=likelihood)
    whole = posterior.predict(x)
    assert_close(posterior.predict(x[:1]).variance, whole.variance[:1], 1e-5)
    single = whence.laplace(model, DataLoader(TensorDataset(x, y), 1), likelihood=likelihood)
    assert_close(single.predict(x).variance, whole.variance, 1e-4)
    assert_close(whence.ensemble([model, model], likelihood=likelihood).predict(x[:1]).mean, model(x)[:1, None], 1e-5)
