"""Wide residual networks (Zagoruyko & Komodakis 2016), and the variant of Ritter et al. (2018), appendix G."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from whence.errors import BadOption, one_of
from whence.zoo.networks.sequential import Shape, check_dropout, image_shape, scaled

Shortcut = Literal["1x1", "2x2"]


class Block(nn.Module):
    """Pre-activation: norm, ReLU, 3 × 3, (dropout,) norm, ReLU, 3 × 3; plus the input, or its projection."""

    def __init__(self, channels: int, units: int, stride: int, dropout: float, shortcut: Shortcut) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, units, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(units)
        self.drop = nn.Dropout(dropout) if dropout else None
        self.conv2 = nn.Conv2d(units, units, 3, padding=1, bias=False)
        kernel = 2 if shortcut == "2x2" and stride == 2 else 1
        self.shortcut = (
            nn.Conv2d(channels, units, kernel, stride=stride, bias=False) if channels != units or stride > 1 else None
        )

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        y = self.conv1(active)
        y = F.relu(self.norm2(y))
        if self.drop is not None:
            y = self.drop(y)
        y = self.conv2(y)
        return y + (x if self.shortcut is None else self.shortcut(active))


def _group(channels: int, units: int, n: int, stride: int, dropout: float, shortcut: Shortcut) -> nn.Sequential:
    """``n`` blocks; the first one changes the number of channels and the resolution."""
    first = Block(channels, units, stride, dropout, shortcut)
    return nn.Sequential(first, *(Block(units, units, 1, dropout, shortcut) for _ in range(n - 1)))


class WideResNet(nn.Module):
    """Three groups of ``n`` blocks with 16k, 32k and 64k channels: depth 6n + 4, width k."""

    def __init__(self, channels: int, outputs: int, n: int, width: float, dropout: float, shortcut: Shortcut) -> None:
        super().__init__()
        units = [16, *(scaled(base, width) for base in (16, 32, 64))]
        self.conv = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.groups = nn.Sequential(
            *(_group(units[g], units[g + 1], n, 2 if g else 1, dropout, shortcut) for g in range(3))
        )
        self.norm = nn.BatchNorm2d(units[-1])
        self.head = nn.Linear(units[-1], outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.groups(self.conv(x))))
        return self.head(x.mean((2, 3)))


def wide_resnet(
    shape: Shape = (3, 32, 32),
    outputs: int = 10,
    *,
    depth: int = 16,
    width: float = 4,
    dropout: float = 0.0,
    shortcut: Shortcut = "1x1",
) -> WideResNet:
    """WRN-depth-width. ``shortcut="2x2"`` downsamples with 2 × 2 convolutions, as Ritter et al. (2018) do.

    Their network on CIFAR-100 is ``wide_resnet(outputs=100, depth=22, width=8, shortcut="2x2")``.
    """
    channels, _, _ = image_shape(shape, "wide_resnet", 8)
    one_of(shortcut, ("1x1", "2x2"), "shortcut")
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        raise BadOption(f"depth={depth} is not 6n + 4: use {4 + 6 * max(1, blocks)} or {4 + 6 * max(2, blocks + 1)}.")
    return WideResNet(channels, outputs, blocks, width, check_dropout(dropout), shortcut)
