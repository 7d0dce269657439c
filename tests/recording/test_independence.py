"""Examples must not see each other, and one example alone must give what it gives in a batch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from tests.reference import curvature as slow
from tests.reference.posterior import linearised_covariance
from whence.errors import BadData, Notice, UnsupportedLayer
from whence.predictive.linearised import moments

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 3


def fit(model: nn.Module, x: Any = X, y: Tensor = Y, **options: Any) -> whence.Laplace:
    options = {"likelihood": "classification", "progress": False} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, (x, y), **options)


class Tokens(nn.Module):
    """Batch normalisation, then channels last: torch's kernel for the CPU misreads the gradient of one example."""

    def __init__(self, odd: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.rand(3, 4)) if odd else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
        if self.scale is not None:  # what no rule knows is computed example by example
            h = torch.einsum("ntd,od->nto", h, self.scale @ self.scale.mT @ self.scale)
            return h.tanh().mean(1)
        return self.head(h.tanh().mean(1))


def tokens(odd: bool) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = Tokens(odd).double().eval()
    with torch.no_grad():
        model.norm.weight.normal_()
        model.norm.running_var.uniform_(0.5, 2)
        model.norm.running_mean.normal_()
    return model, torch.randn(12, 2, 3, 3, dtype=torch.float64)


