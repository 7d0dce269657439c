"""Networks with rescalings that leave their function alone, an independent factor for every unit.

``rescale(c)`` changes a network in place; ``c(n)`` gives n factors, powers of two. Normalisations have eps = 0, except
batch normalisation, whose running statistics move with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Factors = Callable[[int], Tensor]


def rows(layer: nn.Module, c: Tensor) -> None:
    """Outputs of a layer times c."""
    shape = (-1, *(1,) * (layer.weight.dim() - 1))
    layer.weight.mul_(c.reshape(shape))
    if layer.bias is not None:
        layer.bias.mul_(c)


def columns(layer: nn.Module, c: Tensor, times: int = 1) -> None:
    """Inputs of a layer over c, each of them ``times`` in a row (a flattened picture)."""
    c = c.repeat_interleave(times)
    layer.weight.div_(c.reshape(1, -1, *(1,) * (layer.weight.dim() - 2)))


def statistics(norm: nn.Module, c: Tensor) -> None:
    """Running statistics of batch normalisation after its inputs were multiplied by c."""
    norm.running_mean.mul_(c)
    norm.running_var.copy_(c.square() * (norm.running_var + norm.eps) - norm.eps)


def stir(model: nn.Module) -> nn.Module:
    """Norms off 1, biases off 0, running statistics filled; float64, evaluation mode."""
    model.double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.3 * torch.randn_like(buffer))
            if name.endswith("running_var"):
                buffer.copy_(0.5 + torch.rand_like(buffer))
    return model


class Mlp(nn.Module):
    """Units of ReLU, leaky ReLU or PReLU: incoming weights and bias times c, outgoing ones over c."""

    def __init__(self, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(5, 7), activation(), nn.Linear(7, 6, bias=False), activation(), nn.Linear(6, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)

    def rescale(self, c: Factors) -> None:
        for first, second in ((self.body[0], self.body[2]), (self.body[2], self.body[4])):
            factor = c(len(first.weight))
            rows(first, factor)
            columns(second, factor)


class Convolutions(nn.Module):
    """Through pooling, a depthwise and a transposed convolution, and flattening."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, groups=4)
        self.up, self.head = nn.ConvTranspose2d(4, 3, 2, stride=2), nn.Linear(3 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.first(x)), 2)
        h = F.leaky_relu(self.deep(F.pad(h, (1, 1, 1, 1))), 0.1)
        h = F.avg_pool2d(F.relu(self.up(h)), 2)
        return self.head(F.interpolate(h, size=(4, 4)).flatten(1))

    def rescale(self, c: Factors) -> None:
        one, two, three = c(4), c(4), c(3)
        rows(self.first, one)
        self.deep.weight.div_(one.reshape(-1, 1, 1, 1))
        rows(self.deep, two)
        self.up.weight.div_(two.reshape(-1, 1, 1, 1))
        self.up.weight.mul_(three.reshape(1, -1, 1, 1))
        self.up.bias.mul_(three)
        columns(self.head, three, 16)


class BatchNorm(nn.Module):
    """A convolution before batch normalisation, channel by channel; the normalisation against what reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.next, self.norm2, self.head = nn.Conv2d(4, 3, 2), nn.BatchNorm2d(3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.conv(x)))
        return self.head(F.relu(self.norm2(self.next(h))).mean((2, 3)))

    def rescale(self, c: Factors) -> None:
        before, after = c(4), c(4)
        rows(self.conv, before)
        statistics(self.norm, before)
        rows(self.norm, after)
        columns(self.next, after)
        again, last = c(3), c(3)
        rows(self.next, again)
        statistics(self.norm2, again)
        rows(self.norm2, last)
        columns(self.head, last)


class OtherNorms(nn.Module):
    """Group by group before group norm, channel by channel before instance norm, as a whole before layer and RMS."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.group = nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4, eps=0.0)
        self.two, self.instance = nn.Conv2d(4, 4, 2), nn.InstanceNorm2d(4, affine=True, eps=0.0)
        self.three, self.layer = nn.Linear(4, 5), nn.LayerNorm(5, eps=0.0)
        self.four, self.rms = nn.Linear(5, 4), nn.RMSNorm(4, eps=0.0)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.group(self.one(x)))
        h = F.relu(self.instance(self.two(h))).amax((2, 3))
        return self.head(self.rms(self.four(F.gelu(self.layer(self.three(h))))))

    def rescale(self, c: Factors) -> None:
        rows(self.one, c(2).repeat_interleave(2))
        affine, channel = c(4), c(4)
        rows(self.group, affine)
        columns(self.two, affine)
        rows(self.two, channel)
        affine = c(4)
        rows(self.instance, affine)
        columns(self.three, affine)
        rows(self.three, c(1).expand(5))
        rows(self.four, c(1).expand(4))
        affine = c(4)
        self.rms.weight.mul_(affine)
        columns(self.head, affine)


