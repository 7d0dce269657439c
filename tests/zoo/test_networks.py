"""The networks: published sizes, what they compute, and that whence takes them as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import whence
from whence.errors import BadData, BadOption
from whence.zoo import networks


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("network", "published"),
    [
        (networks.perceptron(), 7_850),
        (networks.mlp(), 784 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 10 + 10),
        (networks.lenet5(), 61_706),
        (networks.wide_resnet(depth=16, width=4), 2_748_890),
        (networks.wide_resnet(depth=28, width=10), 36_479_194),
        (networks.wide_resnet(outputs=100, depth=16, width=8), 11_007_540),
        (networks.vgg(depth=16, batch_norm=False), 14_719_818),
    ],
    ids=["perceptron", "mlp", "lenet5", "wrn-16-4", "wrn-28-10", "wrn-16-8-100", "vgg16"],
)
def test_has_as_many_parameters_as_published(network: nn.Module, published: int) -> None:
    assert parameters(network) == published


SMALL: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "perceptron": ((4,), {}),
    "mlp": ((1, 4, 4), {"hidden": (6, 5), "dropout": 0.2}),
    "lenet5": ((1, 28, 28), {"width": 0.1}),
    "alexnet": ((3, 32, 32), {"width": 0.05}),
    "vgg": ((3, 32, 32), {"width": 0.03}),
    "wide-resnet": ((3, 8, 8), {"depth": 10, "width": 0.25, "dropout": 0.1, "shortcut": "2x2"}),
    "transformer": ((1, 8, 8), {"units": 8, "heads": 2, "depth": 1}),
}


@pytest.mark.parametrize("name", SMALL)
def test_laplace_takes_it_as_it_is(name: str) -> None:
    shape, options = SMALL[name]
    network = networks.network(name, shape, 3, **options).eval()
    x, y = torch.randn(6, *shape), torch.randint(3, (6,))
    assert network(x).shape == (6, 3)
    posterior = whence.laplace(network, (x, y), likelihood="classification", progress=False)
    variance = posterior.predict(x).logit_cov.diagonal(dim1=1, dim2=2)
    assert variance.shape == (6, 3) and bool((variance > 0).all())


@pytest.mark.parametrize("name", [name for name in SMALL if name != "perceptron"])
def test_half_width_has_fewer_parameters_and_the_same_outputs(name: str) -> None:
    shape = (3, 32, 32)
    whole = networks.network(name, shape, 7, width=1.0)
    half = networks.network(name, shape, 7, width=0.5)
    assert parameters(half) < 0.7 * parameters(whole)
    assert half.eval()(torch.randn(2, *shape)).shape == (2, 7)


def test_half_lenet_has_half_the_filters() -> None:
    half = networks.lenet5(width=0.5)
    assert half.conv1.out_channels == 3 and half.conv2.out_channels == 8
    assert half.dense1.out_features == 60 and half.dense2.out_features == 42


def test_lenet_pads_28_to_32() -> None:
    """The first feature map of LeNet-5 is 28 × 28, whether the image is 28 or 32 wide."""
    for size in (28, 32):
        network = networks.lenet5((1, size, size))
        assert network.conv1(torch.randn(1, 1, size, size)).shape == (1, 6, 28, 28)
        assert network.dense1.in_features == 400


def test_wide_resnet_is_as_deep_as_it_says() -> None:
    """Depth counts the first convolution, two in each block, and the three projections."""
    for depth in (10, 16, 22):
        network = networks.wide_resnet(depth=depth, width=2)
        convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
        assert len(convolutions) == depth
        assert [g[0].conv1.out_channels for g in network.groups] == [32, 64, 128]


def test_ritter_downsamples_with_two_by_two() -> None:
    network = networks.wide_resnet(outputs=100, depth=22, width=8, dropout=0.3, shortcut="2x2")
    kernels = [group[0].shortcut.kernel_size for group in network.groups]
    strides = [group[0].shortcut.stride for group in network.groups]
    assert kernels == [(1, 1), (2, 2), (2, 2)] and strides == [(1, 1), (2, 2), (2, 2)]
    assert all(group[1].shortcut is None for group in network.groups)
    assert all(block.drop.p == 0.3 for group in network.groups for block in group)


def test_dropout_is_there_only_when_asked_for() -> None:
    drops = [m for m in networks.mlp(dropout=0.5).modules() if isinstance(m, nn.Dropout)]
    assert [d.p for d in drops] == [0.5, 0.5]
    assert not any(isinstance(m, nn.Dropout) for m in networks.mlp().modules())


def test_transformer_ignores_padding() -> None:
    network = networks.transformer(6, 2, vocabulary=11, padding=0, units=8, heads=2).eval()
    short = torch.tensor([[3, 4, 5]])
    padded = torch.tensor([[3, 4, 5, 0, 0, 0]])
    assert torch.allclose(network(short), network(padded), atol=1e-6)
    other = torch.tensor([[3, 4, 6, 0, 0, 0]])
    assert not torch.allclose(network(padded), network(other), atol=1e-4)


def test_transformer_layers_start_differently() -> None:
    network = networks.transformer(depth=2)
    first, second = network.encoder.layers
    assert not torch.equal(first.linear1.weight, second.linear1.weight)
    assert not torch.equal(first.self_attn.in_proj_weight, second.self_attn.in_proj_weight)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: networks.network("lenet", (1, 28, 28), 10), "'lenet5'"),
        (lambda: networks.network("mlp", 4, 2, hiden=(3,)), "'hidden'"),
        (lambda: networks.wide_resnet(depth=18), "use 16 or 22"),
        (lambda: networks.wide_resnet(depth=4), "use 10 or 16"),
        (lambda: networks.wide_resnet(shortcut="3x3"), "'1x1'"),
        (lambda: networks.vgg(depth=12), "11, 13, 16, 19"),
        (lambda: networks.lenet5((784,)), "(channels, height, width)"),
        (lambda: networks.alexnet((3, 28, 28)), "at least 32 × 32"),
        (lambda: networks.mlp(width=0), "width=0"),
        (lambda: networks.mlp(dropout=1.0), "dropout=1.0"),
        (lambda: networks.mlp(activation="swish"), "activation"),
        (lambda: networks.transformer(units=30, heads=4), "multiple of 4"),
        (lambda: networks.transformer((1, 28, 28), patch=5), "do not tile"),
        (lambda: networks.transformer((1, 28, 28), padding=0), "vocabulary"),
    ],
)
def test_refuses_in_words(build: Any, words: str) -> None:
    with pytest.raises(BadOption) as caught:
        build()
    assert words in str(caught.value)


def test_transformer_says_when_a_sequence_is_too_long() -> None:
    network = networks.transformer(4, 2, vocabulary=5, units=8, heads=2)
    with pytest.raises(BadData, match="longer than the 4 positions"):
        network(torch.randint(5, (1, 9)))
