"""Compaction: smaller layers, the same outputs; what cannot be removed is refused by name."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune as torch_prune

import whence
from tests.errors.watch import refused, untouched
from whence import errors, zoo
from whence.extras.pruning.compact import compact
from whence.extras.pruning.masks import prune

EXACT = {"rtol": 0, "atol": 1e-10}


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def stirred(module: nn.Module) -> nn.Module:
    """In float64 and evaluation mode, with biases, norms and running statistics that are not at their start."""
    module = module.double().eval()
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                for t in (part.running_mean, part.bias):
                    t.normal_()
                for t in (part.running_var, part.weight):
                    t.uniform_(0.5, 2.0)
    return module


def posterior_of(module: nn.Module, x: Tensor, **options):
    y = torch.arange(len(x)) % 3
    options = {"structure": "diag", "curvature": "empirical", "prior_precision": 1.0, **options}
    return whence.laplace(module, (x, y), likelihood="classification", progress=False, **options)


def mask_units(layer: nn.Module, *units: int, dim: int = 0) -> None:
    for name in ("weight", "bias"):
        if getattr(layer, name) is not None:
            mask = torch.ones_like(getattr(layer, name))
            mask.movedim(dim if name == "weight" else 0, 0)[list(units)] = 0
            torch_prune.custom_from_mask(layer, name, mask)


# The networks of the zoo

ZOO = {
    "mlp": (lambda: zoo.networks.mlp((1, 4, 4), 3, hidden=(16, 12), dropout=0.5), (1, 4, 4)),
    "mlp-tanh": (lambda: zoo.networks.mlp(8, 3, hidden=(16, 12), activation="tanh"), (8,)),
    "lenet5": (lambda: zoo.networks.lenet5((1, 28, 28), 3, width=0.5), (1, 28, 28)),
    "lenet5-gelu": (
        lambda: zoo.networks.lenet5((1, 28, 28), 3, width=0.5, activation="gelu", dropout=0.2),
        (1, 28, 28),
    ),
    "vgg": (lambda: zoo.networks.vgg((3, 32, 32), 3, width=0.0625), (3, 32, 32)),
    "alexnet": (lambda: zoo.networks.alexnet((3, 32, 32), 3, width=0.0625), (3, 32, 32)),
}


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("by", ["snr", "random"])
def test_units_of_the_zoo(name: str, by: str) -> None:
    build, shape = ZOO[name]
    model = stirred(build())
    x = torch.randn(6, *shape, dtype=torch.float64)
    pruned = prune(posterior_of(model, x), 0.5, by=by, units=True)
    with untouched(pruned):
        small = compact(pruned)
    assert type(small) is type(model) and not torch_prune.is_pruned(small) and not small.training
    assert list(dict(small.named_parameters())) == list(dict(model.named_parameters()))
    again = torch.randn(5, *shape, dtype=torch.float64)
    torch.testing.assert_close(small(again), pruned(again), **EXACT)
    assert (small(again) - model(again)).abs().max() > 1e-4
    assert count(small) < 0.6 * count(model)
    layers = [n for n, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    for n in layers[:-1]:
        layer = small.get_submodule(n)
        stays = int(pruned.get_submodule(n).weight_mask.flatten(1).any(1).sum())
        assert 1 <= len(layer.weight) <= stays
        assert len(layer.weight) == getattr(layer, "out_features", getattr(layer, "out_channels", None))
    sizes = [len(small.get_submodule(n).weight) for n in layers]
    assert sum(sizes[:-1]) < 0.6 * sum(len(model.get_submodule(n).weight) for n in layers[:-1])
    assert sizes[-1] == 3


def test_permanent_masks_do_as_well_and_a_state_dict_fits() -> None:
    model = stirred(zoo.networks.mlp(8, 3, hidden=(16, 12)))
    x = torch.randn(6, 8, dtype=torch.float64)
    pruned = prune(posterior_of(model, x), 0.5, units=True)
    small = compact(pruned)
    for layer in (pruned.hidden1, pruned.hidden2):
        torch_prune.remove(layer, "weight")
        torch_prune.remove(layer, "bias")
    other = compact(pruned)
    torch.testing.assert_close(other(x), small(x), **EXACT)
    other.load_state_dict(small.state_dict())
    whence.laplace(small, (x, torch.arange(6) % 3), likelihood="classification", progress=False)  # an ordinary network


def test_training_mode_is_kept() -> None:
    model = stirred(zoo.networks.mlp(8, 3, hidden=(6,), dropout=0.5))
    pruned = prune(posterior_of(model, torch.randn(6, 8, dtype=torch.float64)), 0.5, units=True)
    pruned.train()
    pruned.hidden1.eval()
    small = compact(pruned)
    assert small.training and small.drop1.training and not small.hidden1.training


# Constants


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Softplus, nn.ReLU, nn.ELU, nn.Hardsigmoid])
def test_constants_go_into_the_next_bias(activation: type[nn.Module]) -> None:
    """Weights alone are masked: the bias is left, so that a unit is f(b), through two layers."""
    net = nn.Sequential(nn.Linear(4, 6), activation(), nn.Linear(6, 5, bias=False), activation(), nn.Linear(5, 2))
    net = net.double().eval()
    mask = torch.ones(6, 4, dtype=torch.float64)
    mask[[1, 4]] = 0
    torch_prune.custom_from_mask(net[0], "weight", mask)
    second = torch.ones(5, 6, dtype=torch.float64)
    second[2, [0, 2, 3, 5]] = 0  # sees the two constants only, and so is one
    torch_prune.custom_from_mask(net[2], "weight", second)
    small, x = compact(net), torch.randn(7, 4, dtype=torch.float64)
    assert (small[0].out_features, small[2].in_features, small[2].out_features, small[4].in_features) == (4, 4, 4, 4)
    torch.testing.assert_close(small(x), net(x), **EXACT)


def test_a_unit_that_nothing_reads_is_taken_out() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    with torch.no_grad():
        net[4].weight[:, 1] = 0
        net[2].weight[[0, 2, 3, 4], 5] = 0  # read by unit 1 alone, which nobody reads
    small, x = compact(net), torch.randn(7, 4, dtype=torch.float64)
    assert small[0].out_features == 5 and small[2].out_features == 4
    torch.testing.assert_close(small(x), net(x), **EXACT)


def test_a_constant_beside_padding_is_refused_and_without_it_folded() -> None:
    for padding, mode in ((0, "zeros"), (1, "replicate"), (1, "zeros")):
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.AvgPool2d(2), nn.Conv2d(4, 3, 3, padding=padding, padding_mode=mode),
            nn.ReLU(), nn.Flatten(), nn.LazyLinear(2),
        )  # fmt: skip
        x = torch.randn(3, 1, 12, 12, dtype=torch.float64)
        net = net.double()
        net(x)
        mask_units(net[0], 2)  # sigmoid(0) = ½
        if (padding, mode) == (1, "zeros"):
            with refused(errors.UnsupportedLayer, "'0'", "'3'", "border", model=net):
                compact(net)
        else:
            small = compact(net)
            assert small[0].out_channels == 3 and small[3].in_channels == 3
            torch.testing.assert_close(small(x), net(x), **EXACT)


def test_average_pools_that_count_padding_stop_constants() -> None:
    def net(pool: nn.Module, activation: nn.Module) -> nn.Sequential:
        made = nn.Sequential(nn.Conv2d(1, 4, 3), activation, pool, nn.Flatten(), nn.LazyLinear(2)).double()
        made(x)
        mask_units(made[0], 2)
        return made

    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    with refused(errors.UnsupportedLayer, "'0'", "2 (AvgPool2d)"):
        compact(net(nn.AvgPool2d(2, padding=1), nn.Sigmoid()))
    for pool, activation in (
        (nn.AvgPool2d(2, padding=1, count_include_pad=False), nn.Sigmoid()),
        (nn.AvgPool2d(2, padding=1), nn.ReLU()),
        (nn.MaxPool2d(3, padding=1), nn.Sigmoid()),
    ):
        made = net(pool, activation)
        small = compact(made)
        assert small[0].out_channels == 3
        torch.testing.assert_close(small(x), made(x), **EXACT)


def test_constants_through_a_batch_norm() -> None:
    net = stirred(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)))
    mask_units(net[0], 1, 2, 4)
    small, x = compact(net), torch.randn(7, 4, dtype=torch.float64)
    assert small[0].out_features == small[1].num_features == small[3].in_features == 3
    torch.testing.assert_close(small(x), net(x), **EXACT)


def test_a_unit_that_sees_a_constant_and_the_border_is_not_constant() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(48, 2))
    net = net.double()
    mask_units(net[0], 0)
    mask = torch.ones_like(net[2].weight)
    mask[1, 1] = mask[0, 0] = mask[2, 0] = 0  # unit 1 alone sees ½ inside, and 0 outside; it sees nothing else
    torch_prune.custom_from_mask(net[2], "weight", mask)
    with refused(errors.UnsupportedLayer, "'0'", "'2'", "border"):
        compact(net)


# Wiring


class Functional(nn.Module):
    """Functions, methods, views, a batch norm whose channel alone is dead, a transposed convolution, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 5, 3)
        self.norm = nn.BatchNorm2d(5)
        self.up = nn.ConvTranspose2d(5, 4, 2, stride=2)
        self.dense = nn.Linear(4 * 16, 6)
        self.one, self.two = nn.Linear(6, 2), nn.Linear(6, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x)), inplace=True), 2)
        x = F.adaptive_avg_pool2d(self.up(x).tanh(), 4) * 2 + 0.5
        x = F.dropout(self.dense(x.view(x.size(0), -1)).sigmoid(), 0.5, self.training)
        return torch.log_softmax(self.one(x) + self.two(x), 1)