class Transformer(nn.Module):
    """Queries against keys, values against outputs, gated units, norms against all that read them, a layer scale."""

    def __init__(self) -> None:
        super().__init__()
        width = 6
        self.table, self.place = nn.Embedding(9, width), nn.Parameter(torch.randn(1, 5, width))
        self.norm, self.norm2 = nn.LayerNorm(width, eps=0.0), nn.RMSNorm(width, eps=0.0)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.gate, self.up, self.down = nn.Linear(width, 8), nn.Linear(width, 8), nn.Linear(8, width)
        self.scale = nn.Parameter(torch.randn(width))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x) + self.place
        n = self.norm(h)
        h = h + self.attention(n, n, n, need_weights=False)[0]
        n = self.norm2(h)
        h = h + self.down(F.silu(self.gate(n)) * self.up(n))
        return self.head((h * self.scale).mean(1))

    def rescale(self, c: Factors) -> None:
        query, value = c(6), c(6)
        packed = torch.cat([query, 1 / query, value])
        self.attention.in_proj_weight.mul_(packed.unsqueeze(1))
        self.attention.in_proj_bias.mul_(packed)
        columns(self.attention.out_proj, value)
        first = c(6)
        rows(self.norm, first)
        self.attention.in_proj_weight.div_(first)
        second = c(6)
        self.norm2.weight.mul_(second)
        columns(self.gate, second)
        columns(self.up, second)
        unit = c(8)
        rows(self.up, unit)
        columns(self.down, unit)
        last = c(6)
        self.scale.mul_(last)
        columns(self.head, last)


class Stream(nn.Module):
    """A residual stream: all that write a channel times c, all that read it over c; batch normalisation reads too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(5, 6), nn.BatchNorm1d(6)
        self.inner, self.out = nn.Linear(6, 4), nn.Linear(4, 6)
        self.inner2, self.out2 = nn.Linear(6, 5), nn.Linear(5, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = h + self.out(torch.tanh(self.inner(self.norm(h))))
        h = h + self.out2(torch.tanh(self.inner2(h)))
        return self.head(h)

    def rescale(self, c: Factors) -> None:
        factor = c(6)
        for writer in (self.stem, self.out, self.out2):
            rows(writer, factor)
        for reader in (self.inner2, self.head):
            columns(reader, factor)
        statistics(self.norm, factor)


class WeightNorm(nn.Module):
    """Rows of v; and units, whose size is g."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.utils.parametrizations.weight_norm(nn.Linear(5, 6))
        self.two = nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 2))
        self.head = nn.Linear(3 * 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.one(x)).unflatten(1, (2, 3))
        return self.head(F.relu(self.two(h)).flatten(1))

    def rescale(self, c: Factors) -> None:
        for layer in (self.one, self.two):
            v = layer.parametrizations.weight.original1
            v.mul_(c(len(v)).reshape(-1, *(1,) * (v.dim() - 1)))
        factor = c(3)
        self.two.parametrizations.weight.original0.mul_(factor.reshape(-1, 1, 1))
        self.two.bias.mul_(factor)
        columns(self.head, factor, 2)


class Recurrent(nn.Module):
    """Dimensions of an embedding and units of ReLU against the inputs of an LSTM and a GRU cell."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(9, 4), nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.mix, self.cell, self.head = nn.Linear(6, 5), nn.GRUCell(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.lstm(self.table(x))
        h = F.relu(self.mix(h))
        state = self.cell(h[:, 1], self.cell(h[:, 0]))
        return self.head(state)

    def rescale(self, c: Factors) -> None:
        factor = c(4)
        self.table.weight.mul_(factor)
        self.lstm.weight_ih_l0.div_(factor)
        self.lstm.weight_ih_l0_reverse.div_(factor)
        factor = c(5)
        rows(self.mix, factor)
        self.cell.weight_ih.div_(factor)


class ByHand(nn.Module):
    """Bare parameters: products with transposed weights, a bias of its own, a norm and a layer scale by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(6))
        self.gamma, self.beta = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))
        self.v = nn.Parameter(torch.randn(6, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(x @ self.w + self.b)
        h = h - h.mean(-1, keepdim=True)
        h = torch.tanh(h) * self.gamma + self.beta
        return self.head(F.relu(torch.einsum("nd,do->no", h, self.v)))

    def rescale(self, c: Factors) -> None:
        factor, unit = c(6), c(4)
        self.gamma.mul_(factor)
        self.beta.mul_(factor)
        self.v.div_(factor.unsqueeze(1))
        self.v.mul_(unit)
        columns(self.head, unit)


@dataclass(frozen=True)
class Member:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...] | None  # of one input; None for five tokens
    likelihood: str = "classification"


MEMBERS: dict[str, Member] = {
    "relu": Member(lambda: Mlp(nn.ReLU), (5,)),
    "leaky": Member(lambda: Mlp(lambda: nn.LeakyReLU(0.2)), (5,), "binary"),
    "prelu": Member(lambda: Mlp(nn.PReLU), (5,)),
    "convolutions": Member(Convolutions, (2, 8, 8)),
    "batch norm": Member(BatchNorm, (2, 6, 6)),
    "other norms": Member(OtherNorms, (2, 5, 5)),
    "transformer": Member(Transformer, None),
    "stream": Member(Stream, (5,), "regression"),
    "weight norm": Member(WeightNorm, (5,)),
    "recurrent": Member(Recurrent, None),
    "by hand": Member(ByHand, (5,)),
}


def made(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return stir(MEMBERS[name].build())


def inputs(name: str, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = MEMBERS[name].shape
    if shape is None:
        return torch.randint(9, (count, 5), generator=generator)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64)
