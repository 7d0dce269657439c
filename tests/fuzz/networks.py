"""Random networks of torch's layers: a network is a list of steps, each from one kind of tensor to another.

Kinds: "vector" [N, F], "sequence" [N, T, F], "line" [N, C, L], "image" [N, C, H, W], "volume" [N, C, D, H, W].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

Draw = Callable[[Any], Any]
LENGTH, SIDE, CLASSES = 4, 4, 3
SPATIAL = {"line": 1, "image": 2, "volume": 3}
ACTIVATIONS = [
    nn.ReLU, lambda: nn.ReLU(inplace=True), nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh,
    nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardswish, nn.Hardtanh, nn.PReLU, nn.Identity, nn.LogSigmoid,
    nn.Tanhshrink, nn.Softshrink, nn.Dropout, nn.AlphaDropout,
]  # fmt: skip


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Twice(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.inner(x)))


class Tied(nn.Module):
    """The same matrix there and, transposed, back."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, features)), nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(F.linear(x, self.weight)), self.weight.T, self.bias)


class Scaled(nn.Module):
    """A bare parameter, used by multiplication and addition."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.up, self.gate, self.down = (
            nn.Linear(*s, bias=False) for s in [(features, 6), (features, 6), (6, features)]
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Pair(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.inner = nn.Bilinear(features, features, features)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, torch.tanh(x))


class First(nn.Module):
    """The first result of a module that returns several: recurrent layers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class Attention(nn.Module):
    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(features, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class Einsum(nn.Module):
    """A matrix product that no module makes."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, features) / features)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("n...i,ij->n...j", x, self.weight)


class Move(nn.Module):
    """From [N, C, …] to [N, T, C], or flat."""

    def __init__(self, to: str) -> None:
        super().__init__()
        self.to_kind = to

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) if self.to_kind == "flat" else x.flatten(2).transpose(1, 2)


class Mean(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dim)


def _linear(draw: Draw, features: int) -> tuple[nn.Module, int]:
    out = draw(st.integers(2, 5))
    return nn.Linear(features, out, bias=draw(st.booleans())), out


def along_features(draw: Draw, features: int) -> tuple[nn.Module, int]:
    """A step for "vector" and "sequence"."""
    plain = nn.Linear(features, features)
    steps: dict[str, Callable[[], nn.Module]] = {
        "residual": lambda: Residual(plain),
        "twice": lambda: Twice(plain),
        "weight norm": lambda: parametrizations.weight_norm(plain),
        "spectral norm": lambda: parametrizations.spectral_norm(plain),
        "layer norm": lambda: nn.LayerNorm(features, elementwise_affine=draw(st.booleans())),
        "rms norm": lambda: nn.RMSNorm(features),
        "tied": lambda: Tied(features),
        "scaled": lambda: Scaled(features),
        "gated": lambda: Gated(features),
        "bilinear": lambda: Pair(features),
        "einsum": lambda: Einsum(features),
        "activation": lambda: draw(st.sampled_from(ACTIVATIONS))(),
    }
    name = draw(st.sampled_from(["linear", *steps]))
    return _linear(draw, features) if name == "linear" else (steps[name](), features)


def along_sequence(draw: Draw, features: int) -> tuple[nn.Module, int]:
    heads = draw(st.sampled_from([h for h in (1, 2, 3) if features % h == 0]))
    out = draw(st.integers(2, 4))
    both = draw(st.booleans())
    steps: dict[str, Callable[[], tuple[nn.Module, int]]] = {
        "attention": lambda: (Attention(features, heads), features),
        "encoder": lambda: (
            nn.TransformerEncoderLayer(features, heads, 5, batch_first=True, norm_first=draw(st.booleans())), features
        ),
        "lstm": lambda: (First(nn.LSTM(features, out, batch_first=True, bidirectional=both)), out * (1 + both)),
        "gru": lambda: (First(nn.GRU(features, out, batch_first=True)), out),
        "rnn": lambda: (First(nn.RNN(features, out, batch_first=True)), out),
    }  # fmt: skip
    name = draw(st.sampled_from(["features", *steps]))
    return along_features(draw, features) if name == "features" else steps[name]()


def along_space(draw: Draw, channels: int, kind: str) -> tuple[nn.Module, int]:
    """A step for "line", "image" and "volume", which keeps the size of the space."""
    dims = SPATIAL[kind]
    of = lambda name: getattr(nn, f"{name}{dims}d")  # noqa: E731
    groups = draw(st.sampled_from([g for g in (1, 2) if channels % g == 0]))
    out = groups * draw(st.integers(1, 2))
    bias = draw(st.booleans())
    mode = draw(st.sampled_from(["zeros", "circular", "replicate", *["reflect"] * (dims < 3)]))
    steps: dict[str, Callable[[], tuple[nn.Module, int]]] = {
        "conv": lambda: (
            of("Conv")(channels, out, 3, padding=1, groups=groups, bias=bias, padding_mode=mode), out
        ),
        "dilated": lambda: (of("Conv")(channels, out, 2, dilation=2, padding=1, groups=groups, bias=bias), out),
        "transposed": lambda: (of("ConvTranspose")(channels, out, 3, padding=1, groups=groups, bias=bias), out),
        "pointwise": lambda: (of("Conv")(channels, out, 1, groups=groups), out),
        "residual": lambda: (Residual(of("Conv")(channels, channels, 3, padding=1)), channels),
        "batch norm": lambda: (of("BatchNorm")(channels, affine=draw(st.booleans())), channels),
        "instance norm": lambda: (of("InstanceNorm")(channels, affine=draw(st.booleans())), channels),
        "group norm": lambda: (nn.GroupNorm(groups, channels), channels),
        "pool": lambda: (draw(st.sampled_from([of("MaxPool"), of("AvgPool")]))(3, 1, 1), channels),
        "activation": lambda: (draw(st.sampled_from(ACTIVATIONS))(), channels),
    }  # fmt: skip
    return steps[draw(st.sampled_from(list(steps)))]()


@st.composite
def networks(draw: Draw) -> tuple[nn.Module, Tensor]:
    """A network in float64 and evaluation mode, and inputs. Some of its parameters may be frozen."""
    torch.manual_seed(draw(st.integers(0, 2**20)))
    kind = draw(st.sampled_from(["vector", "sequence", "tokens", "line", "image", "volume"]))
    count, channels = draw(st.integers(2, 4)), draw(st.integers(2, 4))
    shapes = {"vector": (channels,), "sequence": (LENGTH, channels), "tokens": (LENGTH,)}
    shape = shapes.get(kind) or (channels, *[SIDE if kind != "volume" else 3] * SPATIAL[kind])
    layers: list[nn.Module] = []
    x = torch.randn(count, *shape, dtype=torch.float64)
    if kind == "tokens":
        x = torch.randint(6, (count, LENGTH))
        layers.append(nn.Embedding(6, channels, padding_idx=draw(st.sampled_from([None, 0]))))
        kind = "sequence"
    for _ in range(draw(st.integers(1, 3))):
        if kind == "vector":
            step, channels = along_features(draw, channels)
        elif kind == "sequence":
            step, channels = along_sequence(draw, channels)
        else:
            step, channels = along_space(draw, channels, kind)
        layers += [step, draw(st.sampled_from(ACTIVATIONS))()]
    if kind in SPATIAL:
        layers.append(Move("tokens"))
        kind = "sequence"
    if kind == "sequence":
        layers.append(draw(st.sampled_from([Mean(1), Mean(1), Move("flat")])))
        with torch.no_grad():
            channels = nn.Sequential(*layers).double().eval()(x).shape[1]
    model = nn.Sequential(*layers, nn.Linear(channels, CLASSES, bias=draw(st.booleans()))).double().eval()
    _settle(model)
    frozen = draw(st.integers(0, 3))
    for i, parameter in enumerate(list(model.parameters())[:-1]):
        parameter.requires_grad_(frozen != 3 or i % 3 != 0)
    return model, x


@torch.no_grad()
def _settle(model: nn.Module) -> None:
    """Running statistics and weights off their initial values."""
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(0.5 * torch.randn_like(buffer))
        if name.endswith("running_var"):
            buffer.copy_(0.5 + torch.rand_like(buffer))
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