def test_functions_and_branches() -> None:
    net = stirred(Functional())
    x = torch.randn(3, 2, 12, 12, dtype=torch.float64)
    mask_units(net.first, 1)
    mask_units(net.norm, 1, 3)  # 3 lives before the norm
    mask_units(net.up, 0, dim=1)
    mask_units(net.dense, 2, 5)
    small = compact(net)
    shapes = {n: tuple(p.shape) for n, p in small.named_parameters() if p.dim() > 1}
    assert shapes["first.weight"] == (3, 2, 3, 3) and shapes["up.weight"] == (3, 3, 2, 2)
    assert shapes["dense.weight"] == (4, 48) and shapes["one.weight"] == shapes["two.weight"] == (2, 4)
    assert small.norm.num_features == len(small.norm.running_var) == 3
    assert small.two.bias is not None  # ½ of sigmoid(0), twice
    torch.testing.assert_close(small(x), net(x), **EXACT)


def test_flattened_sequences() -> None:
    """Features last, and positions before them: [N, T, F] flattened."""
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Flatten(), nn.Linear(20, 2)).double()
    mask_units(net[0], 0, 3)
    with torch.no_grad():
        net[3].weight.view(2, 4, 5)[..., 1] = 0  # nothing reads unit 1, at any position
    small, x = compact(net), torch.randn(6, 4, 3, dtype=torch.float64)
    assert small[0].out_features == 2 and small[3].in_features == 8
    torch.testing.assert_close(small(x), net(x), **EXACT)


