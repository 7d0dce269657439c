"""Derivatives along directions as a graph, beside torch's forward mode in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.reference.linearised import moved
from whence.curvature.jvp import tangents
from whence.curvature.traced import traced_tangents
from whence.errors import UnsupportedLayer
from whence.functional import Network


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Encoder(nn.Module):
    """With a class token."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, activation="gelu")
        self.encoder, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(8, 3)
        self.token = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1))[:, 0])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.out = nn.Embedding(7, 6), nn.Linear(6, 6), nn.Linear(6, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inner(self.embed(x))).amax(1))


class Formula(nn.Module):
    """Operations that layers do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, keepdim=True) + 1e-3).sqrt()
        a, b = h[:, :4], h[:, 1:]
        mixed = a * torch.sigmoid(b) + nn.functional.softplus(b) - b.abs() / 2 + a.clamp(-1.0, 0.5) ** 2
        top = torch.maximum(a, b).max(1, keepdim=True).values + torch.einsum("nd,nd->n", a, b)[:, None]
        return self.out(torch.where(a > 0, mixed, -mixed) + top + torch.log1p(a.exp())).log_softmax(-1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x)[0][:, -1])


def activations() -> nn.Module:
    kinds: list[nn.Module] = [nn.GELU(), nn.GELU("tanh"), nn.ELU(), nn.Mish(), nn.Hardswish(), nn.ReLU6(), nn.PReLU()]
    parts: list[nn.Module] = []
    for kind in [*kinds, nn.LeakyReLU(), nn.SiLU(), nn.LogSigmoid(), nn.SELU(), nn.Softsign()]:
        parts += [nn.Linear(4, 4), kind, nn.LayerNorm(4)]
    return nn.Sequential(*parts, nn.Linear(4, 2))


FLAT = nn.Flatten
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), (4,)),
    "conv": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), FLAT(), nn.Linear(36, 3)
        ),
        (1, 8, 8),
    ),
    "grouped and transposed": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, groups=4, stride=2),
            nn.LeakyReLU(),
            nn.ConvTranspose2d(8, 6, 3, groups=2),
            nn.GroupNorm(2, 6),
            nn.AvgPool2d(2),
            FLAT(),
            nn.Linear(24, 3),
        ),
        (4, 8, 8),
    ),
    "residual": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), Residual(4), nn.AdaptiveAvgPool2d(1), FLAT(), nn.Linear(4, 3)),
        (3, 6, 6),
    ),
    "sequence": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.SiLU(), nn.MaxPool1d(2), FLAT(), nn.Linear(12, 3)
        ),
        (2, 8),
    ),
    "map": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect"),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(4, 3, 1),
        ),
        (1, 6, 6),
    ),
    "encoder": (Encoder, (3, 8)),
    "tied": (Tied, ()),
    "activations": (activations, (4,)),
    "formula": (Formula, (4,)),
}


def made(name: str) -> tuple[nn.Module, Callable[[int], Tensor]]:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    net = build().double().eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(), module.running_var.uniform_(0.5, 2)
    return net, lambda n: torch.randn(n, *shape).double() if shape else torch.randint(7, (n, 3))


def snapshot(net: nn.Module, names: list[str] | None = None) -> tuple[Network, dict[str, Tensor]]:
    network = Network.snapshot(net)
    network.select(names or list(network.params))
    return network, {n: torch.randn(5, *network.params[n].shape).double() for n in network.selected}


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_forward_mode_at_every_batch_size(name: str) -> None:
    net, inputs = made(name)
    network, directions = snapshot(net)
    graph = traced_tangents(network, inputs(1), directions)
    for size in (1, 2, 7):
        x = inputs(size)
        for found, wanted in zip(graph(x), moved(network.module, x, directions), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["conv", "encoder"])
def test_it_exports(name: str) -> None:
    net, inputs = made(name)
    graph = traced_tangents(*_with(snapshot(net), inputs(1)))
    sizes = ({0: torch.export.Dim("batch")},)
    exported = torch.export.export(graph, (inputs(3),), dynamic_shapes=sizes).module()
    for size in (1, 2, 9):
        x = inputs(size)
        torch.testing.assert_close(exported(x), graph(x))


def _with(pair: tuple[Network, dict[str, Tensor]], x: Tensor) -> Any:
    return pair[0], x, pair[1]


def test_only_some_weights_move() -> None:
    net, inputs = made("conv")
    for names in (["5.weight"], ["0.bias"], ["1.weight"], ["1.bias"], ["5.bias"]):
        network, directions = snapshot(net, names)
        x = inputs(4)
        found = traced_tangents(network, x, directions)(x)
        torch.testing.assert_close(found, moved(network.module, x, directions), rtol=1e-9, atol=1e-11)


def test_recurrent_networks() -> None:
    """torch has no forward mode for them; J v is the derivative of the backward pass there."""
    torch.manual_seed(0)
    network, directions = snapshot(Recurrent().double().eval())
    x = torch.randn(6, 3, 4).double()
    found = traced_tangents(network, x[:1], directions)(x)
    torch.testing.assert_close(found, tangents(network, x, directions), rtol=1e-9, atol=1e-11)


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).sort(-1).values


class Fixed(Sorted):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).reshape(len(x), 3)


@pytest.mark.parametrize(("kind", "said"), [(Sorted, "aten.sort"), (Fixed, r"variable batch size.*x.shape\[0\]")])
def test_what_cannot_be_served_names_the_remedy(kind: Any, said: str) -> None:
    network, directions = snapshot(kind().double())
    with pytest.raises(UnsupportedLayer, match=rf"(?s){said}.*method='sampled'"):
        traced_tangents(network, torch.randn(2, 4).double(), directions)
