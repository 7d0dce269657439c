"""Networks that were once fitted or predicted wrongly without a word, each in a few lines of torch."""

from __future__ import annotations

import copy
import functools
import types
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


# A module that is known under two names


class TwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 5)
        self.body = nn.Sequential(self.stem, nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + self.stem(x).sum(1, keepdim=True) * 0.1


@pytest.mark.parametrize("ask", ["activations", "draw", "slices", "sampled"])
def test_no_draw_stays_in_a_module_with_two_names(ask: str) -> None:
    torch.manual_seed(0)
    model = TwoNames().double()
    posterior = fit(model, prior_precision=1.0)
    before = posterior.predict(X)
    generator = torch.Generator().manual_seed(0)
    if ask == "activations":
        _ = posterior.where(X).activations
    elif ask == "draw":
        _ = [f(X) for f in posterior.draw(3, generator=generator)]
    elif ask == "slices":
        posterior.where().slices((X, Y))
    else:
        posterior.predict(X, method="sampled", num_samples=5, generator=generator)
    assert torch.equal(posterior.predict(X).probs, before.probs)
    for name, p in posterior.network.params.items():
        assert torch.equal(p, model.get_parameter(name))


def test_draws_of_a_module_with_two_names_are_its_own() -> None:
    torch.manual_seed(0)
    model = TwoNames().double()
    posterior = fit(model)
    draws = posterior.sample(4, generator=torch.Generator().manual_seed(0))
    outputs = posterior.draw(4, generator=torch.Generator().manual_seed(0)).outputs(X)
    for s in range(4):
        other = copy.deepcopy(model)
        with torch.no_grad():
            for name, value in draws.items():
                other.get_parameter(name).copy_(value[s])
        assert_close(outputs[s], other(X).detach(), 1e-12)


def test_other_methods_on_a_module_with_two_names() -> None:
    torch.manual_seed(0)
    model = TwoNames().double()
    found = whence.variational(model, (X, Y), likelihood="classification", epochs=2, progress=False, seed=0)
    first = found.predict(X, generator=torch.Generator().manual_seed(0)).probs
    assert torch.equal(found.predict(X, generator=torch.Generator().manual_seed(0)).probs, first)
    swag = whence.swag(model, (X, Y), likelihood="classification", epochs=2, lr=1e-3, progress=False)
    first = swag.predict(X, generator=torch.Generator().manual_seed(0)).probs
    assert torch.equal(swag.predict(X, generator=torch.Generator().manual_seed(0)).probs, first)


# Batch normalisation with strided gradients of a single example


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


@pytest.mark.parametrize("gradient", [True, False])
def test_rounding_that_depends_on_the_batch_size_is_not_refused(gradient: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.randint(3, (12,))
    whence.laplace(Rounded(gradient), (x, y), likelihood="classification", progress=False)


# What forward passes keep


class Caching(nn.Module):
    """Keeps what it computed from its weights, in evaluation mode; in a mapping or as a tensor."""

    def __init__(self, mapping: bool) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.bias_table = nn.Parameter(torch.randn(7))
        self.mapping = mapping
        self.kept: Any = {} if mapping else None

    def biases(self) -> Tensor:
        index = torch.tensor([0, 2, 4, 1, 6])
        if self.training:
            return self.bias_table[index]
        if self.mapping:
            if "cpu" not in self.kept:
                self.kept["cpu"] = self.bias_table[index]
            return self.kept["cpu"]
        if self.kept is None:
            self.kept = self.bias_table[index]
        return self.kept

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x) + self.biases()))


@pytest.mark.parametrize("mapping", [True, False])
@pytest.mark.parametrize("used", [True, False], ids=["used before", "fresh"])
def test_what_is_cached_is_computed_anew(mapping: bool, used: bool) -> None:
    torch.manual_seed(0)
    model = Caching(mapping).double().eval()
    plain = copy.deepcopy(model).train()  # the same function without a cache
    if used:
        with torch.no_grad():
            model(X)
    found, wanted = fit(model, structure="diag"), fit(_Always(plain), structure="diag")
    for name, value in found.variance().items():
        assert_close(value, wanted.variance()[f"inner.{name}"], 1e-12)
    assert float(found.where().to_pandas().set_index("name").loc["bias_table", "curvature"]) > 0
    one, other = (p.predict(X, method="sampled", generator=torch.Generator().manual_seed(0)) for p in (found, wanted))
    assert_close(one.probs, other.probs, 1e-12)
    assert_close(found.predict(X).probs, wanted.predict(X).probs, 1e-12)
    assert (model.kept is not None and len(model.kept) > 0) == used, "the user's own is left alone"


