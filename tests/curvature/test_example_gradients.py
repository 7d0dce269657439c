"""Per-example gradients of every kind of layer, against one example at a time, and BackPACK."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.comparison import NOISE, assert_close, bayesian, likelihood_of
from tests.reference import curvature as slow
from tests.reference.likelihoods import nll_for
from tests.reference.networks import ALL
from whence.curvature import example_gradients
from whence.errors import BadData, BadOption, TooLarge


def gradients(model: nn.Module, data: Any, likelihood: Any = "classification", **options: Any) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return whence.per_example_gradients(model, data, likelihood, progress=False, **options)


def small() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, torch.randn(11, 4, dtype=torch.float64), torch.arange(11) % 3


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_network(name: str) -> None:
    case = ALL[name](3)
    params = bayesian(case)
    wanted = slow.nll_gradients(case.model, params, case.x, case.y, nll_for(case.likelihood, NOISE))
    found = gradients(case.model, (case.x, case.y), likelihood_of(case))
    assert list(found) == list(params)
    assert {n: tuple(v.shape[1:]) for n, v in found.items()} == {n: tuple(p.shape) for n, p in params.items()}
    assert_close(torch.cat([v.reshape(len(v), -1) for v in found.values()], 1), wanted)


@pytest.mark.parametrize("kind", ["dense", "convolutions"])
def test_backpack(kind: str) -> None:
    backpack = pytest.importorskip("backpack")
    from backpack.extensions import BatchGrad

    model, x, y = small()
    if kind == "convolutions":
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(4, 3)
        ).double()  # fmt: skip
        x = torch.randn(11, 1, 4, 4, dtype=torch.float64)
    found = gradients(model, (x, y))
    witness = backpack.extend(model)
    loss = backpack.extend(nn.CrossEntropyLoss(reduction="sum"))(witness(x), y)
    with backpack.backpack(BatchGrad()):
        loss.backward()
    for name, p in model.named_parameters():
        assert_close(found[name], p.grad_batch)
        assert_close(found[name].sum(0), p.grad)


def test_rows_are_in_the_order_of_the_data_however_it_is_batched() -> None:
    model, x, y = small()
    whole = gradients(model, (x, y))
    batches = gradients(model, list(zip(x.split(4), y.split(4), strict=True)))
    for name, value in whole.items():
        assert_close(batches[name], value)


def test_regression_takes_its_noise_from_the_residuals() -> None:
    model, x, _ = small()
    y = torch.randn(11, 3, dtype=torch.float64)
    with torch.no_grad():
        noise = float((model(x) - y).square().mean().sqrt())
    found, given = gradients(model, (x, y), "regression"), gradients(model, (x, y), whence.Gaussian(noise))
    for name, value in found.items():
        assert_close(value, given[name])
    with pytest.raises(BadData, match="noise"):
        gradients(model, (x, model(x).detach()), "regression")


def test_examples_that_do_not_count_have_no_gradient() -> None:
    model, x, y = small()
    ignored = y.clone()
    ignored[4] = -100
    found, whole = gradients(model, (x, ignored)), gradients(model, (x, y))
    for name, value in found.items():
        assert not value[4].any()
        assert_close(value[torch.arange(11) != 4], whole[name][torch.arange(11) != 4])


def test_some_layers_and_parameters_that_nothing_reads() -> None:
    model, x, y = small()
    model.register_parameter("spare", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    found = gradients(model, (x, y))
    assert found["spare"].shape == (11, 2) and not found["spare"].any()
    last = gradients(model, (x, y), layers="last")
    assert set(last) == {"2.weight", "2.bias"}
    assert_close(last["2.weight"], found["2.weight"])
    with pytest.raises(BadOption, match="mask"):
        gradients(model, (x, y), layers=torch.zeros(3, dtype=torch.bool))


def test_the_network_is_left_alone_and_runs_in_evaluation_mode() -> None:
    model, x, y = small()
    model = nn.Sequential(model, nn.Dropout(0.5)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    one, other = gradients(model, (x, y)), gradients(model, (x, y))
    assert model.training and all(p.grad is None and p.requires_grad for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_memory_is_counted_and_shared_out(set_sizes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = small()
    whole = gradients(model, (x, y))
    calls = []
    computed = example_gradients._Work._computed

    def short_of_memory(self: Any, part: Any, index: int) -> Any:
        calls.append(len(part[1]))
        if len(part[1]) > 3:
            raise torch.OutOfMemoryError("out of memory")
        return computed(self, part, index)

    monkeypatch.setattr(example_gradients._Work, "_computed", short_of_memory)
    halved = gradients(model, (x, y))
    assert calls[0] == 11 and max(calls[-2:]) <= 3
    for name, value in whole.items():
        assert_close(halved[name], value)
    set_sizes(dense_curvature=100)
    with pytest.raises(TooLarge, match="layers="):
        gradients(model, (x, y))
