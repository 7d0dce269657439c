"""Rules for products with parameters, views that are changed in place, and notices that name parameters."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whence
from tests.comparison import assert_close
from tests.reference import curvature as slow
from whence.errors import Notice

Y = torch.arange(10) % 3


class Scaled(nn.Module):
    """A norm by hand, a layer scale, a channel scale in another shape, one number; products either way round."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.stem, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        shape = {"channel": (6,), "number": ()}.get(how, (6,))
        self.gamma = nn.Parameter(1 + 0.3 * torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)  # [N, T, 6]
        if self.how == "rms":
            h = self.gamma * (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6))
        elif self.how == "scale":
            h = x.sum(-1, keepdim=True) + torch.mul(torch.tanh(h), self.gamma)
        elif self.how == "one plus":
            h = torch.tanh(h) * (1.0 + self.gamma)
        elif self.how == "norm of one plus":
            h = F.layer_norm(h, (6,), self.gamma + 1)
        elif self.how == "in place":
            h = (torch.tanh(h) + 0.1).mul_(self.gamma)
        elif self.how == "channel":
            h = (torch.tanh(h).mT.unsqueeze(-1) * self.gamma.view(1, -1, 1, 1)).squeeze(-1).mT
        else:
            h = torch.tanh(h) * self.gamma
        return self.head(h.mean(1))


