"""The snapshot of a module: two names, caches, replaced forwards, what autocast has left."""

from __future__ import annotations

import copy
import functools
import re
import types
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import assert_close
from whence.errors import BadData, Notice, UnsupportedLayer
from whence.outputs import output_tensor

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


# A forward that was replaced


def test_a_replaced_forward_is_refused_by_name() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    original = model[0].forward
    model[0].forward = lambda x: original(x) * 2
    with pytest.raises(UnsupportedLayer, match="the forward of '0' was replaced by a function that refers"):
        fit(model)


@pytest.mark.parametrize(
    "code",
    [
        "model[0].forward = lambda x: original(x) * 2",
        "def twice(x):\n    return original(x) * 2\nmodel[0].forward = lambda x: twice(x)",
        "model[0].forward = lambda x: shifted(x)",
    ],
)
def test_a_forward_replaced_in_a_script_or_notebook_is_refused(code: str) -> None:
    """There the original is a global variable, which no closure shows."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    original = model[0].forward
    exec(code, {"model": model, "original": original, "shifted": functools.partial(original)})
    with pytest.raises(UnsupportedLayer, match="the forward of '0' was replaced by a function that refers"):
        fit(model)


def test_a_replaced_forward_that_needs_no_other_network_is_taken() -> None:
    """Functions of torch, and a recursive one of its own, lead nowhere."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    code = "def again(x, n=1):\n    return again(x, n - 1) if n else torch.relu(x)\nmodel[1].forward = again"
    exec(code, {"model": model, "torch": torch})
    assert_close(fit(model).predict(X).logit_mean, model(X).detach(), 1e-12)


def test_a_replaced_forward_behind_an_object_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    around = Around(model[0].forward)
    model[0].forward = lambda x: around(x).double()
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


# Precision


class Converting(nn.Module):
    """A network that returns its logits in another precision than its own."""

    def __init__(self, own: torch.dtype, out: torch.dtype) -> None:
        super().__init__()
        self.head, self.own, self.out = nn.Linear(4, 3).to(own), own, out

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.to(self.own)).to(self.out)


@pytest.mark.parametrize("own", [torch.float32, torch.float64])
def test_outputs_may_have_another_precision_than_the_network(own: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Converting(own, torch.float64 if own == torch.float32 else torch.float32)
    posterior = fit(model, structure="kron")
    wanted = fit(nn.Sequential(model.head), x=X.to(own), structure="kron")
    assert_close(posterior.predict(X).logit_cov, wanted.predict(X.to(own)).logit_cov, 1e-4)
    assert sum(row.variance_share for row in posterior.where(X).layers) == pytest.approx(1)


def test_parameters_in_double_and_single_precision_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3).double())
    with pytest.raises(UnsupportedLayer, match=r"'1\.bias' is in double precision, and '0\.bias' is not"):
        fit(model, x=X.float())


# Functions in attributes and hooks


class Lambdas(nn.Module):
    """Layers behind functions of every kind, which refer to the network by their closures."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.act = lambda x: torch.tanh(self.first(x))
        second = self.second
        self.steps = {"second": [functools.partial(lambda layer, x: layer(x) + second(x) * 0, self.second)]}
        self.last = (lambda x, head=self.third: head(x),)
        self.again = functools.wraps(self.act)(lambda x: self.act(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.last[0](torch.tanh(self.steps["second"][0](self.again(x))))


def plain(model: Any) -> nn.Module:
    return nn.Sequential(model.first, nn.Tanh(), model.second, nn.Tanh(), model.third)


def test_functions_in_attributes_run_the_layers_of_the_copy() -> None:
    torch.manual_seed(0)
    model = Lambdas().double()
    wanted = fit(copy.deepcopy(plain(model)), structure="full", prior_precision=1.0)
    posterior = fit(model, structure="full", prior_precision=1.0)
    assert_close(posterior.covariance(), wanted.covariance(), 1e-10)
    with torch.no_grad():
        model.first.weight.zero_()
    assert_close(posterior.predict(X).logit_cov, wanted.predict(X).logit_cov, 1e-10)
    assert_close(posterior.to(torch.float32).to(torch.float64).predict(X).logit_cov, wanted.predict(X).logit_cov, 1e-4)


def test_a_hook_that_adds_an_adapter_adds_that_of_the_copy() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    model[1].adapter = nn.Linear(4, 5).double()
    adapter = model[1].adapter
    model[0].register_forward_hook(lambda _module, args, out: out + adapter(*args))
    found = fit(model, structure="diag", prior_precision=1.0).variance()
    assert_close(found["1.adapter.weight"], found["0.weight"], 1e-10)


def test_a_function_that_reads_the_network_from_a_global_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    names = {"model": model}
    exec("model[0].double = lambda x: model[2](x)\nmodel[1].name = lambda x: x.model", names)
    with pytest.raises(
        UnsupportedLayer, match="a function in 'double' of '0' refers to the network by the global name"
    ):
        fit(model)
    del model[0].__dict__["double"]
    fit(model)


class Child(nn.Module):
    def __init__(self, parent: nn.Module, way: str) -> None:
        super().__init__()
        if way == "weak reference":
            self.parent = weakref.ref(parent)
        elif way == "class attribute":
            type(self).shared = parent
            self.parent = lambda: type(self).shared
        else:
            self.parent = types.SimpleNamespace(get=lambda: parent).get

    def forward(self, x: Tensor) -> Tensor:
        return self.parent().first(x).tanh()


class Parent(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.child = Child(self, way)
        if way == "other object":
            self.child.parent = Holder(lambda: self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.child(x))


class Holder:
    """An object with slots, in which functions are not looked for."""

    __slots__ = ("get",)

    def __init__(self, get: Any) -> None:
        self.get = get

    def __call__(self) -> nn.Module:
        return self.get()


@pytest.mark.parametrize("way", ["weak reference", "class attribute", "other object"])
def test_a_pass_that_uses_the_user_s_parameters_is_refused_by_name(way: str) -> None:
    with pytest.raises(UnsupportedLayer, match=r"the forward pass uses 'first\.weight' of the network itself"):
        fit(Parent(way).double())


class Around:
    """An object in place of a function, as the one that turns outputs back into float32."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Tensor:
        return self.function(*args).float()


@pytest.mark.parametrize("converted", [False, True])
def test_autocast_that_training_has_left(converted: bool) -> None:
    """As accelerate wraps the forward of a model for half precision, with and without its outputs converted."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    wanted = fit(copy.deepcopy(model), X.float())
    model._original_forward = model.forward
    forward = torch.autocast("cpu", torch.bfloat16)(model.forward.__func__)
    if converted:
        around = Around(forward)
        forward = lambda *args: around(*args)  # noqa: E731
    model.forward = types.MethodType(forward, model)
    with pytest.warns(Notice, match=r"wrapped in autocast by accelerate.*pass autocast=torch.bfloat16"):
        posterior = whence.laplace(model, (X.float(), Y), likelihood="classification", progress=False)
    assert_close(posterior.covariance(), wanted.covariance(), 1e-6)


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


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (
            {"out": torch.zeros(4, 3), "aux": torch.zeros(4, 2)},
            "dict with the tensors output['out'] [4, 3], output['aux'] [4, 2];",
        ),
        ((torch.zeros(4, 3), None), "tuple with the tensors output[0] [4, 3];"),
        ([torch.zeros(4)] * 7, "output[4] [4] and 2 more;"),
        (None, "returns a NoneType;"),
    ],
)
def test_a_refused_output_names_its_tensors(output, named):
    with pytest.raises(BadData, match=re.escape(named)):
        output_tensor(output)