def pairs_jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """[N, C, P], each example beside a copy of itself."""
    params = dict(model.named_parameters())
    found = []
    for one in x:
        outputs = model(torch.stack([one, one]))[0]
        rows = [torch.autograd.grad(f, list(params.values()), retain_graph=True, allow_unused=True) for f in outputs]
        flat = [
            [torch.zeros_like(p) if g is None else g for g, p in zip(row, params.values(), strict=True)] for row in rows
        ]
        found.append(torch.stack([torch.cat([g.flatten() for g in row]) for row in flat]))
    return torch.stack(found)


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_single_examples_through_batch_norm(odd: bool, structure: str) -> None:
    model, x = tokens(odd)
    together = fit(model, x, structure=structure, prior_precision=1.0)
    ones = [(x[n : n + 1], Y[n : n + 1]) for n in range(12)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        options = {"likelihood": "classification", "structure": structure, "prior_precision": 1.0, "progress": False}
        alone = whence.laplace(model, ones, **options)
    assert_close(alone.covariance(), together.covariance(), 1e-9)
    jac = pairs_jacobian(model, x)
    wanted = linearised_covariance(jac, together.covariance())
    assert_close(moments(together, x).cov, wanted, 1e-9)
    found = torch.cat([together.predict(x[n : n + 1]).logit_cov for n in range(12)])
    assert_close(found, wanted, 1e-9)


def test_the_first_batch_shows_a_kernel_that_is_wrong_for_one_example(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = tokens(False)
    monkeypatch.setattr("whence.functional.has_batch_norm", lambda module: False)
    with pytest.raises(UnsupportedLayer, match=r"gradient of '(conv|norm)\..* for one example alone differs"):
        fit(model, x)


class Coarse(torch.autograd.Function):
    """x, with a derivative that is a little off: what rounding does on a GPU."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 1.03


class Rounded(nn.Module):
    """Batches of one (or ``fewer`` than eight) are computed coarsely in float32."""

    def __init__(self, gradient: bool) -> None:
        super().__init__()
        self.gradient, self.first, self.last = gradient, nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).tanh()
        if x.dtype == torch.float32:
            if self.gradient and len(x) == 1:
                h = Coarse.apply(h)
            if not self.gradient and len(x) < 8:
                h = h * 1.01
        return self.last(h)


class Slightly(Coarse):
    """x, with a derivative that is off by what single precision rounds."""

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * (1 + 3e-7)


class PartlySingle(Rounded):
    """A norm that computes in single precision in a network of any precision, as those of language models do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).tanh()
        return self.last(Slightly.apply(h) if len(x) == 1 else h)


def test_a_network_in_double_precision_may_compute_a_part_in_single() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(12, 4, dtype=torch.float64), torch.randint(3, (12,))
    whence.laplace(PartlySingle(True).double(), (x, y), likelihood="classification", progress=False)


@pytest.mark.parametrize("gradient", [True, False])
def test_rounding_that_depends_on_the_batch_size_is_not_refused(gradient: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.randint(3, (12,))
    whence.laplace(Rounded(gradient), (x, y), likelihood="classification", progress=False)


class Graph(nn.Module):
    """Examples are the nodes of one graph."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.one, self.two = nn.Linear(4, 5), nn.Linear(5, 3)
        self.edges = (torch.rand(12, 12, dtype=torch.float64) > 0.6).double()

    def forward(self, x: Tensor) -> Tensor:
        near = torch.softmax(-torch.cdist(x, x), 1) if self.kind == "nearest" else self.edges
        return self.two(near @ torch.relu(self.one(near @ x)))


@pytest.mark.parametrize(("kind", "words"), [("nearest", "depend on each other"), ("fixed", "fails on 6 of them")])
def test_nodes_of_a_graph_are_refused_and_said_how(kind: str, words: str) -> None:
    with pytest.raises((UnsupportedLayer, BadData), match=rf"{words}.*node indices as inputs"):
        fit(Graph(kind).double())


def test_node_numbers_as_inputs() -> None:
    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph = Graph("fixed")

        def forward(self, nodes: Tensor) -> Tensor:
            return self.graph(X)[nodes]

    torch.manual_seed(0)
    model = Nodes().double()
    posterior = fit(model, torch.arange(12), structure="full", prior_precision=1.0)
    probs = model(torch.arange(12)).softmax(-1).detach()
    lam = torch.stack([p.diag() - torch.outer(p, p) for p in probs])
    h = slow.ggn_full(model, slow.trainable(model), torch.arange(12), lam)
    assert_close(posterior.covariance(), torch.linalg.inv(h + torch.eye(len(h), dtype=h.dtype)), 1e-8)


def test_similarities_of_all_pairs_are_refused() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 5), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) @ self.b(x).mT

    with pytest.raises(BadData, match=r"depend on the batch size.*CLIP"):
        fit(Pairs().double(), y=torch.arange(12))


def test_an_exported_module_with_a_static_batch() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    exported = torch.export.export(model, (X,)).module()
    with pytest.raises(BadData, match=r"runs on 12 examples but fails on 6 of them.*dynamic batch") as raised:
        fit(exported)
    assert str(raised.value).count("runs on 12 examples") == 1


DOUBLE = torch.float64


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))


def labels(size: int) -> Tensor:
    return torch.arange(size) % 3


def fit_batches(network: nn.Module, batches: list[Tensor], **options: Any) -> whence.Laplace:
    data = [(x, labels(len(x))) for x in batches]
    return whence.laplace(network, data, likelihood="classification", progress=False, **options)


ROWS = draw(20, 4)


class Mean(Two):
    def forward(self, x: Tensor) -> Tensor:
        z = self.a(x).tanh()
        return self.head(z - z.mean(0))


class Largest(Two):
    """Divides by a maximum over the batch, which half of the batch does not change."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x) / self.a(x).abs().max().detach())


class Forwards(Two):
    """A network with an operation that has no derivative on this device, as torch's flex_attention on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if h.requires_grad:
            raise NotImplementedError("FlexAttention does not support backward on CPU.")
        return self.head(h)


class Dropping(Two):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.a(x).tanh(), 0.5))


def test_examples_that_see_each_other_are_refused_and_chance_is_said() -> None:
    with pytest.raises(whence.errors.UnsupportedLayer, match="so the examples depend on each other"):
        fit_batches(Mean(), [ROWS], structure="diag")
    for rows in (ROWS, ROWS.flip(0)):
        with pytest.raises(whence.errors.UnsupportedLayer, match="so the examples depend on each other"):
            fit_batches(Largest(), [rows], structure="diag")
    with pytest.raises(whence.errors.UnsupportedLayer, match="cannot be differentiated on cpu: FlexAttention"):
        fit_batches(Forwards(), [ROWS], structure="diag")
    with pytest.warns(whence.errors.Notice, match="something is random in evaluation mode"):
        fit_batches(Dropping(), [ROWS], structure="diag")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rounding_is_not_taken_for_that(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(300, 400), nn.ReLU(), nn.BatchNorm1d(400), nn.Dropout(), nn.Linear(400, 3))
    x = torch.randn(64, 300).to(dtype)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        whence.laplace(network.to(dtype), (x, labels(64)), likelihood="classification", layers="last", progress=False)
    assert not [w for w in seen if "random" in str(w.message)]


class HalfRounded(Two):
    """A network in double precision that computes something in single precision, rounded by the batch size."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x).tanh()) * (1 + 5e-8 * (len(x) < 20))


def test_nor_is_single_precision_inside_a_network_in_double_precision() -> None:
    fit_batches(HalfRounded(), [ROWS], structure="diag")
