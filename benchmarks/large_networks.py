"""Networks of the sizes that people have, in plain torch with random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.down: nn.Module | None = None
        if stride != 1 or inputs != width:
            self.down = nn.Sequential(nn.Conv2d(inputs, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet18(nn.Module):
    """He et al. (2016) for 32 × 32 images, with a 3 × 3 stem and no pooling after it: 11.2 million weights."""

    def __init__(self, classes: int = 10, width: int = 64, depths: tuple[int, ...] = (2, 2, 2, 2)) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, inputs = [], width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(BasicBlock(inputs, width * 2**stage, 2 if stage and i == 0 else 1))
                inputs = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.down: nn.Module | None = None
        if stride != 1 or inputs != 4 * width:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride=stride, bias=False)
            self.down = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    """He et al. (2016), with the stride in the 3 × 3 convolution: 25.6 million weights for the default sizes."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, inputs = [], width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                here = width * 2**stage
                blocks.append(Bottleneck(inputs, here, 2 if stage and i == 0 else 1))
                inputs = 4 * here
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, stride=2, padding=1)
        return self.head(self.blocks(x).mean((2, 3)))


class Layer(nn.Module):
    """Attention and a wide layer, each after a normalisation."""

    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        size, length, width = x.shape
        parts = self.attention(self.norm1(x)).split(width, dim=-1)
        q, k, v = (p.view(size, length, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.projection(mixed.transpose(1, 2).reshape(size, length, width))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Radford et al. (2019), small: 124 million weights, the head tied to the embedding."""

    def __init__(
        self, vocabulary: int = 50_257, context: int = 1024, width: int = 768, heads: int = 12, depth: int = 12
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(places)
        return self.head(self.norm(self.layers(x)))


class Vit(nn.Module):
    """Dosovitskiy et al. (2021), patches of 16 × 16 and a class token: 21.7 million weights (S), 85.8 million (B)."""

    def __init__(
        self, classes: int = 10, width: int = 384, heads: int = 6, depth: int = 12, side: int = 224, patch: int = 16
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*(Layer(width, heads, causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)  # [N, positions, width]
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.layers(x))[:, 0])


class Bert(nn.Module):
    """Devlin et al. (2019), base: normalisation after each part, a pooler, a classifier. 109 million weights."""

    def __init__(
        self,
        classes: int = 2,
        vocabulary: int = 30_522,
        context: int = 512,
        width: int = 768,
        heads: int = 12,
        depth: int = 12,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.pooler = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.encoder(self.norm(self.tokens(ids) + self.positions(places)))
        return self.head(torch.tanh(self.pooler(x[:, 0])))


def double(inputs: int, width: int) -> nn.Sequential:
    """Two convolutions, each with a normalisation."""
    parts: list[nn.Module] = []
    for channels in (inputs, width):
        parts += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """Ronneberger et al. (2015) with padding and normalisation, four times halved: 31 million weights."""

    def __init__(self, classes: int = 8, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *widths[:-2]], widths[:-1], strict=True))
        self.bottom = double(widths[-2], widths[-1])
        pairs = list(zip(widths[::-1], widths[-2::-1], strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.merge = nn.ModuleList(double(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


def resnet50(tiny: bool) -> nn.Module:
    return ResNet((1, 1, 1, 1), 8, 12) if tiny else ResNet()


def gpt2(tiny: bool, context: int) -> nn.Module:
    return Gpt2(211, context, 24, 3, 2) if tiny else Gpt2(context=context)