def test_inner_layers_of_a_residual_network_go_and_its_sums_are_refused() -> None:
    model = stirred(zoo.networks.wide_resnet((3, 8, 8), 3, depth=10, width=0.25))
    x = torch.randn(6, 3, 8, 8, dtype=torch.float64)
    posterior = posterior_of(model, x)
    inner = prune(posterior, 0.5, units=True, layers="groups.*.conv1")
    small = compact(inner)
    assert count(small) < count(model)
    torch.testing.assert_close(small(x), inner(x), **EXACT)
    every = prune(posterior, 0.5, units=True, per_layer=True)
    names = [f"'groups.{g}.0.conv2'" for g in range(3)]
    with refused(errors.UnsupportedLayer, "compact", *names, "through add before", "layers=", model=every):
        compact(every)


class Shortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(torch.relu(x)) + x


def test_what_the_output_reads_stays() -> None:
    net, x = Shortcut().double(), torch.randn(6, 4, dtype=torch.float64)
    with torch.no_grad():
        net.second.weight[:, 1] = 0
    mask_units(net.first, 2)
    with pytest.warns(errors.Notice, match="no unit"):
        small = compact(net)
    torch.testing.assert_close(small(x), net(x), **EXACT)


class Stops(nn.Module):
    def __init__(self, between: nn.Module, after: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.between, self.after = nn.Linear(4, 4), between, after or nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.between(self.first(x)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(torch.tanh(self.first(x)))))