class Token(nn.Module):
    """A class token that is repeated for the examples, in the ways in which people do that."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.gamma = nn.Parameter(torch.randn(1, 1, 6))
        self.stem, self.mix, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        token = {
            "expand": lambda: self.gamma.expand(n, -1, -1),
            "repeat": lambda: self.gamma.repeat(n, 1, 1),
            "rows": lambda: self.gamma[0].expand(n, 1, 6),
            "like": lambda: self.gamma.expand_as(x[:, :1, :1].expand(n, 1, 6)),
            "broadcast": lambda: torch.broadcast_to(self.gamma, (n, 1, 6)),
            "twice": lambda: self.gamma.expand(n, 2, 6),
        }[self.how]()
        h = torch.cat([token, self.stem(x)], 1)
        weights = (h @ h.mT).softmax(-1)
        seen = torch.tanh(self.mix(weights @ h))[:, :1] + token[:, :1].reshape(n, 1, 6)  # a residual stream
        return self.head(seen[:, 0])


class Gemma(nn.Module):
    """Norms with a scale 1 + w, computed in float32 whatever the type."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.weight = nn.Parameter(0.3 * torch.randn(6))
        self.mixed = nn.Parameter(torch.randn(6, 6) / 2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(self.stem(x), self.mixed.to(x.dtype))
        h = h.float() * torch.rsqrt(h.float().square().mean(-1, keepdim=True))
        return self.head((h * (1.0 + self.weight.float())).to(x.dtype).mean(1))


def test_scales_of_one_plus_a_parameter(tmp_path: Any) -> None:
    """Rescaling 1 + w against its reader leaves everything alone, and so do saving and loading."""
    torch.manual_seed(0)
    model, x = Gemma(), torch.randn(10, 5, 4)
    other = Gemma()
    other.load_state_dict(model.state_dict())
    c = torch.tensor([2.0, 0.5, 4.0, 1.0, 0.25, 2.0])
    with torch.no_grad():
        other.weight.copy_(c * (1 + model.weight) - 1)
        other.head.weight.div_(c)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        found = [whence.laplace(m, (x, Y), likelihood="classification", progress=False) for m in (model, other)]
    assert {b.name: b.source for b in found[0].blocks} == {
        "weight": "rows", "mixed": "matrix", "stem": "matrix", "head": "matrix"
    }  # fmt: skip
    assert_close(found[0].prior_variance()["weight"], (1 + model.weight.detach()).square(), 1e-6)
    assert_close(found[1].predict(x).logit_cov, found[0].predict(x).logit_cov, 1e-4)
    found[0].save(tmp_path / "p.safetensors")
    again = whence.load(tmp_path / "p.safetensors", model)
    assert_close(again.with_prior(whence.Relative(3.0)).variance()["weight"],
                 found[0].with_prior(whence.Relative(3.0)).variance()["weight"], 1e-6)  # fmt: skip
    assert_close(again.predict(x).logit_cov, found[0].predict(x).logit_cov, 1e-6)


@pytest.mark.parametrize("how", ["rms", "scale", "in place", "channel", "number", "one plus", "norm of one plus"])
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_products_with_a_parameter_are_exact(how: str, structure: str) -> None:
    assert_exact(Scaled(how), structure)


@pytest.mark.parametrize("how", ["expand", "repeat", "rows", "like", "broadcast", "twice"])
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_tokens_repeated_for_the_examples_are_exact(how: str, structure: str) -> None:
    assert_exact(Token(how), structure)


@pytest.mark.parametrize("how", ["expand", "rows", "broadcast", "repeat"])
def test_tokens_for_one_example_alone(how: str) -> None:
    """Of one example the repeated token is a view of the parameter, and must not be taken for it."""
    torch.manual_seed(0)
    model, x = Token(how).double(), torch.randn(10, 5, 4, dtype=torch.float64)
    posterior = whence.laplace(model, (x, Y), likelihood="classification", progress=False)
    assert_close(posterior.predict(x[:1]).logit_cov, posterior.predict(x).logit_cov[:1], 1e-9)
    ones = [(x[i : i + 1], Y[i : i + 1]) for i in range(10)]
    alone = whence.laplace(model, ones, likelihood="classification", structure="diag", progress=False)
    together = whence.laplace(model, (x, Y), likelihood="classification", structure="diag", progress=False)
    assert_close(alone.variance()["gamma"], together.variance()["gamma"], 1e-9)


def test_a_vector_of_its_own_as_a_token() -> None:
    class Vector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.head = nn.Parameter(torch.randn(4)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.cat([self.token.view(1, 1, 4).expand(len(x), 1, 4), x], 1).tanh().mean(1))

    torch.manual_seed(0)
    posterior = whence.laplace(Vector(), (torch.randn(10, 5, 4), Y), likelihood="classification", progress=False)
    assert next(b for b in posterior.blocks if b.params[0].name == "token").source == "rows"


def test_a_token_moves_with_the_channels_that_it_is_in() -> None:
    """Its prior is relative to its own entries."""
    torch.manual_seed(0)
    model = Token("expand")
    found = whence.laplace(model, (torch.randn(10, 5, 4), Y), likelihood="classification", progress=False)
    assert_close(found.prior_variance()["gamma"], model.gamma.detach().square(), 1e-6)


def assert_exact(model: nn.Module, structure: str) -> None:
    """Of the parameter gamma, without a fallback."""
    torch.manual_seed(0)
    model = model.double()
    x = torch.randn(10, 5, 4, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        options: dict[str, Any] = {"structure": structure, "prior_precision": 1.0, "progress": False}
        posterior = whence.laplace(model, (x, Y), likelihood="classification", **options)
    block = next(b for b in posterior.blocks if b.params[0].name == "gamma")
    assert block.source == "rows"
    probs = model(x).softmax(-1).detach()
    lam = torch.stack([p.diag() - torch.outer(p, p) for p in probs])
    params = slow.trainable(model)
    h = slow.ggn_full(model, params, x, lam)
    where = slow.positions(params)["gamma"].flatten()
    found = torch.linalg.inv(posterior.covariance()[where][:, where]) - torch.eye(len(where), dtype=torch.float64)
    if structure == "kron":
        assert_close(found, h[where][:, where], 1e-8)
    elif structure == "diag":
        assert_close(found.diagonal(), h.diagonal()[where], 1e-8)
    else:
        assert_close(posterior.covariance(), torch.linalg.inv(h + torch.eye(len(h), dtype=torch.float64)), 1e-8)


class InPlace(nn.Module):
    """Outputs that torch gives as views, changed in place by what follows."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.linear, self.conv = nn.Linear(4, 6), nn.Conv2d(1, 6, 2)
        self.norm, self.head = nn.InstanceNorm2d(6, affine=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "linear":
            return self.head(F.relu(self.linear(x), inplace=True).mean(1))
        h = self.norm(self.conv(x.unsqueeze(1)))
        h.relu_()
        return self.head(h.mean((2, 3)))


@pytest.mark.parametrize("how", ["linear", "norm"])
def test_views_may_be_changed_in_place(how: str) -> None:
    torch.manual_seed(0)
    model = InPlace(how).double()
    with torch.no_grad():
        for p in model.norm.parameters():
            p.add_(0.3 * torch.randn_like(p))
    layers = ["linear", "head"] if how == "linear" else ["conv", "norm", "head"]
    x = torch.randn(10, 5, 4, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        posterior = whence.laplace(
            model, (x, Y), likelihood="classification", layers=layers, prior_precision=1.0, progress=False
        )
    assert all(block.source != "example" for block in posterior.blocks)
    exact = whence.laplace(
        model, (x, Y), likelihood="classification", layers=layers, structure="diag", prior_precision=1.0, progress=False
    )
    probs = model(x).softmax(-1).detach()
    lam = torch.stack([p.diag() - torch.outer(p, p) for p in probs])
    params = {n: p for n, p in model.named_parameters() if n.split(".")[0] in layers}
    h = slow.ggn_diag(model, params, x, lam)
    found = torch.cat([(1 / v - 1).flatten() for v in exact.variance().values()])
    assert_close(found, h, 1e-8)


def test_notices_name_the_parameter() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 6)
            self.mask_embedding = nn.Parameter(torch.randn(6))
            self.token = nn.Parameter(torch.randn(1, 6))
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.cat([self.token.exp().expand(len(x), 1, 6), self.inner(x)], 1)
            return self.head(h.mean(1))

    with pytest.warns(Notice) as caught:
        whence.laplace(Masked(), (torch.randn(10, 5, 4), Y), likelihood="classification", progress=False)
    said = [str(w.message) for w in caught]
    assert any(
        s.startswith("mask_embedding does not reach the output: the data give no information about it") for s in said
    )
    assert any("no Kronecker rule for token: an exact diagonal, computed per example" in s for s in said)
    assert not any("posterior is its prior" in s for s in said)


def quietly(*args: Any, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(*args, progress=False, **kwargs)


class Lora(nn.Module):
    """A frozen layer with a low-rank correction: as layers, by products, or inside the weight."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.frozen = how, nn.Linear(6, 5).requires_grad_(False)
        self.a, self.b = nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "layers":
            return self.frozen(x) + 0.5 * self.b(self.a(x))
        if self.how == "products":
            return self.frozen(x) + 0.5 * (x @ self.a.weight.t() @ self.b.weight.transpose(0, 1))
        return F.linear(x, self.frozen.weight + 0.5 * self.b.weight @ self.a.weight, self.frozen.bias)


@pytest.mark.parametrize("how", ["layers", "products", "inside"])
def test_adapters(how: str) -> None:
    torch.manual_seed(0)
    first, last = Lora(how), nn.Linear(5, 3).requires_grad_(False)
    model = nn.Sequential(first, nn.Tanh(), last).double()
    x, y = torch.randn(12, 6, dtype=torch.float64), torch.randint(3, (12,))
    full = quietly(model, (x, y), likelihood="classification", structure="full")
    assert [p.name for b in full.blocks for p in b.params] == ["0.a.weight", "0.b.weight"]
    params = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
    wanted = torch.zeros(22, 22, dtype=torch.float64)
    for row in x:

        def f(p: dict[str, Tensor], row: Tensor = row) -> Tensor:
            return torch.func.functional_call(model, p, row[None])[0]

        found = torch.func.jacrev(f)(params)
        j = torch.cat([found[n].flatten(1) for n in params], 1)
        q = f(params).softmax(-1)
        wanted += j.mT @ (q.diag() - q.outer(q)) @ j
    torch.testing.assert_close(full.curvature.structures[0].matrix, wanted, rtol=1e-9, atol=1e-12)
    kron = quietly(model, (x, y), likelihood="classification", layers=lambda name, p: ".a." in name or ".b." in name)
    sources = {b.source for b in kron.blocks}
    assert sources == ({"example"} if how == "inside" else {"matrix"})


def test_products_by_a_parameter_are_layers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(3, 5))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x @ self.w) @ self.v.T

    model = Net().double()
    plain = nn.Sequential(nn.Linear(4, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False)).double()
    with torch.no_grad():
        plain[0].weight.copy_(model.w.T)
        plain[2].weight.copy_(model.v)
    data = (torch.randn(9, 4, dtype=torch.float64), torch.randint(3, (9,)))
    one, other = (quietly(m, data, likelihood="classification") for m in (model, plain))
    for a, b in zip(one.curvature.structures, other.curvature.structures, strict=True):
        for key, value in a.tensors().items():
            torch.testing.assert_close(value, b.tensors()[key], rtol=1e-10, atol=1e-12)