class _Always(nn.Module):
    """A module that stays in training mode."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        self.inner.training = True
        return self.inner(x)


def test_a_mapping_of_constants_is_left_alone() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)
            self.tables = {"shift": torch.ones(4, dtype=torch.float64)}

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.tables["shift"])

    model = Constant().double()
    posterior = fit(model)
    assert_close(posterior.predict(X).logit_mean, model(X).detach(), 1e-12)


# Complex parameters


class Phases(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wave, self.head = nn.Parameter(torch.randn(4, 5, dtype=torch.complex128)), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x.to(self.wave.dtype) @ self.wave).abs())


@pytest.mark.parametrize("layers", [None, ["wave"], lambda name, p: True, ["*"]])
def test_complex_parameters_are_refused_by_name(layers: Any) -> None:
    model = Phases().double()
    with pytest.raises(UnsupportedLayer, match=r"'wave' is complex.*view_as_complex.*not p.is_complex"):
        fit(model, layers=layers)


def test_complex_parameters_can_be_left_at_their_values() -> None:
    posterior = fit(Phases().double(), layers=lambda name, p: not p.is_complex())
    assert posterior.names() == ["head.weight", "head.bias"]


# A forward that was replaced


def test_a_replaced_forward_is_refused_by_name() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    original = model[0].forward
    model[0].forward = lambda x: original(x) * 2
    with pytest.raises(UnsupportedLayer, match="the forward of '0' was replaced by a function that refers"):
        fit(model)


def test_a_compiled_forward_is_the_class_s_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    wanted = fit(copy.deepcopy(model))
    model[0].forward = torch.compile(model[0].forward)
    posterior = fit(model)
    assert_close(posterior.covariance(), wanted.covariance(), 1e-12)
    with torch.no_grad():
        model[0].weight.zero_()
    assert_close(posterior.predict(X).logit_mean, wanted.predict(X).logit_mean, 1e-12)


def test_a_replaced_forward_that_holds_nothing_of_the_network_is_fine() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    wanted = fit(copy.deepcopy(model))
    model[1].forward = lambda x: torch.tanh(x)
    model[0].forward = functools.partial(type(model[0]).forward, model[0])  # copied with it
    assert_close(fit(model).covariance(), wanted.covariance(), 1e-12)


def test_autocast_that_training_has_left() -> None:
    """As accelerate wraps the forward of a model for half precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    wanted = fit(copy.deepcopy(model), X.float())
    model._original_forward = model.forward
    model.forward = types.MethodType(torch.autocast("cpu", torch.bfloat16)(model.forward.__func__), model)
    with pytest.warns(Notice, match=r"left under autocast by accelerate.*pass autocast=torch.bfloat16"):
        posterior = whence.laplace(model, (X.float(), Y), likelihood="classification", progress=False)
    assert_close(posterior.covariance(), wanted.covariance(), 1e-6)


# Labels of language models


class Model(nn.Module):
    """A tiny model with the face of those of transformers."""

    def __init__(self, words: int = 7) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(words, 4), nn.Linear(4, words)

    def forward(self, input_ids: Tensor) -> Any:
        h = self.table(input_ids)
        h = h.cumsum(1) / torch.arange(1, h.shape[1] + 1).unsqueeze(1)
        return types.SimpleNamespace(logits=self.head(torch.tanh(h)))


class TinyForCausalLM(Model):
    pass


def test_labels_of_causal_models_are_shifted_as_their_loss_does() -> None:
    torch.manual_seed(0)
    model = TinyForCausalLM().double()
    ids = torch.randint(7, (10, 5))
    likelihood = whence.Categorical(class_dim=-1)
    batches = [{"input_ids": ids, "labels": ids}]
    with pytest.warns(Notice, match="labels are shifted by one token"):
        posterior = whence.laplace(model, batches, likelihood=likelihood, progress=False)
    logits = model(ids).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    assert posterior.record.loss == pytest.approx(float(loss))
    shifted = torch.cat([ids[:, 1:], torch.full((10, 1), -100)], 1)
    plain = fit(model, {"input_ids": ids}, shifted, likelihood=likelihood)
    for name, value in plain.variance().items():
        assert_close(posterior.variance()[name], value, 1e-12)


