"""How many numbers a variational module trains and stores."""

from __future__ import annotations

import copy

import torch
from torch import nn

from whence import zoo
from whence.posteriors.variational import VariationalModule


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def numbers(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_a_mean_field_has_twice_the_parameters_of_its_network() -> None:
    net = zoo.lenet5()
    module = VariationalModule(net)
    assert numbers(module) == 2 * numbers(net) == sum(v.numel() for v in module.state_dict().values())
    assert numbers(nn.ModuleList([module])) == 2 * numbers(net)  # also inside another module
    assert all(p.requires_grad for p in module.parameters())
    table = module.counts()
    assert table["name"] == ["conv1", "conv2", "dense1", "dense2", "head", "total"]
    assert table["parameters"][:1] == [156] and table["parameters"][-1] == numbers(net)
    assert table["trainable"] == table["stored"] == [2 * count for count in table["parameters"]]


def test_counts_of_other_families_frozen_layers_and_buffers() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    last = VariationalModule(net, layers=["3"])
    rows = {row["name"]: row for row in last.counts().rows()}
    assert rows["0"] == {"name": "0", "parameters": 32, "trainable": 0, "stored": 32}
    assert rows["1"] == {"name": "1", "parameters": 16, "trainable": 0, "stored": 16 + 17}
    assert rows["3"] == {"name": "3", "parameters": 18, "trainable": 36, "stored": 36}
    assert rows["total"]["trainable"] == numbers(last)
    for family, expected in (("alpha", 2 * 50), ("low_rank", 50 + 50 + 50 * 3)):
        module = VariationalModule(model(), family=family, rank=3)  # type: ignore[arg-type]
        assert module.counts()["trainable"][-1] == numbers(module) == expected
    matrices = VariationalModule(model(), family="matrix_normal")
    assert matrices.counts()["trainable"][-1] == numbers(matrices)


def test_the_network_inside_moves_with_the_module() -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    module = VariationalModule(net, layers=["2"]).double()
    assert module.model[0].weight.dtype == module.model[1].running_mean.dtype == torch.float64
    x = torch.randn(20, 3).double()
    torch.testing.assert_close(module.eval()(x), net.double().eval()(x))
    again = copy.deepcopy(module)
    assert again.model is not module.model and torch.equal(again(x), module(x))
