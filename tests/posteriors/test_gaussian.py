"""Linearised predictions of variational and SWAG posteriors: J Σ Jᵀ with the dense Σ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

import whence
from tests.comparison import assert_close
from whence.errors import NotDefined
from whence.posteriors.gaussian import GaussianPosterior

FAMILIES = ("mean_field", "alpha", "matrix_normal", "low_rank")


class Small(nn.Module):
    """Convolution, normalisation, and linear layers of which one is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, groups=1)
        self.norm = nn.BatchNorm2d(4)
        self.mid = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x)).tanh().flatten(1)
        return self.head(torch.tanh(self.mid(torch.tanh(self.mid(h)))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))


class Tied(nn.Module):
    """A matrix that is also used transposed, so that it is no layer's alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.first(x)) @ self.first.weight


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    if kind == "words":
        return nn.Sequential(nn.Embedding(6, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 3)).double()
    if kind == "attention":
        return Attention().double()
    model = Small().double()
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2.0)
    return model


def data(kind: str, count: int) -> tuple[Tensor, Tensor]:
    gen = torch.Generator().manual_seed(count)
    shape = {"mlp": (3,), "cnn": (1, 4, 4), "words": (3,), "attention": (3, 4)}[kind]
    x = torch.randn(count, *shape, generator=gen, dtype=torch.float64)
    x = torch.randint(0, 6, (count, 3), generator=gen) if kind == "words" else x
    return x, torch.randint(0, 3, (count,), generator=gen)


def posterior_of(kind: str, method: str, likelihood: Any = "classification") -> GaussianPosterior:
    common: dict[str, Any] = {"likelihood": likelihood, "epochs": 2, "progress": False}
    pair = data(kind, 24)
    if method.startswith("swag"):
        return whence.swag(network(kind), pair, rank=int(method[-1]), **common)
    return whence.variational(network(kind), pair, family=method, seed=0, **common)


def dense(posterior: GaussianPosterior, x: Tensor) -> tuple[Tensor, Tensor]:
    """f and J Σ Jᵀ over all inputs and outputs together."""
    module, names = posterior.network.module, posterior.names()
    params = {n: p.detach() for n, p in module.named_parameters()}
    jacobian = jacrev(lambda some: functional_call(module, params | some, (x,)))({n: params[n] for n in names})
    outputs = functional_call(module, params, (x,))
    rows = torch.cat([jacobian[n].flatten(2) for n in names], dim=-1).flatten(0, 1)
    return outputs, rows @ posterior.covariance() @ rows.mT


@pytest.mark.parametrize("method", [*FAMILIES, "swag0", "swag3"])
@pytest.mark.parametrize("kind", ["mlp", "cnn", "words", "attention"])
def test_the_covariance_of_the_outputs_is_that_of_the_dense_one(kind: str, method: str) -> None:
    posterior = posterior_of(kind, method)
    x, _ = data(kind, 5)
    mean, wanted = dense(posterior, x)
    found = posterior.predict(x, method="linearised")
    assert_close(found.logit_mean, mean, 1e-10)
    each = torch.stack([wanted[3 * i : 3 * i + 3, 3 * i : 3 * i + 3] for i in range(5)])
    assert_close(found.logit_cov, each, 1e-8)
    together = posterior.predict(x, method="linearised", joint=True)
    assert_close(together.covariance, wanted, 1e-8)


@pytest.mark.parametrize("method", ["mean_field", "low_rank", "swag3"])
def test_regression_links_and_loaders(method: str) -> None:
    posterior = posterior_of("mlp", method)
    x, _ = data("mlp", 7)
    probit = posterior.predict(x, method="linearised", link="probit")
    assert torch.allclose(probit.probs.sum(-1), torch.ones(7, dtype=torch.float64))
    parts = posterior.predict([x[:3], x[3:]], method="linearised")
    assert_close(parts.probs, posterior.predict(x, method="linearised").probs, 1e-10)
    with pytest.raises(NotDefined, match="omit joint"):
        posterior.predict(x, joint=True)


def test_small_variances_make_both_predictions_agree() -> None:
    posterior = posterior_of("mlp", "swag3").with_scale(1e-6)
    x, _ = data("mlp", 6)
    linearised = posterior.predict(x, method="linearised")
    draws = posterior.draw(20_000, torch.Generator().manual_seed(0)).outputs(x)
    centred = draws - draws.mean(0)
    assert_close(linearised.logit_cov, torch.einsum("snc,snd->ncd", centred, centred) / len(draws), 0.05)


def test_it_is_differentiable_in_the_inputs() -> None:
    posterior = posterior_of("mlp", "low_rank")
    x = data("mlp", 2)[0].requires_grad_()
    posterior.predict(x, method="linearised").entropy.sum().backward()
    assert x.grad is not None and float(x.grad.abs().max()) > 0


def test_matrix_normal_weights_that_are_no_layers_own_are_refused() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(12, 3), torch.randint(3, (12,))
    options: dict[str, Any] = {"likelihood": "classification", "epochs": 1, "progress": False, "seed": 0}
    posterior = whence.variational(Tied(), (x, y), family="matrix_normal", **options)
    with pytest.raises(NotDefined, match=r"'first.weight' is not"):
        posterior.predict(x, method="linearised")
    assert whence.variational(Tied(), (x, y), **options).predict(x, method="linearised").probs.shape == (12, 3)