class Overwrites(nn.Module):
    """What stands in the graph before an activation in place is not what is read after it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch.sigmoid_(x)
        return self.head(x)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (Stops(nn.LayerNorm(4)), "LayerNorm"),
        (Stops(nn.Softmax(-1)), "Softmax"),
        (Stops(nn.BatchNorm1d(4, track_running_stats=False)), "BatchNorm1d"),
        (Stops(nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 2, 1)), "Unflatten"),
        (Twice(), "'first'"),
        (Overwrites(), "'first'"),
    ],
    ids=["layer-norm", "softmax", "batch-statistics", "unflatten", "twice", "in-place"],
)
def test_what_stops_a_unit_is_named(net: nn.Module, words: str) -> None:
    net = net.double()
    mask_units(net.first, 1)
    net.eval()
    with refused(errors.UnsupportedLayer, "compact", "'first'", words, model=net):
        compact(net)


def test_groups_are_refused() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 2))
    net = net.double().eval()
    one, two = copy.deepcopy(net), copy.deepcopy(net)
    mask_units(one[0], 1)
    with refused(errors.UnsupportedLayer, "'0'", "2 (Conv2d)"):
        compact(one)
    mask_units(two[2], 1)
    with refused(errors.UnsupportedLayer, "'2'", "groups"):
        compact(two)


def test_outputs_stay_though_they_are_constant() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.LogSoftmax(1)).double()
    mask_units(net[2], 1)
    mask_units(net[0], 1)
    small, x = compact(net), torch.randn(5, 4, dtype=torch.float64)
    assert small[2].out_features == 3 and small[0].out_features == 5
    torch.testing.assert_close(small(x), net(x), **EXACT)


def test_a_layer_that_is_all_dead_keeps_one_unit() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Conv2d(4, 3, 3, padding=1), nn.Flatten(), nn.Linear(48, 2))
    net = net.double()
    torch_prune.custom_from_mask(net[2], "weight", torch.zeros_like(net[2].weight))  # what is left is its bias
    small, x = compact(net), torch.randn(5, 1, 6, 6, dtype=torch.float64)
    assert small[2].out_channels == small[0].out_channels == 1
    torch.testing.assert_close(small(x), net(x), **EXACT)


def test_single_weights_make_nothing_smaller_and_that_is_said() -> None:
    model = zoo.networks.mlp(8, 3, hidden=(16,)).double()
    x = torch.randn(6, 8, dtype=torch.float64)
    pruned = prune(posterior_of(model, x), 0.2, by="magnitude")
    with pytest.warns(errors.Notice, match="no unit could be removed"):
        small = compact(pruned)
    assert count(small) == count(model) and not torch_prune.is_pruned(small)
    assert list(small.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(small(x), pruned(x), **EXACT)
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.Notice)
        compact(prune(posterior_of(model, x), 0.5, units=True))


def test_what_is_no_network_or_cannot_be_traced() -> None:
    with refused(errors.BadData, "nn.Module", "dict"):
        compact({})  # type: ignore[arg-type]
    network = zoo.networks.transformer((1, 8, 8), 3, units=8, heads=2, depth=1).double()
    with refused(errors.UnsupportedLayer, "compact", "Transformer", "traced", model=network):
        compact(network)