def test_labels_of_other_models_that_look_unshifted_are_said() -> None:
    ids = torch.randint(7, (10, 5))
    with pytest.warns(Notice, match="every label is the token at its own place"):
        whence.laplace(
            Model().double(), [{"input_ids": ids, "labels": ids}], likelihood=whence.Categorical(class_dim=-1),
            progress=False,
        )  # fmt: skip


class Decoding(nn.Module):
    """An encoder and a decoder, with the face of those of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.config = types.SimpleNamespace(is_encoder_decoder=True)
        self.source, self.target, self.head = nn.Embedding(7, 4), nn.Embedding(7, 4), nn.Linear(4, 7)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        shifted = labels.roll(1, 1)
        shifted[:, 0] = 0
        return shifted.clamp(min=0)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor | None = None) -> Any:
        if decoder_input_ids is None:
            raise ValueError("You have to specify either decoder_input_ids or decoder_inputs_embeds")
        h = self.source(input_ids).mean(1, keepdim=True) + self.target(decoder_input_ids)
        return types.SimpleNamespace(logits=self.head(torch.tanh(h)))


def test_decoders_read_the_labels_before() -> None:
    torch.manual_seed(0)
    model = Decoding().double()
    ids, labels = torch.randint(7, (10, 5)), torch.randint(7, (10, 6))
    labels[3, 4:] = -100
    likelihood = whence.Categorical(class_dim=-1)
    posterior = fit_batches(model, [{"input_ids": ids, "labels": labels}], likelihood=likelihood)
    logits = model(ids, model.prepare_decoder_input_ids_from_labels(labels)).logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    assert posterior.record.loss == pytest.approx(float(loss))
    batch = {"input_ids": ids, "labels": labels}
    probs = posterior.predict([batch], method="sampled", num_samples=3).probs
    assert probs.shape[0] == 10


def fit_batches(model: nn.Module, batches: Any, **options: Any) -> whence.Laplace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        return whence.laplace(model, batches, progress=False, **options)


def test_classes_that_could_lie_either_way_are_asked_for() -> None:
    ids = torch.randint(5, (10, 5))
    model = Model(5).double()
    with pytest.raises(BadData, match=r"can be N × classes × positions or N × positions × classes"):
        fit(model, ids, ids.roll(1, 1))
    fit(model, ids, ids.roll(1, 1), likelihood=whence.Categorical(class_dim=-1))


# Examples that see each other, and numbers of examples that are fixed


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


@pytest.mark.parametrize(("kind", "words"), [("nearest", "examples see each other"), ("fixed", "fails on 6 of them")])
def test_nodes_of_a_graph_are_refused_and_said_how(kind: str, words: str) -> None:
    with pytest.raises((UnsupportedLayer, BadData), match=rf"{words}.*node numbers be the inputs"):
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

    with pytest.raises(BadData, match=r"depend on how many go through together.*CLIP"):
        fit(Pairs().double(), y=torch.arange(12))


def test_an_exported_module_with_a_static_batch() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    exported = torch.export.export(model, (X,)).module()
    with pytest.raises(BadData, match=r"runs on 12 examples and fails on 6 of them.*dynamic batch") as raised:
        fit(exported)
    assert str(raised.value).count("runs on 12 examples") == 1


def test_outputs_that_were_kept_in_a_list() -> None:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            out = self.head(x)
            self.seen.append(out)
            return out

    model = Keeping().double()
    model(X).sum().backward()
    kept = list(model.seen)
    posterior = fit(model)
    assert model.seen[0] is kept[0] and len(model.seen) == 1
    posterior.predict(X)
    assert len(posterior.network.module.seen) <= 1


def test_a_network_that_fails_says_on_what() -> None:
    model = nn.Sequential(nn.Linear(5, 3)).double()
    with pytest.raises(BadData, match=r"failed on inputs \(\[12, 4\] float64\) with RuntimeError: mat1 and mat2"):
        fit(model)
